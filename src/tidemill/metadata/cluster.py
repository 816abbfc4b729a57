"""A broker's part in the cluster: its session with the store, its registration, its image.

The rules of this shell:

- One lock guards everything that reads the store into the image or writes to the store. Inside it
  the image is the newest that this broker has seen. After a successful write the image contains the
  write before the caller continues (T22).
- Only a broker with a lease acts (`lease.py`). A LOST session is replaced, and the broker registers
  again, in a new broker epoch.
- Before it registers after an unclean stop, a broker leaves the in-sync sets of all partitions
  whose records it may have lost (I14).

`run` is the loop that follows the watches; the broker starts it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar, final
from uuid import UUID

from tidemill.core.clock import Clock
from tidemill.core.config.broker_config import BrokerConfig, Endpoint
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable, UserError
from tidemill.core.ids import NO_LEADER, ZERO_UUID, TopicId
from tidemill.core.rng import Rng
from tidemill.metadata.controller.controller import (
    ConfigChange,
    PartitionsSpec,
    TopicResult,
    TopicSpec,
)
from tidemill.metadata.controller.controllership import Controllership
from tidemill.metadata.controller.election import PartitionChange, after_isr_change, restart_unclean
from tidemill.metadata.controller.page_writer import CAS_ATTEMPTS_MAX, PageWriter
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import Head
from tidemill.metadata.image.image_keeper import ImageKeeper
from tidemill.metadata.image.image_reader import ImageReader
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    Delta,
    ImageDraft,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.lease import Lease
from tidemill.metadata.override_writer import OverrideChange, OverrideWriter
from tidemill.metadata.store.coord import Coord, CoordConflict, Create, Op, Put, SessionState

__all__ = ["Cluster"]

_T = TypeVar("_T")
_log = logging.getLogger("tidemill.metadata")

_RETRY_AFTER_S = 1.0
"""Pause of `run` after the store has failed."""
_PRODUCER_ID_BLOCK = 1_000


@final
class Cluster:
    """One broker's view of the cluster, and the changes that it makes to it."""

    def __init__(
        self,
        coord: Coord,
        config: BrokerConfig,
        rng: Rng,
        *,
        clock: Clock,
        alarm: Callable[[str], None] = _log.error,
    ) -> None:
        self.live = LiveConfig(config)
        """The configuration that this broker runs with; it follows the image."""
        self._coord = coord
        self._config = config
        self._rng = rng
        self._alarm = alarm
        self._keeper = ImageKeeper(coord, ImageReader(self.live, alarm))
        writer = PageWriter(coord, self._keeper)
        self._controller = Controllership(coord, self._keeper, writer, self.live, alarm)
        self._overrides = OverrideWriter(self._keeper, writer, self.live)
        self._keeper.subscribe(self._follow_members)
        self._lock = asyncio.Lock()
        self._advertised = Endpoint("", 0)
        self._internal: Endpoint | None = None
        self._directory_id = ZERO_UUID
        self._lease = Lease(coord, clock)
        self._closed = False
        self.broker_epoch = -1
        """The epoch of the last registration."""

    @property
    def broker_id(self) -> int:
        return self._config.node_id

    @property
    def image(self) -> MetadataImage:
        return self._keeper.image

    @property
    def may_act(self) -> bool:
        """Whether this broker may act as an owner right now."""
        return self._lease.may_act

    @property
    def is_controller(self) -> bool:
        return self._controller.term is not None and self._lease.is_held

    def all_topic_ids(self) -> Collection[UUID] | None:
        """The ids of all topics of the cluster; None while the image may lack one."""
        complete = self.may_act and self._keeper.topics_readable and not self._keeper.behind
        return self.image.names.keys() if complete else None

    def subscribe(self, on_delta: Callable[[Delta], None]) -> None:
        """Call `on_delta` with every change of the image, on the event loop, at once."""
        self._keeper.subscribe(on_delta)

    # --- start, run, close -----------------------------------------------------------------------

    async def identify(self) -> str:
        """The cluster's id before joining: a data directory of another cluster is refused."""
        async with self._lock:
            await self._connect()
            return self.image.cluster_id

    async def start(
        self,
        advertised: Endpoint,
        *,
        unclean: bool,
        internal: Endpoint | None = None,
        directory_id: UUID = ZERO_UUID,
    ) -> None:
        """Join the cluster. `unclean`: the logs may have lost unflushed records.

        Other brokers reach this one at `internal`. UserError if another broker has our id, or the
        store is not a usable one.
        """
        self._advertised = advertised
        self._internal = internal
        self._directory_id = directory_id
        self._keeper.watch()
        self._coord.on_state(self._session_changed)
        async with self._lock:
            await self._join(unclean=unclean)
        await self.catch_up()

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            await self._keeper.wakeup.wait()
            self._keeper.wakeup.clear()
            try:
                await self.catch_up()
            except StoreUnavailable as error:
                self._alarm(f"metadata: {error}")
                await asyncio.sleep(_RETRY_AFTER_S)
                self._keeper.wakeup.set()

    async def catch_up(self) -> None:
        """Read all changes that watches announced, and react to them."""
        while self._needs_work():
            async with self._lock:
                if not self._needs_work():  # closed while this waited for the lock
                    return
                if not self._lease.registered:
                    await self._join(unclean=False)
                await self._keeper.refresh()
                await self._react()

    async def close(self) -> None:
        """Leave the cluster; other brokers take over what this one led."""
        async with self._lock:
            self._closed = True
            self._resign()
            await self._coord.close()

    def _needs_work(self) -> bool:
        if self._closed or self._coord.state is SessionState.SUSPENDED:
            return False
        return self._keeper.behind or not self._lease.registered

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._resign()
        self._keeper.wakeup.set()

    def _resign(self) -> None:
        self._lease.registered = False
        self._lease.fenced = True
        self._controller.step_down()

    def _follow_members(self, delta: Delta) -> None:
        member = delta.after.members.get(self.broker_id)
        self._lease.fenced = member is None or member.epoch != self.broker_epoch

    async def _react(self) -> None:
        """Do what the newest image requires of this broker: step down, campaign or control."""
        if self._controller.term != self._keeper.term:
            self._controller.step_down()
        if self.image.controller_broker_id == NO_LEADER and self._lease.registered:
            await self._controller.campaign()
        if self.is_controller:
            await self._controller.serve()

    # --- joining ---------------------------------------------------------------------------------

    async def _join(self, *, unclean: bool) -> None:
        await self._connect()
        await self._keeper.load()
        if unclean:
            await self._restart_unclean()
        await self._register()
        await self._react()

    async def _connect(self) -> None:
        if self._coord.state is SessionState.LOST:
            await self._coord.start()
        await self._ensure_cluster()

    async def _ensure_cluster(self) -> None:
        cluster_id = base64.urlsafe_b64encode(self._rng.uuid().bytes).rstrip(b"=").decode()
        made: list[Op] = [
            Create(nodes.CLUSTER, nodes.encode_cluster_id(cluster_id)),
            Create(nodes.CONTROLLER_EPOCH, nodes.encode_counter(0)),
            Create(nodes.BROKER_EPOCH, nodes.encode_counter(0)),
            Create(nodes.PRODUCER_IDS, nodes.encode_counter(0)),
            Create(nodes.HEAD, Head().encode()),
        ]
        node = await self._coord.get(nodes.CLUSTER)
        if node is None:
            await self._try_multi(made)
            node = await self._coord.get(nodes.CLUSTER)
        if node is None:
            raise StoreUnavailable(f"{nodes.CLUSTER} is missing")
        draft = ImageDraft(self.image)
        try:
            draft.set_cluster_id(nodes.decode_cluster_id(nodes.CLUSTER, node))
        except nodes.BadNode as bad:
            raise UserError(f"the coordination store cannot be used: {bad}") from bad
        self._keeper.publish(draft)

    async def _restart_unclean(self) -> None:
        """Take new epochs and leave in-sync sets, before any controller can elect us."""
        for _ in range(CAS_ATTEMPTS_MAX):
            changes = restart_unclean(self.image, self.broker_id)
            try:
                await self._controller.change_partitions(changes, term=self._keeper.term)
            except CoordConflict:
                await self._keeper.load()
            else:
                return
        raise StoreUnavailable("the cluster changes too fast to join it")

    async def _register(self) -> None:
        path = nodes.broker_path(self.broker_id)
        for _ in range(CAS_ATTEMPTS_MAX):
            if await self._coord.get(path) is not None:
                raise UserError(f"node.id={self.broker_id}: another broker has this id")
            last, version = await self._counter(nodes.BROKER_EPOCH)
            broker = self._own_image(epoch=last + 1)
            count = Put(nodes.BROKER_EPOCH, nodes.encode_counter(broker.epoch), version)
            made = Create(path, nodes.encode_broker(broker), ephemeral=True)
            if await self._try_multi([count, made]):
                self._registered_as(broker)
                return
        raise StoreUnavailable("the cluster changes too fast to join it")

    def _registered_as(self, broker: BrokerImage) -> None:
        self.broker_epoch = broker.epoch
        self._lease.registered = True
        draft = ImageDraft(self.image)
        draft.put_broker(broker)
        self._keeper.publish(draft)

    def _own_image(self, *, epoch: int) -> BrokerImage:
        host, port = self._advertised
        rack = self._config.broker_rack
        return BrokerImage(
            broker_id=self.broker_id,
            epoch=epoch,
            host=host,
            port=port,
            rack=rack,
            internal=self._internal,
            directory_id=self._directory_id,
        )

    async def _try_multi(self, ops: Sequence[Op]) -> bool:
        """Run the multi; False if another broker's change came first."""
        try:
            await self._coord.multi(ops)
        except CoordConflict:
            return False
        return True

    # --- topics: only on the controller (KafkaError NOT_CONTROLLER elsewhere) --------------------

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create topics; one result each, in order (T21)."""
        topic_ids = [TopicId(self._rng.uuid()) for _ in specs]
        return await self._as_controller(
            lambda term: self._controller.create_topics(
                specs, topic_ids, validate_only=validate_only, term=term
            )
        )

    async def delete_topics(self, topics: Sequence[str | UUID]) -> list[TopicResult]:
        """Delete topics by name or id; the `topic` of a result is what was deleted."""
        return await self._as_controller(
            lambda term: self._controller.delete_topics(topics, term=term)
        )

    async def create_partitions(
        self, specs: Sequence[PartitionsSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Give topics more partitions; one result each, in order."""
        return await self._as_controller(
            lambda term: self._controller.create_partitions(
                specs, validate_only=validate_only, term=term
            )
        )

    async def alter_topic_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Change topic keys (T57); one result each, in order."""
        return await self._as_controller(
            lambda term: self._controller.alter_topic_configs(
                changes, validate_only=validate_only, term=term
            )
        )

    async def _as_controller(self, work: Callable[[int], Awaitable[_T]]) -> _T:
        """Do `work(term)` on settled metadata; try again if the metadata proves stale."""
        async with self._lock:
            for _ in range(CAS_ATTEMPTS_MAX):
                term = self._controller.term
                if term is None or not self._lease.is_held:
                    raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
                try:
                    await self._controller.settle()
                    return await work(term)
                except CoordConflict as conflict:
                    self._controller.conflict(conflict)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the metadata keeps changing; try again")

    # --- changes that any broker may make --------------------------------------------------------

    async def alter_overrides(
        self, changes: Sequence[OverrideChange], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Change keys of this broker, of all brokers or of groups; one result each, in order."""
        async with self._lock:
            return await self._overrides.alter(changes, validate_only=validate_only)

    async def propose_isr(
        self,
        topic_id: UUID,
        partition: int,
        new_isr: Sequence[int],
        *,
        leader_epoch: int,
        partition_epoch: int,
        broker_epochs: Mapping[int, int] | None = None,
    ) -> PartitionImage:
        """As the leader, change the isr; returns the partition's new state.

        KafkaError if the proposal is based on an old state (INVALID_UPDATE_VERSION,
        FENCED_LEADER_EPOCH) or this broker does not lead. `broker_epochs` are the epochs in which
        the joining followers fetched: one that has restarted since cannot join (KIP-903).
        """
        async with self._lock:
            for _ in range(CAS_ATTEMPTS_MAX):
                topic, before = self._led_partition(topic_id, partition)
                self._check_broker_epochs(broker_epochs or {})
                after = after_isr_change(
                    before,
                    tuple(new_isr),
                    leader_epoch=leader_epoch,
                    partition_epoch=partition_epoch,
                    live=self.image.brokers,
                    isr_min=topic.config.min_insync_replicas,
                )
                if after == before:
                    return before
                change = PartitionChange(topic.topic_id, partition, before, after)
                try:
                    await self._controller.change_partitions([change], term=self._keeper.term)
                except CoordConflict:
                    await self._keeper.load()
                else:
                    return self.image.topics[topic.name].partitions[partition]
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "the metadata keeps changing")

    def _led_partition(self, topic_id: UUID, index: int) -> tuple[TopicImage, PartitionImage]:
        topic = self.image.topic_by_id(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no such partition")
        partition = topic.partitions[index]
        if not self.may_act or partition.leader != self.broker_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead it")
        return topic, partition

    def _check_broker_epochs(self, broker_epochs: Mapping[int, int]) -> None:
        for broker_id, epoch in broker_epochs.items():
            broker = self.image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch:
                raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} restarted")

    async def reserve_producer_ids(self, count: int = _PRODUCER_ID_BLOCK) -> range:
        """Reserve a block of producer ids that no other broker ever gets."""
        for _ in range(CAS_ATTEMPTS_MAX):
            first, version = await self._counter(nodes.PRODUCER_IDS)
            value = nodes.encode_counter(first + count)
            if await self._try_multi([Put(nodes.PRODUCER_IDS, value, version)]):
                return range(first, first + count)
        raise StoreUnavailable("too many brokers ask for producer ids at once")

    async def _counter(self, path: str) -> tuple[int, int]:
        """A counter's value, and the version to change it on; it is never guessed."""
        node = await self._coord.get(path)
        if node is None:
            raise StoreUnavailable(f"{path} is missing")
        try:
            return nodes.decode_counter(path, node), node.version
        except nodes.BadNode as bad:
            raise StoreUnavailable(str(bad)) from bad
