"""A broker's part in the cluster: its session, its registration, and, if elected, the controller.

The decisions are made in pure code (`controller.py`, `election.py`); this shell reads, writes and
publishes. Its rules:

- One lock around everything that reads the store into the image or writes to it. Inside it the
  image is the newest that this broker has seen, and after a successful write it contains the write
  before the caller goes on (T22).
- Every write is a multi with a check of the controller epoch's node (I33). A deposed controller's
  writes fail, whatever it believes.
- A write that failed, or whose outcome is unknown, puts the image in doubt: before the next write
  everything is read again and half-made topics are swept away.
- Only a CONNECTED session acts (`may_act`). A session that was LOST is replaced, and the broker
  registers anew, in a new broker epoch.

`run` is the loop that follows the watches; the broker starts it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, final
from uuid import UUID

from tidemill.core.broker_config import BrokerConfig, Endpoint
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable, UserError, invariant
from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import COORD_OPS_PER_MULTI_MAX
from tidemill.core.rng import Rng
from tidemill.metadata import nodes
from tidemill.metadata.controller import (
    ConfigChange,
    PartitionsSpec,
    TopicPlanner,
    TopicResult,
    TopicSpec,
)
from tidemill.metadata.election import (
    PartitionChange,
    after_isr_change,
    reconcile,
    restart_unclean,
)
from tidemill.metadata.image import (
    BrokerImage,
    Delta,
    ImageDraft,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image_keeper import ImageKeeper
from tidemill.metadata.image_reader import ImageReader
from tidemill.metadata.store import (
    Check,
    Coord,
    CoordConflict,
    Create,
    Delete,
    Op,
    Put,
    SessionState,
)
from tidemill.metadata.topic_config import topic_defaults

__all__ = ["Cluster"]

_T = TypeVar("_T")
_log = logging.getLogger("tidemill.metadata")

_ATTEMPTS_MAX = 10
"""How often a compare-and-set is tried again on fresh data before the caller is told to."""
_RETRY_AFTER_S = 1.0
"""Pause after the store failed, before `run` looks again."""
PRODUCER_ID_BLOCK = 1_000


@final
class Cluster:
    """One broker's session with the store, and its image of the cluster."""

    def __init__(
        self,
        coord: Coord,
        config: BrokerConfig,
        rng: Rng,
        *,
        alarm: Callable[[str], None] = _log.error,
    ) -> None:
        self._coord = coord
        self._config = config
        self._rng = rng
        self._alarm = alarm
        self._defaults = topic_defaults(config)
        self._reader = ImageReader(self._defaults, alarm)
        self._keeper = ImageKeeper(coord, self._reader)
        self._lock = asyncio.Lock()
        self._advertised = Endpoint("", 0)
        self._own_term: int | None = None
        """The term in which this broker is controller, as far as it knows."""
        self._in_doubt = False
        self._registered = False
        self._closed = False
        self.broker_epoch = -1

    # --- what the rest of the broker reads ---------------------------------------------------------

    @property
    def broker_id(self) -> int:
        return self._config.node_id

    @property
    def image(self) -> MetadataImage:
        return self._keeper.image

    @property
    def may_act(self) -> bool:
        """Whether this broker may lead or control anything right now."""
        return self._registered and self._coord.state is SessionState.CONNECTED

    @property
    def is_controller(self) -> bool:
        return self._own_term is not None and self.may_act

    def subscribe(self, on_delta: Callable[[Delta], None]) -> None:
        """Call `on_delta` with every change of the image, on the event loop, at once."""
        self._keeper.subscribe(on_delta)

    # --- life --------------------------------------------------------------------------------------

    async def start(self, advertised: Endpoint, *, unclean: bool) -> None:
        """Join the cluster. `unclean`: the logs may have lost what was not flushed.

        UserError if another broker has our id, or the store is not one we can use.
        """
        self._advertised = advertised
        self._coord.watch("/", self._keeper.mark)
        self._coord.on_state(self._session_changed)
        async with self._lock:
            await self._join(unclean=unclean)

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
        """Take in all changes that were announced, and react to them."""
        while not self._closed and self._needs_work():
            async with self._lock:
                if self._coord.state is SessionState.LOST:
                    await self._join(unclean=False)
                await self._keeper.refresh()
                await self._react()

    async def close(self) -> None:
        """Leave the cluster; others take over what this broker led."""
        async with self._lock:
            self._closed = True
            self._registered = False
            self._own_term = None
            await self._coord.close()

    def _needs_work(self) -> bool:
        match self._coord.state:
            case SessionState.CONNECTED:
                return self._keeper.behind
            case SessionState.LOST:
                return True
            case SessionState.SUSPENDED:
                return False

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._own_term = None
            self._registered = False
        self._keeper.wakeup.set()

    async def _join(self, *, unclean: bool) -> None:
        if self._coord.state is not SessionState.CONNECTED:
            await self._coord.start()
        await self._ensure_cluster()
        await self._keeper.load()
        if unclean:
            await self._restart_unclean()
        await self._register()
        await self._react()

    async def _ensure_cluster(self) -> None:
        node = await self._coord.get(nodes.CLUSTER)
        if node is None:
            cluster_id = base64.urlsafe_b64encode(self._rng.uuid().bytes).rstrip(b"=").decode()
            await self._unless_made(
                [
                    Create(nodes.CLUSTER, nodes.encode_cluster_id(cluster_id)),
                    Create(nodes.CONTROLLER_EPOCH, nodes.encode_counter(0)),
                    Create(nodes.BROKER_EPOCH, nodes.encode_counter(0)),
                    Create(nodes.PRODUCER_IDS, nodes.encode_counter(0)),
                ]
            )
            node = await self._coord.get(nodes.CLUSTER)
        if node is None:
            raise StoreUnavailable(f"{nodes.CLUSTER} vanished")
        draft = ImageDraft(self.image)
        try:
            draft.set_cluster_id(nodes.decode_cluster_id(nodes.CLUSTER, node))
        except nodes.BadNode as bad:
            raise UserError(f"the coordination store cannot be used: {bad}") from bad
        self._keeper.publish(draft)

    async def _unless_made(self, ops: Sequence[Op]) -> bool:
        """Do it unless somebody else was first."""
        try:
            await self._coord.multi(ops)
        except CoordConflict:
            return False
        return True

    async def _restart_unclean(self) -> None:
        """Give up what we may have lost, before anybody can elect us on the strength of it (I14)."""
        for _ in range(_ATTEMPTS_MAX):
            changes = restart_unclean(self.image, self.broker_id)
            try:
                await self._write_partitions(changes, term=self._keeper.term)
            except CoordConflict:
                await self._keeper.load()
            else:
                return
        raise StoreUnavailable("the cluster changes too fast to join it")

    async def _register(self) -> None:
        path = nodes.broker_path(self.broker_id)
        for _ in range(_ATTEMPTS_MAX):
            if await self._coord.get(path) is not None:
                raise UserError(f"node.id={self.broker_id}: another broker has this id")
            counter = await self._coord.get(nodes.BROKER_EPOCH)
            if counter is None:
                raise StoreUnavailable(f"{nodes.BROKER_EPOCH} is missing")
            broker = self._own_image(epoch=counter.version + 1)
            count = Put(nodes.BROKER_EPOCH, nodes.encode_counter(broker.epoch), counter.version)
            made = Create(path, nodes.encode_broker(broker), ephemeral=True)
            if await self._unless_made([count, made]):
                self.broker_epoch = broker.epoch
                self._registered = True
                draft = ImageDraft(self.image)
                draft.put_broker(broker)
                self._keeper.publish(draft)
                return
        raise StoreUnavailable("the cluster changes too fast to join it")

    def _own_image(self, *, epoch: int) -> BrokerImage:
        host, port = self._advertised
        return BrokerImage(
            broker_id=self.broker_id,
            epoch=epoch,
            host=host,
            port=port,
            rack=self._config.broker_rack,
        )

    # --- being the controller ----------------------------------------------------------------------

    async def _react(self) -> None:
        """Whatever the newest image asks of this broker."""
        if self._own_term is not None and self._own_term != self._keeper.term:
            self._own_term = None
        if self.image.controller_broker_id == NO_LEADER:
            await self._campaign()
        if self.is_controller:
            await self._settle()
            await self._reconcile()

    async def _campaign(self) -> None:
        """Become the controller, unless somebody else does."""
        epoch = await self._coord.get(nodes.CONTROLLER_EPOCH)
        if epoch is None or not self._registered:
            return
        term = epoch.version + 1
        own = nodes.encode_controller(self.broker_id, term)
        won = await self._unless_made(
            [
                Create(nodes.CONTROLLER, own, ephemeral=True),
                Put(nodes.CONTROLLER_EPOCH, nodes.encode_counter(term), epoch.version),
            ]
        )
        self._keeper.mark("/")
        if won:
            self._own_term = term
            self._in_doubt = True

    async def _reconcile(self) -> None:
        for _ in range(_ATTEMPTS_MAX):
            changes = reconcile(self.image)
            if not changes:
                return
            try:
                await self._write_partitions(changes, term=self._required_term())
            except CoordConflict:
                await self._keeper.load()
                if self._own_term != self._keeper.term:
                    self._own_term = None
                    return

    async def _settle(self) -> None:
        """Read everything and remove half-made topics, if a write before left us in doubt."""
        if not self._in_doubt:
            return
        await self._keeper.load()
        await self._sweep(await self._coord.scan(nodes.PARTITIONS))
        self._in_doubt = False

    async def _sweep(self, partitions: Sequence[tuple[str, nodes.Node]]) -> None:
        """Delete the partitions of topics that do not exist; never those of one we cannot read."""
        if self._reader.unreadable_topics:
            return
        strays = [Delete(path, node.version) for path, node in partitions if self._is_stray(path)]
        try:
            await self._write(strays, term=self._required_term())
        except CoordConflict:
            self._in_doubt = True

    def _is_stray(self, path: str) -> bool:
        place = nodes.partition_of(path)
        if place is None:
            return False
        topic = self.image.topic_by_id(place[0])
        return topic is None or place[1] >= len(topic.partitions)

    # --- writing -----------------------------------------------------------------------------------

    def _required_term(self) -> int:
        if self._own_term is None or not self.may_act:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        return self._own_term

    async def _write(self, ops: Sequence[Op], *, term: int) -> None:
        """All ops, in order, in multis of bounded size, each good only in `term`."""
        step = COORD_OPS_PER_MULTI_MAX - 1
        guard = Check(nodes.CONTROLLER_EPOCH, term)
        try:
            for start in range(0, len(ops), step):
                await self._coord.multi([guard, *ops[start : start + step]])
        except BaseException:
            self._in_doubt = True
            raise

    async def _write_partitions(self, changes: Sequence[PartitionChange], *, term: int) -> None:
        step = COORD_OPS_PER_MULTI_MAX - 1
        for start in range(0, len(changes), step):
            chunk = changes[start : start + step]
            for change in chunk:
                _check_change(change)
            await self._write([_put_partition(change) for change in chunk], term=term)
            self._publish_partitions(chunk)

    def _publish_partitions(self, changes: Sequence[PartitionChange]) -> None:
        draft = ImageDraft(self.image)
        by_topic: dict[UUID, dict[int, PartitionImage]] = {}
        for change in changes:
            after = replace(change.after, partition_epoch=change.before.partition_epoch + 1)
            by_topic.setdefault(change.topic_id, {})[change.partition] = after
            if _unclean(change):
                place = f"{self.image.names[change.topic_id]}-{change.partition}"
                self._alarm(f"{place}: broker {after.leader} leads without being in sync")
        for topic_id, changed in by_topic.items():
            draft.put_partitions(topic_id, changed)
        self._keeper.publish(draft)

    async def _as_controller(self, work: Callable[[int], Awaitable[_T]]) -> _T:
        """Do `work(term)` on settled metadata; again if it turns out to have been stale."""
        async with self._lock:
            for _ in range(_ATTEMPTS_MAX):
                self._required_term()
                await self._settle()
                term = self._required_term()
                try:
                    return await work(term)
                except CoordConflict as conflict:
                    if conflict.path == nodes.CONTROLLER_EPOCH:
                        self._own_term = None
                        self._keeper.mark("/")
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the metadata keeps changing; try again")

    # --- topics ------------------------------------------------------------------------------------

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Make topics; one result each, in order (T21). KafkaError NOT_CONTROLLER as a whole."""
        topic_ids = [self._rng.uuid() for _ in specs]

        async def work(term: int) -> list[TopicResult]:
            results = self._planned_topics(specs, topic_ids)
            if not validate_only:
                await self._create([result.topic for result in results if result.topic], term)
            return results

        return await self._as_controller(work)

    def _planned_topics(
        self, specs: Sequence[TopicSpec], topic_ids: Sequence[UUID]
    ) -> list[TopicResult]:
        planner = TopicPlanner(self.image, self._config, self._defaults)
        names = [spec.name for spec in specs]
        results: list[TopicResult] = []
        for spec, topic_id in zip(specs, topic_ids, strict=True):
            result = TopicResult(spec.name)
            made = self.image.topic_by_id(topic_id)
            try:
                if names.count(spec.name) > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
                # Made already, by an attempt of this request whose end we did not see.
                result.topic = made or planner.plan_topic(spec, topic_id)
                result.topic_id = topic_id
            except KafkaError as error:
                result.refuse(error)
            results.append(result)
        return results

    async def _create(self, topics: Sequence[TopicImage], term: int) -> None:
        new = [topic for topic in topics if topic.topic_id not in self.image.names]
        await self._write([op for topic in new for op in _create_ops(topic)], term=term)
        draft = ImageDraft(self.image)
        for topic in new:
            draft.put_topic(topic)
        self._keeper.publish(draft)

    async def delete_topics(self, topics: Sequence[str | UUID]) -> list[TopicResult]:
        """Delete topics by name or id; `topic` of a result is what was deleted."""

        async def work(term: int) -> list[TopicResult]:
            results = [self._deletion(topic) for topic in dict.fromkeys(topics)]
            gone = {result.topic.name: result.topic for result in results if result.topic}
            await self._delete(list(gone.values()), term)
            return results

        return await self._as_controller(work)

    def _deletion(self, wanted: str | UUID) -> TopicResult:
        if isinstance(wanted, UUID):
            topic = self.image.topic_by_id(wanted)
            missing, result = ErrorCode.UNKNOWN_TOPIC_ID, TopicResult("", topic_id=wanted)
        else:
            topic = self.image.topic(wanted)
            missing, result = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TopicResult(wanted)
        if topic is None:
            result.refuse(KafkaError(missing, "no such topic"))
        else:
            result.name, result.topic_id, result.topic = topic.name, topic.topic_id, topic
        return result

    async def _delete(self, topics: Sequence[TopicImage], term: int) -> None:
        gone = [Delete(nodes.topic_path(topic.name), topic.version) for topic in topics]
        await self._write(gone, term=term)
        draft = ImageDraft(self.image)
        for topic in topics:
            draft.drop_topic(topic.name)
        self._keeper.publish(draft)
        for topic in topics:
            await self._sweep(await self._coord.scan(nodes.partitions_prefix(topic.topic_id)))

    async def create_partitions(
        self, specs: Sequence[PartitionsSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Add partitions to topics; one result each, in order."""

        async def work(term: int) -> list[TopicResult]:
            planner = TopicPlanner(self.image, self._config, self._defaults)
            plans = {spec.name: spec for spec in specs}
            results = [_planned(name, planner.plan_partitions, plans[name]) for name in plans]
            if not validate_only:
                await self._alter(results, term)
            return results

        return await self._as_controller(work)

    async def alter_topic_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Change topic keys (T57); one result each, in order."""

        async def work(term: int) -> list[TopicResult]:
            planner = TopicPlanner(self.image, self._config, self._defaults)
            plans = {change.name: change for change in changes}
            results = [_planned(name, planner.plan_config, plans[name]) for name in plans]
            if not validate_only:
                await self._alter(results, term)
            return results

        return await self._as_controller(work)

    async def _alter(self, results: Sequence[TopicResult], term: int) -> None:
        """Write topics that differ from the image: partitions first, the topic's own node last."""
        ops: list[Op] = []
        draft = ImageDraft(self.image)
        for result in results:
            if result.topic is None:
                continue
            before = self.image.topics[result.name]
            ops += _alter_ops(before, result.topic)
            result.topic = _altered(before, result.topic)
            draft.put_topic(result.topic)
        await self._write(ops, term=term)
        self._keeper.publish(draft)

    # --- what any broker may do --------------------------------------------------------------------

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
        """As the leader, change the isr; answers with the partition's new state.

        KafkaError says that the proposal was made on an old state (INVALID_UPDATE_VERSION,
        FENCED_LEADER_EPOCH), or that it is not ours to make. `broker_epochs` are those that the
        joining followers fetched with: one that has restarted since is not taken in (KIP-903).
        """
        async with self._lock:
            topic = self.image.topic_by_id(topic_id)
            if topic is None or not 0 <= partition < len(topic.partitions):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no such partition")
            before = topic.partitions[partition]
            self._check_proposer(before, broker_epochs or {})
            after = after_isr_change(
                before,
                tuple(new_isr),
                leader_epoch=leader_epoch,
                partition_epoch=partition_epoch,
                live=self.image.brokers,
                isr_min=topic.config.min_insync_replicas,
            )
            if after != before:
                await self._propose(PartitionChange(topic_id, partition, before, after))
            current = self.image.topic_by_id(topic_id)
            assert current is not None
            return current.partitions[partition]

    def _check_proposer(self, before: PartitionImage, broker_epochs: Mapping[int, int]) -> None:
        if not self.may_act or before.leader != self.broker_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead it")
        for broker_id, epoch in broker_epochs.items():
            broker = self.image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch:
                raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} restarted")

    async def _propose(self, change: PartitionChange) -> None:
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._write_partitions([change], term=self._keeper.term)
            except CoordConflict as conflict:
                await self._keeper.load()
                if conflict.path != nodes.CONTROLLER_EPOCH:
                    break
            else:
                return
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "the partition changed meanwhile")

    async def reserve_producer_ids(self, count: int = PRODUCER_ID_BLOCK) -> range:
        """Producer ids that nobody else gets, ever."""
        for _ in range(_ATTEMPTS_MAX):
            node = await self._coord.get(nodes.PRODUCER_IDS)
            if node is None:
                raise StoreUnavailable(f"{nodes.PRODUCER_IDS} is missing")
            try:
                first = nodes.decode_counter(nodes.PRODUCER_IDS, node)
            except nodes.BadNode as bad:
                raise StoreUnavailable(str(bad)) from bad
            value = nodes.encode_counter(first + count)
            if await self._unless_made([Put(nodes.PRODUCER_IDS, value, node.version)]):
                return range(first, first + count)
        raise StoreUnavailable("too many brokers ask for producer ids at once")


_S = TypeVar("_S", PartitionsSpec, ConfigChange)


def _planned(name: str, plan: Callable[[_S], TopicImage], wanted: _S) -> TopicResult:
    result = TopicResult(name)
    try:
        result.topic = plan(wanted)
        result.topic_id = result.topic.topic_id
    except KafkaError as error:
        result.refuse(error)
    return result


def _create_ops(topic: TopicImage) -> list[Op]:
    return [*_partition_creates(topic, 0), Create(nodes.topic_path(topic.name), _encoded(topic))]


def _partition_creates(topic: TopicImage, start: int) -> list[Op]:
    return [
        Create(nodes.partition_path(topic.topic_id, index), nodes.encode_partition(partition))
        for index, partition in enumerate(topic.partitions)
        if index >= start
    ]


def _alter_ops(before: TopicImage, after: TopicImage) -> list[Op]:
    changed = [
        _put_partition(PartitionChange(before.topic_id, index, old, new))
        for index, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=False))
        if old != new
    ]
    added = _partition_creates(after, len(before.partitions))
    return [*changed, *added, Put(nodes.topic_path(before.name), _encoded(after), before.version)]


def _altered(before: TopicImage, after: TopicImage) -> TopicImage:
    """`after` with the versions that its nodes have once `_alter_ops` are written."""
    kept = [
        replace(new, partition_epoch=old.partition_epoch + 1) if old != new else old
        for old, new in zip(before.partitions, after.partitions, strict=False)
    ]
    added = after.partitions[len(before.partitions) :]
    return replace(after, partitions=(*kept, *added), version=before.version + 1)


def _encoded(topic: TopicImage) -> bytes:
    replicas = tuple(partition.replicas for partition in topic.partitions)
    return nodes.encode_topic(topic.topic_id, replicas, topic.overrides)


def _put_partition(change: PartitionChange) -> Op:
    path = nodes.partition_path(change.topic_id, change.partition)
    return Put(path, nodes.encode_partition(change.after), change.before.partition_epoch)


def _check_change(change: PartitionChange) -> None:
    before, after = change.before, change.after
    rises = after.leader_epoch > before.leader_epoch
    invariant(rises or after.leader_epoch == before.leader_epoch, "a leader epoch went back")
    invariant(rises or after.leader == before.leader, "a new leader without a new epoch")
    invariant(after.leader == NO_LEADER or after.leader in after.isr, "a leader outside the isr")


def _unclean(change: PartitionChange) -> bool:
    leader = change.after.leader
    if leader in {NO_LEADER, change.before.leader}:
        return False
    return leader not in change.before.isr and leader not in change.before.elr
