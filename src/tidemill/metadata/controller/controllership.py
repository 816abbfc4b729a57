"""The work of the controller: the shell around the decisions of `metadata/rules`.

- Every write checks the term (I33, `office.py`): the writes of a deposed controller fail.
- A write that failed puts the image in doubt: before the next one everything is read again, after
  an unknown outcome was settled (`page_writer.py`).

All methods but `look_at` are called with the cluster's lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import final
from uuid import UUID

from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE, RETURNS_WAIT_S
from tidemill.core.logs import listed
from tidemill.core.loop.pacing import Pacer, run_steps
from tidemill.metadata.controller.office import Office
from tidemill.metadata.controller.page_writer import CAS_ATTEMPTS_MAX, PageWriter, PartTooLarge
from tidemill.metadata.controller.partition_changes import PartitionChanges
from tidemill.metadata.controller.topic_changes import TopicChanges
from tidemill.metadata.features.feature_levels import Software
from tidemill.metadata.features.level_changes import LevelChange, planned_levels
from tidemill.metadata.image import nodes
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.image_keeper import ALL, ImageKeeper
from tidemill.metadata.image.metadata_image import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    Delta,
    MemberImage,
    MetadataImage,
    PartitionImage,
    Return,
    TopicImage,
)
from tidemill.metadata.image.overrides import broker_owner
from tidemill.metadata.rules.cluster_upkeep import ClusterUpkeep, TrySizes
from tidemill.metadata.rules.decisions import (
    Told,
    let_in,
    missing_members,
    reconcile,
    returns,
    tellable_pages,
    with_share,
    without_member,
)
from tidemill.metadata.rules.election import PartitionChange
from tidemill.metadata.rules.former_leaders import FormerLeaders
from tidemill.metadata.rules.placement import ClusterLoad
from tidemill.metadata.rules.store_writes import (
    altered_topic,
    put_changes,
    with_minimum_in_force,
)
from tidemill.metadata.rules.topic_planner import TopicPlanner, TopicResult
from tidemill.metadata.special_topics.internal_topics import internal_partitions, wrong_keys
from tidemill.metadata.store.coord import Coord, CoordConflict

__all__ = ["Controllership"]

log = logging.getLogger(__name__)


@final
class Controllership:
    """How this broker becomes the controller, and what it does while it is."""

    def __init__(
        self,
        coord: Coord,
        keeper: ImageKeeper,
        writer: PageWriter,
        live: LiveConfig,
        *,
        clock: Clock,
        alarm: Callable[[str], None],
        told: Told,
        try_sizes: TrySizes,
        software: Software,
    ) -> None:
        self._keeper = keeper
        self._writer = writer
        self._live = live
        self._clock = clock
        self._alarm = alarm
        self._software = software
        self._load = ClusterLoad()
        self._told = told
        self.topics = TopicChanges(keeper, self._planner, self.write)
        self.partitions = PartitionChanges(
            keeper,
            self.change_partitions,
            is_writable=self.topics.is_writable,
            led_lately=self._led_lately,
            told=told,
        )
        self._former_leaders = FormerLeaders()
        self._upkeep = ClusterUpkeep(try_sizes)
        self._moving: set[str] = set()
        """Topics of which a partition is being moved."""
        self._returns_awaited_until: float | None = None
        self._has_just_come = False
        """Into office: it has not looked for missing members yet."""
        self.look_again_at: float | None = None
        """When it must serve again although nothing has changed; a monotonic time."""
        self._kept_out: dict[int, str] = {}
        """Registered brokers that are not let in because of their software, and why."""
        self._in_doubt = False
        self._all_unserved = True
        self._unserved: set[str] = set()
        """Topics that changed since the last election round; `_all_unserved` means all topics."""
        self._heard_of: set[str] = set()
        """Topics of whose logs more is known; that may happen while a round writes."""
        keeper.subscribe(self._follow)
        keeper.subscribe_in_steps(self._load.follow)
        self.office = Office(
            coord,
            keeper,
            broker_id=live.static.node_id,
            clock=clock,
            alarm=alarm,
            look_again=self._look_again,
            taken=self._took_office,
            left=self._left_office,
        )

    @property
    def _image(self) -> MetadataImage:
        return self._keeper.image

    def _follow(self, delta: Delta) -> None:
        if delta.brokers_changed or delta.features_changed:
            self._all_unserved = True
        if self.term is not None:
            self._unserved.update(delta.topics_changed)
            self._former_leaders.follow(delta, self._clock.monotonic())
            self._upkeep.follow(delta, self._live.current, self._clock.monotonic())
        self._moving.difference_update(gone.name for gone in delta.topics_deleted)
        for name in delta.topics_changed:
            is_moving = any(one.is_moving for one in delta.after.topics[name].own_partitions)
            (self._moving.add if is_moving else self._moving.discard)(name)

    def _led_lately(self, topic_id: UUID, index: int, partition: PartitionImage) -> Collection[int]:
        return self._former_leaders.of(topic_id, index, partition, self._clock.monotonic())

    # --- in office -------------------------------------------------------------------------------

    @property
    def term(self) -> int | None:
        """Of this controller; None: this broker is not the controller, as far as it knows."""
        return self.office.term

    def step_down(self) -> None:
        self.office.step_down()

    def _took_office(self) -> None:
        now = self._clock.monotonic()
        self._in_doubt = True
        self._all_unserved = True
        self._returns_awaited_until = now + RETURNS_WAIT_S
        self._has_just_come = True
        self._former_leaders.took_office(now)
        self._upkeep.took_office(self._image, self._live.current, now)
        self._report_offsets_partitions()

    def _left_office(self) -> None:
        self.look_again_at = None

    def _report_offsets_partitions(self) -> None:
        """Say once a term that the configured number is not the one in use."""
        topic = self._image.topic(OFFSETS_TOPIC)
        wanted = internal_partitions(OFFSETS_TOPIC, self._live.static)
        if topic is not None and len(topic.partitions) != wanted:
            self._alarm(
                f"{OFFSETS_TOPIC} keeps its {len(topic.partitions)} partitions, although "
                f"offsets.topic.num.partitions={wanted}: groups are found by a hash over the number"
            )

    async def serve(self) -> None:
        """React to the newest image: settle any doubt, elect where a leader is missing."""
        for _ in range(CAS_ATTEMPTS_MAX):
            if self.term is None:
                return
            try:
                await self.settle()
                await self._mend_internal_topics(self.term)
                await self._store_minimums(self.term)
                await self._elect(self.term)
                await self._keep_up(self.term)
                await self.office.maybe_give_up()
            except CoordConflict as conflict:
                self.conflict(conflict)
            else:
                return
        raise StoreUnavailable("the metadata changes too fast to be served")

    def postpone(self) -> None:
        """A controller without a lease decides nothing; no watch tells when it has one again."""
        if self.term is not None:
            self.look_again_at = self._clock.monotonic()

    async def _elect(self, term: int) -> None:
        """Let brokers in, and bring partitions in line with those that live."""
        image, unread = self._image, self._keeper.unread_pages
        awaited = self._awaited(image)
        returned = returns(image)
        if not self._keeper.is_readable(nodes.MEMBERS):
            if not _knows_all_returns(image):
                return
            returned = {}  # nobody can be let in: what that means would be decided again and again
        self._unserved |= self._heard_of
        self._heard_of.clear()
        topics: Collection[TopicImage] = image.topics.values()
        if not self._all_unserved and not returned and not tellable_pages(image, unread):
            topics = [image.topics[name] for name in sorted(self._unserved & image.topics.keys())]
        changes = await run_steps(
            reconcile(
                image,
                topics,
                returned=returned,
                waited_for=awaited,
                led_lately=self._led_lately,
                told=self._told,
            )
        )
        self._report_new_disks(returned)
        self._report_kept_out(image)
        await self.change_partitions(changes, term=term, members=let_in(image, unread))
        self._all_unserved = bool(awaited)
        self._unserved = set(self._moving)
        if self._moving:
            self._look_again(self._former_leaders.forgotten_at(self._clock.monotonic()))

    def look_at(self, topics: Collection[str]) -> None:
        """More is known of the logs of these topics: perhaps one can be elected now.

        The only method that is called without the lock.
        """
        self._heard_of.update(topics)
        self._keeper.serve_again()

    async def _keep_up(self, term: int) -> None:
        """Do what nobody asks for: drain, remake, balance."""
        now, config = self._clock.monotonic(), self._live.current
        unread = self._keeper.unread_pages
        plan = await run_steps(self._upkeep.plan(self._image, config, now, unread))
        moved = await self.partitions.reassign(plan.moves, term=term)
        led = await self.partitions.elect(plan.elections, unclean=False, term=term)
        _tell("moving the replicas of %d partitions", moved)
        _tell("gave %d partitions back to their first replicas", led)
        if plan.have_share and self._keeper.is_readable(nodes.MEMBERS):
            draft = ImageDraft(self._image)
            draft.set_members(with_share(self._image, plan.have_share))
            await self.write(draft, term=term)
        self._look_again(self._upkeep.due_at(self._image, config, now))

    def _look_again(self, at: float | None) -> None:
        if at is not None:
            self.look_again_at = at if self.look_again_at is None else min(at, self.look_again_at)

    async def _store_minimums(self, term: int) -> None:
        """Store the min.insync.replicas in force where it is another one than was stored."""
        image = self._image
        names = image.topics.keys() if self._all_unserved else self._unserved & image.topics.keys()
        draft = ImageDraft(image)
        for name in sorted(names):
            topic = image.topics[name]
            after = with_minimum_in_force(topic)
            if after is not topic and self.topics.is_writable(topic.topic_id):
                draft.put_topic(await run_steps(altered_topic(topic, after)))
        await self.write(draft, term=term)

    def _awaited(self, image: MetadataImage) -> frozenset[int]:
        """Members that are missing but do not count as dead yet.

        If several are missing when the controller takes office, the store itself has probably
        failed and ended all sessions: they come back in a moment.
        """
        self.look_again_at = None
        until = self._returns_awaited_until
        if until is not None and self._clock.monotonic() < until:
            missing = missing_members(image)
            if len(missing) > (1 if self._has_just_come else 0):
                self._has_just_come = False
                self.look_again_at = until
                return missing
        self._returns_awaited_until = None
        return frozenset()

    def _report_new_disks(self, returned: Mapping[int, Return]) -> None:
        for broker_id, how in returned.items():
            if how is Return.NEW_DISK:
                self._alarm(
                    f"broker {broker_id} has another data directory than before: it counts as "
                    "empty, and partitions of which it had the only copy have no leader"
                )

    def _report_kept_out(self, image: MetadataImage) -> None:
        """Say once of each broker that its software is too old, or too new."""
        found = {one.broker_id: image.why_kept_out(one) for one in image.brokers.values()}
        reasons = {broker_id: why for broker_id, why in found.items() if why is not None}
        for broker_id, why in reasons.items():
            if self._kept_out.get(broker_id) != why:
                self._alarm(f"{why}; until then it stays fenced")
        self._kept_out = reasons

    async def _mend_internal_topics(self, term: int) -> None:
        """Give internal topics their coordinators' settings where theirs would lose state."""
        results: list[TopicResult] = []
        for name in sorted(INTERNAL_TOPICS & self._image.topics.keys()):
            topic = self._image.topics[name]
            wrong = wrong_keys(name, topic.overrides)
            if wrong:
                mended = self._planner().plan_mending(topic)
                self._alarm(_mending_line(topic, mended, wrong))
                results.append(TopicResult(name, mended))
        if results:
            await self.topics.put(results, term=term)

    async def settle(self) -> None:
        """If the image is in doubt, settle the last write and read everything."""
        if not self._in_doubt and not self._keeper.in_doubt:
            await self._keeper.read_bad_again()
            return
        await self._writer.settle()
        await self._keeper.load()
        self._in_doubt = False

    def conflict(self, conflict: CoordConflict) -> None:
        """After a conflicting write: read everything, and step down if we were deposed."""
        self._keeper.mark(ALL)
        if conflict.path == nodes.CONTROLLER_EPOCH:
            self.step_down()

    # --- writing ---------------------------------------------------------------------------------

    async def write(self, draft: ImageDraft, *, term: int, bounded: bool = False) -> None:
        """Write what the draft changes, and publish it; see `PageWriter.write`."""
        try:
            await self._writer.write(draft, term=term, bounded=bounded)
        except PartTooLarge:
            raise
        except BaseException:
            self._in_doubt = True
            raise

    async def change_partitions(
        self,
        changes: Sequence[PartitionChange],
        *,
        term: int,
        members: Mapping[int, MemberImage] | None = None,
    ) -> None:
        """Write and publish partition states; what is on a page that cannot be read stays."""
        writable = [one for one in changes if self.topics.is_writable(one.topic_id)]
        draft, pacer = ImageDraft(self._image), Pacer(1)
        for start in range(0, len(writable), PARTITIONS_CHANGED_PER_SLICE):
            await pacer.step()
            put_changes(draft, writable[start : start + PARTITIONS_CHANGED_PER_SLICE])
        if members is not None and self._keeper.is_readable(nodes.MEMBERS):
            draft.set_members(members)
        names = self._image.names
        await self.write(draft, term=term)
        for line in _uncertain_elections(writable, names):
            self._alarm(line)

    async def unregister(self, broker_id: int, *, term: int) -> None:
        """Forget a broker that is gone for good, and what was set for it. KafkaError: refused."""
        if not self._keeper.topics_readable:
            detail = "a page of the metadata cannot be read, and may name this broker"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail)
        draft = ImageDraft(self._image)
        draft.set_members(without_member(self._image, broker_id))
        draft.drop_overrides(broker_owner(broker_id))
        await self.write(draft, term=term)

    async def change_levels(
        self, changes: Sequence[LevelChange], *, validate_only: bool, term: int
    ) -> dict[str, KafkaError]:
        """Change finalized levels of features, all or none; by feature why it was refused."""
        self._keeper.mark(nodes.BROKERS)
        await self._keeper.refresh()  # who has just come counts
        self._keeper.serve_again()  # and waits to be let in
        image = self._image
        known: dict[int, Software | None] = {
            **dict.fromkeys(image.members),
            **{one.broker_id: one.software for one in image.brokers.values()},
        }
        plan = planned_levels(
            image.features,
            changes,
            own=self._software,
            known=known,
            next_epoch=image.features_epoch + 1,
        )
        if not plan.refusals and not validate_only:
            draft = ImageDraft(image)
            draft.features = plan.after
            await self.write(draft, term=term)
        return plan.refusals

    def _planner(self) -> TopicPlanner:
        defaults = self._keeper.topic_defaults
        return TopicPlanner(self._image, self._load.copy(), self._live.current, defaults)


def _knows_all_returns(image: MetadataImage) -> bool:
    """Whether members that cannot be read now were read before, and all their returns are told."""
    return bool(image.members) and not any(one.untold for one in image.members.values())


def _tell(what: str, refusals: Sequence[KafkaError | None]) -> None:
    count = sum(refusal is None for refusal in refusals)
    if count:
        log.info(what, count)


def _mending_line(topic: TopicImage, mended: TopicImage, wrong: Sequence[str]) -> str:
    changes = ", ".join(
        f"{key}={topic.overrides.get(key, '(not set)')} becomes {mended.overrides[key]}"
        for key in wrong
    )
    return f"{topic.name} had settings that lose the state in it: {changes}"


def _uncertain_elections(
    changes: Sequence[PartitionChange], names: Mapping[UUID, str]
) -> Iterator[str]:
    """A line for each kind of leaders that were not certain to have everything."""
    longest, unclean = list[str](), list[str]()
    for change in changes:
        if _is_unclean(change):
            leader = change.after.leader
            found = longest if leader in change.before.suspects else unclean
            found.append(f"{names[change.topic_id]}-{change.partition} (broker {leader})")
    if longest:
        yield (
            "no replica ended cleanly, so the one with the longest log leads; what was "
            f"acknowledged before it was on that disk may be missing: {listed(longest)}"
        )
    if unclean:
        yield (
            "led by a replica that was not in sync; acknowledged records that it lacks are lost: "
            f"{listed(unclean)}"
        )


def _is_unclean(change: PartitionChange) -> bool:
    leader = change.after.leader
    if leader in {NO_LEADER, change.before.leader}:
        return False
    return leader not in change.before.isr and leader not in change.before.elr
