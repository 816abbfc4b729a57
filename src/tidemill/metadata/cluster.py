"""A broker's part in the cluster: its session with the store, its registration, its image.

The rules of this shell:

- One lock guards everything that reads the store into the image or writes to the store. Inside it
  the image is the newest that this broker has seen. After a successful write the image contains the
  write before the caller continues (T22).
- Only a broker with a lease acts (`lease.py`). A LOST session is replaced, and the broker registers
  again, in a new broker epoch.
- Only the controller writes metadata. A broker says in its registration what has happened to it,
  and the controller draws the conclusions before it lets the broker in (`controller/decisions.py`).

`run` is the loop that follows the watches; the broker starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar, final
from uuid import UUID

from tidemill.core.clock import Clock
from tidemill.core.config.broker_config import BrokerConfig, Endpoint
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import NO_LEADER, ZERO_UUID, TopicId, TopicPartition
from tidemill.core.loop.steps import Steps
from tidemill.core.rng import Rng
from tidemill.metadata.controller.controllership import Controllership
from tidemill.metadata.controller.page_writer import CAS_ATTEMPTS_MAX, PageWriter
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE, Software
from tidemill.metadata.features.level_changes import LevelChange
from tidemill.metadata.founding import try_multi
from tidemill.metadata.image import nodes
from tidemill.metadata.image.image_keeper import ALL, ImageKeeper
from tidemill.metadata.image.image_reader import ImageReader
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.metadata.image.metadata_image import Delta, MetadataImage
from tidemill.metadata.lease import Lease
from tidemill.metadata.log_end_survey import LogEndSurvey
from tidemill.metadata.log_size_survey import LogSizeSurvey
from tidemill.metadata.membership import Membership
from tidemill.metadata.override_writer import OverrideChange, OverrideWriter
from tidemill.metadata.registration import Presence, read_counter
from tidemill.metadata.rules.decisions import (
    leads_what_could_get_lost,
    leads_what_others_could,
)
from tidemill.metadata.rules.topic_planner import (
    ConfigChange,
    PartitionsSpec,
    TopicResult,
    TopicSpec,
)
from tidemill.metadata.software_fit import SoftwareFit
from tidemill.metadata.store.coord import Coord, CoordConflict, Put, SessionState

__all__ = ["Cluster"]

_T = TypeVar("_T")
_log = logging.getLogger("tidemill.metadata")

_RETRY_AFTER_S = 1.0
"""Pause of `run` after the store has failed."""
_LOOK_INTERVAL_S = 0.05
_PRODUCER_ID_BLOCK = 1_000
_ASIDE_S_MAX = 5.0
"""How long this broker waits for others to lead what it led, before it comes back."""


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
        software: Software = THIS_SOFTWARE,
    ) -> None:
        self.live = LiveConfig(config)
        """The configuration that this broker runs with; it follows the image."""
        self._coord = coord
        self._config = config
        self._rng = rng
        self._alarm = alarm
        self.software = software
        """What this broker runs."""
        self._fit = SoftwareFit(config.node_id, alarm)
        self._keeper = ImageKeeper(coord, ImageReader(self.live, alarm))
        writer = PageWriter(coord, self._keeper)
        self.survey = LogEndSurvey(lambda: self.image, clock)
        """Finds out where logs end while this broker is the controller; the broker runs it."""
        self.log_sizes = LogSizeSurvey(lambda: self.image, clock)
        """The same for how large they are, when it plans moves."""
        self._controller = Controllership(
            coord,
            self._keeper,
            writer,
            self.live,
            clock=clock,
            alarm=alarm,
            told=self.survey.of,
            try_sizes=self.log_sizes.try_sizes,
            software=software,
        )
        self.survey.told = self._controller.look_at
        self.survey.is_wanted = lambda: self.is_controller
        self._keeper.subscribe(self.survey.follow)
        self._overrides = OverrideWriter(self._keeper, self._controller.write, self.live)
        self._lease = Lease(coord, clock)
        self._membership = Membership(
            coord,
            self._keeper,
            self._lease,
            broker_id=config.node_id,
            rng=rng,
            software=software,
            store=config.zookeeper.where or config.store_path,
        )
        self._keeper.subscribe(self._membership.follow)
        self._keeper.subscribe(self._fit.follow)
        self._lock = asyncio.Lock()
        self._clock = clock
        self._closed = False
        self._is_aside = False
        """Whether it stays away from the cluster for a moment, so that others lead."""
        self._looked_at = float("-inf")

    @property
    def broker_id(self) -> int:
        return self._config.node_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of the last registration."""
        return self._membership.broker_epoch

    @property
    def version(self) -> tuple[int, int]:
        """Of the metadata that this broker knows; the higher one is newer."""
        return self._keeper.head.version

    @property
    def image(self) -> MetadataImage:
        return self._keeper.image

    @property
    def lease(self) -> Lease:
        """What owners ask before they act."""
        return self._lease

    @property
    def may_act(self) -> bool:
        """Whether this broker may act as an owner right now."""
        return self._lease.may_act

    @property
    def last_end_is_counted(self) -> bool:
        """Whether no unclean end of this broker is left that the controller has to hear of."""
        return not self._membership.presence.unclean

    @property
    def metadata_seq(self) -> int:
        """The number of the last write that this broker's image contains."""
        return self._keeper.head.seq

    @property
    def is_controller(self) -> bool:
        return self._controller.term is not None and self._lease.is_held

    @property
    def knows_all_topics(self) -> bool:
        """Whether the image lacks none: every page could be read, and nothing newer is known of."""
        return self._keeper.topics_readable and not self._keeper.behind

    def own_logs(self) -> Collection[tuple[UUID, int]] | None:
        """Topic id and number of each partition of this broker; None: the image may lack one."""
        if not self.may_act or not self.knows_all_topics:
            return None
        return {
            (topic.topic_id, index)
            for topic in self.image.topics.values()
            for index, partition in enumerate(topic.own_partitions)
            if self.broker_id in partition.replicas
        }

    def subscribe(self, on_delta: Callable[[Delta], None]) -> None:
        """Call `on_delta` with every change of the image, on the event loop, at once."""
        self._keeper.subscribe(on_delta)

    def subscribe_in_steps(self, follow: Callable[[Delta], Steps[None]]) -> None:
        """The same for long work; it is done before the next change, and before the answer."""
        self._keeper.subscribe_in_steps(follow)

    # --- start, run, close -----------------------------------------------------------------------

    async def identify(self, own_id: str = "") -> str:
        """The cluster's id before joining: a data directory of another cluster is refused.

        `own_id`: the cluster that the logs here are of, if there are any: then no other is founded.
        """
        self._membership.own_id = own_id
        async with self._lock:
            await self._membership.connect()
            return self.image.cluster_id

    async def start(
        self,
        advertised: Endpoint,
        *,
        unclean: bool,
        internal: Endpoint | None = None,
        directory_id: UUID = ZERO_UUID,
        seen: tuple[int, int] = (0, 0),
    ) -> None:
        """Join the cluster. `unclean`: the logs may have lost unflushed records.

        Other brokers reach this one at `internal`. `seen` is a version of the metadata that an
        earlier life has seen. UserError if another broker has our id, or the store is not a usable
        one, or an older one.
        """
        self._membership.seen = seen
        self._membership.presence = Presence(
            advertised=advertised,
            internal=internal,
            rack=self._config.broker_rack,
            directory_id=directory_id,
            unclean=unclean,
        )
        self._keeper.watch()
        self._coord.on_state(self._session_changed)
        async with self._lock:
            await self._join()
        await self.catch_up()

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            await self._wait_for_work()
            try:
                await self.catch_up()
            except StoreUnavailable as error:
                self._alarm(f"metadata: {error}")
                await asyncio.sleep(_RETRY_AFTER_S)
                self._keeper.wakeup.set()

    async def _wait_for_work(self) -> None:
        # Without a connection it would look again and again, and see nothing.
        is_connected = self._coord.state is SessionState.CONNECTED
        due = self._controller.look_again_at if is_connected else None
        # A controller without a lease decides nothing: it does not look again at once either.
        least_s = 0.0 if self.is_controller else _RETRY_AFTER_S
        wait_s = None if due is None else max(least_s, due - self._clock.monotonic())
        try:
            async with asyncio.timeout(wait_s):
                await self._keeper.wakeup.wait()
        except TimeoutError:
            # Settings that a person has put back are announced by no watch.
            self._keeper.mark(nodes.BROKERS if self._keeper.knows_settings else ALL)
        self._keeper.wakeup.clear()

    async def catch_up(self) -> None:
        """Read all changes that watches announced, and react to them."""
        while self._needs_work():
            async with self._lock:
                if not self._needs_work():  # closed while this waited for the lock
                    return
                await self._keep_place()
                await self._keeper.refresh()
                if self._membership.is_removed:
                    self._begin_anew()
                try:
                    await self._react()
                except BaseException:
                    self._keeper.serve_again()  # no watch says again what was read
                    raise

    async def read_newest(self) -> None:
        """Read everything that was written before this call, also by other brokers (T22)."""
        self._keeper.want_newest()
        await self.catch_up()

    def try_take_look(self) -> bool:
        """Whether it is worth reading the newest for something that the image lacks.

        Never on the controller, which knows its own changes; elsewhere at most twenty times a
        second, whatever clients ask for.
        """
        now = self._clock.monotonic()
        if self.is_controller or now - self._looked_at < _LOOK_INTERVAL_S:
            return False
        self._looked_at = now
        return True

    async def leave(self) -> None:
        """Say that this broker is about to stop; the controller moves its leaderships away."""
        self._membership.presence = replace(self._membership.presence, leaving=True)
        await self.catch_up()

    async def wait_left(self) -> None:
        """Wait until `has_left`, while `run` follows the store."""
        changed = asyncio.Event()
        self.subscribe(lambda _delta: changed.set())
        while not self.has_left:
            changed.clear()
            await changed.wait()

    @property
    def has_left(self) -> bool:
        """Whether nothing is led here any more that another broker could lead."""
        return not leads_what_others_could(self.image, self.broker_id)

    def report_unheard(self, controller_epoch: int) -> None:
        """Say in the registration that this controller does not answer us; -1: one does."""
        said = self._membership.presence
        if said.unheard_controller != controller_epoch:
            self._membership.presence = replace(said, unheard_controller=controller_epoch)
            self._keeper.wakeup.set()

    async def step_aside(self) -> None:
        """Let others lead what they can lead, as if this broker had died; then come back."""
        self._is_aside = True
        try:
            async with asyncio.timeout(_ASIDE_S_MAX):
                if await self._try_withdraw():
                    self._alarm(
                        "this broker gets no answer from the controller: it steps aside, so that "
                        "others lead what they can"
                    )
                    await self._wait_leads_nothing()
        except TimeoutError:
            self._alarm("others did not take over what this broker led: it comes back all the same")
        except (CoordConflict, StoreUnavailable) as error:
            self._alarm(f"others may not lead what this broker led: {error}")
        finally:
            self._is_aside = False
            self._keeper.wakeup.set()

    async def _try_withdraw(self) -> bool:
        """Leave the cluster unless an unclean election would follow, as the store says now."""
        async with self._lock:
            await self._keeper.load(newest=True)
            if leads_what_could_get_lost(self.image, self.broker_id):
                self._alarm("this broker does not step aside: others would lead with fewer records")
                return False
            self._controller.step_down()
            await self._membership.withdraw()
            return True

    async def _wait_leads_nothing(self) -> None:
        def leads() -> bool:
            return any(
                partition.leader == self.broker_id
                for topic in self.image.topics.values()
                for partition in topic.own_partitions
            )

        while leads():  # noqa: ASYNC110 - rare
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def disk_failed(self) -> None:
        """The data directory is offline: this broker counts as dead from now on."""
        self._membership.presence = replace(self._membership.presence, failed=True)
        self._keeper.wakeup.set()

    async def close(self) -> None:
        """Leave the cluster; other brokers take over what this one led."""
        async with self._lock:
            self._closed = True
            self._resign()
            await self._coord.close()

    def _needs_work(self) -> bool:
        if self._closed or self._coord.state is SessionState.SUSPENDED:
            return False
        if self._is_aside:  # without a session it cannot look, and begins none before it returns
            return self._keeper.has_news and self._coord.state is not SessionState.LOST
        return self._keeper.has_news or not self._membership.is_current

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._resign()
        self._keeper.wakeup.set()

    def _resign(self) -> None:
        self._membership.resign()
        self._controller.step_down()

    async def _join(self) -> None:
        self._controller.step_down()  # no office lasts longer than a registration
        await self._membership.join()
        await self._react()

    async def _keep_place(self) -> None:
        """Join again if there is no registration; else let it say what it should."""
        if self._is_aside:
            return
        if not self._lease.registered:
            await self._join()
        elif not self._membership.is_current:
            try:
                await self._membership.update()
            except CoordConflict:
                self._begin_anew()

    def _begin_anew(self) -> NoReturn:
        """Stop acting at once, and register again in a moment."""
        self._resign()
        raise StoreUnavailable("the registration of this broker was removed") from None

    async def _react(self) -> None:
        """Do what the newest image requires of this broker: step down, campaign or control."""
        if self._controller.term != self._keeper.term:
            self._controller.step_down()
        if self._lease.registered and self._controller.term is None:
            if self.image.controller_broker_id == NO_LEADER:
                if self._fit.may_control and not self._keeper.has_bad_controller:
                    await self._controller.office.campaign(self.broker_epoch)
            elif self.image.controller_broker_id == self.broker_id:
                await self._controller.office.resume(self.broker_epoch)
        if self.is_controller:
            await self._controller.serve()
        else:
            self._controller.postpone()

    # --- only on the controller (KafkaError NOT_CONTROLLER elsewhere) ----------------------------

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create topics; one result each, in order (T21)."""
        topic_ids = [TopicId(self._rng.uuid()) for _ in specs]
        return await self._as_controller(
            lambda term: self._controller.topics.create(
                specs, topic_ids, validate_only=validate_only, term=term
            )
        )

    async def delete_topics(self, topics: Sequence[str | UUID]) -> list[TopicResult]:
        """Delete topics by name or id; the `topic` of a result is what was deleted."""
        return await self._as_controller(
            lambda term: self._controller.topics.delete(topics, term=term)
        )

    async def create_partitions(
        self, specs: Sequence[PartitionsSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Give topics more partitions; one result each, in order."""
        return await self._as_controller(
            lambda term: self._controller.topics.add_partitions(
                specs, validate_only=validate_only, term=term
            )
        )

    async def alter_topic_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Change topic keys (T57); one result each, in order."""
        return await self._as_controller(
            lambda term: self._controller.topics.configure(
                changes, validate_only=validate_only, term=term
            )
        )

    async def alter_overrides(
        self, changes: Sequence[OverrideChange], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Change keys of brokers or of groups; one result each, in order."""
        return await self._as_controller(
            lambda term: self._overrides.alter(changes, validate_only=validate_only, term=term)
        )

    async def alter_isr(
        self, sender_id: int, sender_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[IsrAnswer]:
        """Change in-sync sets as their leader proposes; one answer each, in order.

        StoreUnavailable: each of them may be made or not. Without proposals it is a question
        whether this is the controller, and waits for no other work.
        """
        if not proposals and self.is_controller:
            self._controller.partitions.check_sender(sender_id, sender_epoch)
            return []
        return await self._as_controller(
            lambda term: self._controller.partitions.alter_isr(
                sender_id, sender_epoch, proposals, term=term
            )
        )

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[KafkaError | None]:
        """Hold elections that somebody asks for; per partition why there was none.

        Preferred: the first replica leads. `unclean`: any replica, where there is no leader; the
        one with the longest log, if none is certain. Each partition is named once.
        """
        if unclean:
            await self.survey.ask_about(partitions)
        return await self._as_controller(
            lambda term: self._controller.partitions.elect(partitions, unclean=unclean, term=term)
        )

    async def choose_leader(
        self, partition: TopicPartition, leader: int, *, in_epoch: int
    ) -> KafkaError | None:
        """Let the log of one replica win, as a person has decided; why that was refused."""
        return await self._as_controller(
            lambda term: self._controller.partitions.choose_leader(
                partition, leader, in_epoch=in_epoch, term=term
            )
        )

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> list[KafkaError | None]:
        """Move replicas to other brokers, or without a target stop that; why one was refused."""
        return await self._as_controller(
            lambda term: self._controller.partitions.reassign(targets, term=term)
        )

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that is gone for good. KafkaError: it is not, or holds replicas."""
        await self._as_controller(lambda term: self._controller.unregister(broker_id, term=term))

    async def change_levels(
        self, changes: Sequence[LevelChange], *, validate_only: bool = False
    ) -> dict[str, KafkaError]:
        """Change finalized levels of features, all or none; by feature why it was refused."""
        return await self._as_controller(
            lambda term: self._controller.change_levels(
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

    # --- what any broker does for itself ---------------------------------------------------------

    async def check_overrides(self, changes: Sequence[OverrideChange]) -> list[TopicResult]:
        """What this broker says of changes of its own keys, before the controller makes them."""
        async with self._lock:
            return await self._overrides.check(changes)

    async def reserve_producer_ids(self, count: int = _PRODUCER_ID_BLOCK) -> range:
        """Reserve a block of producer ids that no other broker ever gets."""
        for _ in range(CAS_ATTEMPTS_MAX):
            first, version = await read_counter(self._coord, nodes.PRODUCER_IDS)
            value = nodes.encode_counter(first + count)
            if await try_multi(self._coord, [Put(nodes.PRODUCER_IDS, value, version)]):
                return range(first, first + count)
        raise StoreUnavailable("too many brokers ask for producer ids at once")
