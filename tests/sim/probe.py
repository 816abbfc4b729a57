"""Looks into the brokers after every event of a run, and keeps the first promise that is broken.

What it checks, for the partitions of a topic that is never deleted:

- I8   a leader without a lease, for which its followers vouch, acts only while nobody else does
- I9   on one leader in one epoch the high watermark never goes back; durable <= HW <= log end
- I11  no two brokers lead a partition in one epoch
- I12  a new leader has every offset below every high watermark that any leader has had
- I13  during its life a replica's log never ends below what it knew to be committed and has
       flushed, unless an unclean election was wanted, or the log is new or empty
- I14  every member of the in-sync set that was let in has what the leader's marks say, and every
       one has flushed up to the durable offset; the high watermark stands still while the set is
       too small
- I33  every write of metadata in the store is by the session that took office last
- I23  on one leader in one epoch the last stable offset never goes back, nor beyond the watermark

It changes nothing and reads only what tests may read: a run with it is the run without it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from tidemill.broker import Broker
from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.head import PARTS
from tidemill.metadata.image.metadata_image import NO_EPOCH, PartitionImage
from tidemill.metadata.image.nodes import CONTROLLER_EPOCH
from tidemill.metadata.store.coord import Check, Op
from tidemill.metadata.store.memory_store import MemoryCoord
from tidemill.replication.partition import Partition
from tidemill.storage.log.interface import PartitionLog
from tidemill.testing.sim.world import SimWorld

__all__ = ["InvariantBroken", "Probe"]

FOLLOWER_FIELDS = 5
_Sample = tuple[int, int, int, bool, int]
"""Epoch, high watermark, log end, whether too few are in sync, and the last stable offset."""


class InvariantBroken(AssertionError):
    """A promise was broken during the run; the text says which, when and where."""


class _BrokerSample:
    """What the checks depend on in one broker: with equal samples they come to the same."""

    __slots__ = ("by_partition", "of_all")

    def __init__(self, broker: Broker, partitions: Sequence[TopicPartition]) -> None:
        cluster, find = broker.cluster, broker.replicas.find
        self.of_all = (broker, cluster.image, cluster.lease.fenced)
        self.by_partition = [_sampled(find(topic, number)) for topic, number in partitions]


def _sampled(copy: Partition | None) -> tuple[object, ...]:
    if copy is None:
        return ()
    log = copy.log
    if not copy.is_leader:
        return (
            copy,
            copy.leader_epoch,
            log.log_end_offset,
            log.flushed_offset,
            copy.high_watermark,
        )
    return (
        copy,
        copy.leader_epoch,
        log.log_end_offset,
        log.flushed_offset,
        copy.isr,
        copy.effective_in_sync_min,
        copy.last_stable_offset(),
        copy.high_watermark,
        copy.durable_offset,
    )


class Probe:
    """The eyes of a run."""

    def __init__(self, world: SimWorld, partitions: Sequence[TopicPartition]) -> None:
        self._world = world
        self.partitions = partitions
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._told: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, dict[Partition, _Sample]] = {}
        self._committed: dict[tuple[TopicPartition, int], tuple[PartitionLog, int, int]] = {}
        """A replica's log, what it must keep, and the newest unclean election at that time."""
        self._lost: dict[TopicPartition, set[int]] = defaultdict(set)
        """Brokers that lost power when they last ended, or as suspects before that."""
        self._replicas: dict[TopicPartition, tuple[int, ...]] = {}
        self.all_lost: Callable[[], None] = lambda: None
        """Called when a move has left nobody who has all that was readable."""
        self._samples: dict[int, _BrokerSample] = {}
        """By broker: all that the checks depend on, when they were last made."""
        self._brokers: Mapping[int, Broker] = {}
        self._stale_hosts_seen = 0
        self._led_twice: set[TopicPartition] = set()
        self.broken: str | None = None
        self.stale_hosts = 0
        """Hosts whose clock stood still a moment ago: they may act for longer than they should."""
        world.trace.probe = self.look
        self._office: MemoryCoord | None = None
        """The session that last wrote the controller epoch."""
        self._change_store = world.coord.multi
        world.coord.multi = self._watch_store  # type: ignore[method-assign]  # of this world only

    def check(self) -> None:
        if self.broken is not None:
            raise InvariantBroken(self.broken)

    def forget_told(self) -> None:
        """Records that were readable but not flushed may be lost now (I8)."""
        self._told.clear()
        self._last.clear()
        self._samples.clear()
        self._brokers = {}

    @property
    def elections(self) -> int:
        """How many leaders it has seen, each in its epoch."""
        return len(self._leaders)

    def told(self, partition: TopicPartition) -> int:
        """The highest mark that any leader has had: nobody reads at or above it."""
        return self._told.get(partition, 0)

    def killed(self, broker_id: int, *, power_loss: bool) -> bool:
        """Whether nobody is left, in some partition, who has all that was readable."""
        known = self._world.known_brokers()
        images = {one: self._newest(one, known) for one in self.partitions}
        for partition, image in images.items():
            lost = self._lost[partition]
            if power_loss:
                lost.add(broker_id)
            elif image is not None and broker_id not in image.suspects:
                lost.discard(broker_id)  # it had all, and has it still
        return power_loss and any(
            self._have_all_lost(partition, image)
            for partition, image in images.items()
            if image is not None
        )

    def _has_lost(self, broker_id: int, partition: TopicPartition, image: PartitionImage) -> bool:
        """Whether it has lost what was not flushed, since it was certain to have everything."""
        if self._world.has_lost_power(broker_id):
            return True
        is_back = broker_id in image.suspects or self._is_fenced(broker_id)
        return is_back and broker_id in self._lost[partition]

    def _is_fenced(self, broker_id: int) -> bool:
        return self._world.broker(broker_id).cluster.lease.fenced

    def look(self) -> None:
        """Make the checks of all partitions for which they may come to something else now."""
        ran = self._world.ran_brokers()
        if self.broken is not None:
            return
        brokers = self._world.up_brokers()
        if brokers is not self._brokers or self.stale_hosts != self._stale_hosts_seen:
            self._brokers, self._stale_hosts_seen = brokers, self.stale_hosts
            self._samples.clear()
            ran = brokers
        changed = self._sample(ran)
        if changed:
            self._led_twice = self._find_led_twice()
        if changed or self._led_twice:  # whether two leaders act depends on the time, too
            for partition in self.partitions:
                if partition in changed or partition in self._led_twice:
                    self._look_at(partition, brokers)

    def _sample(self, ran: Mapping[int, Broker]) -> set[TopicPartition]:
        """Note the state of these brokers; the partitions of which something is different."""
        changed: set[TopicPartition] = set()
        for broker_id, broker in ran.items():
            before = self._samples.get(broker_id)
            now = self._samples[broker_id] = _BrokerSample(broker, self.partitions)
            if before is None or now.of_all != before.of_all:
                changed.update(self.partitions)
            elif now.by_partition != before.by_partition:
                pairs = zip(before.by_partition, now.by_partition, strict=True)
                different = [old != new for old, new in pairs]
                changed.update(compress(self.partitions, different))
        return changed

    def _find_led_twice(self) -> set[TopicPartition]:
        """A sample of a leader is longer than one of a follower."""
        led = Counter(
            one
            for sample in self._samples.values()
            for one, state in zip(self.partitions, sample.by_partition, strict=True)
            if len(state) > FOLLOWER_FIELDS
        )
        return {one for one, count in led.items() if count > 1}

    def _look_at(self, partition: TopicPartition, brokers: Mapping[int, Broker]) -> None:
        copies = {
            broker_id: copy
            for broker_id, broker in brokers.items()
            if (copy := broker.replicas.find(*partition)) is not None
        }
        newest = self._newest(partition, brokers)
        if newest is not None:
            self._follow_move(partition, newest)
        self._check_kept(partition, copies, newest)
        last = self._last.get(partition, {})
        now: dict[Partition, _Sample] = {}
        for broker_id, copy in copies.items():
            if not copy.is_leader:
                if copy in last:  # its mark may have moved after the last look, while it still led
                    self._note_told(partition, copy.high_watermark)
                continue
            end, mark = copy.log.log_end_offset, copy.high_watermark
            is_small = len(copy.isr) < copy.effective_in_sync_min
            sample = (copy.leader_epoch, mark, end, is_small, copy.last_stable_offset())
            now[copy] = sample
            before = last.get(copy)
            if sample == before:
                continue
            if before is None or before[0] != sample[0]:
                self._check_elected(partition, broker_id, copy)
            else:
                self._check_marks(partition, copy, before, sample)
            self._note_told(partition, mark)
        self._last[partition] = now
        self._check_acting(partition, copies, brokers)
        self._check_in_sync(partition, copies, brokers)

    def _follow_move(self, partition: TopicPartition, newest: PartitionImage) -> None:
        """Somebody who had all may have gone, and those that stay may have lost power before."""
        before = self._replicas.get(partition, ())
        self._replicas[partition] = newest.replicas
        is_smaller = not set(before) <= set(newest.replicas)
        if is_smaller and self._have_all_lost(partition, newest):
            self.all_lost()
            self.forget_told()

    def _have_all_lost(self, partition: TopicPartition, image: PartitionImage) -> bool:
        return all(self._has_lost(one, partition, image) for one in _counted_on(image))

    def _note_told(self, partition: TopicPartition, mark: int) -> None:
        self._told[partition] = max(mark, self._told.get(partition, 0))

    def _check_kept(
        self,
        partition: TopicPartition,
        copies: Mapping[int, Partition],
        newest: PartitionImage | None,
    ) -> None:
        unclean = NO_EPOCH if newest is None else newest.unclean_epoch
        for broker_id, copy in copies.items():
            log, end = copy.log, copy.log.log_end_offset
            place = (partition, broker_id)
            former, kept, unclean_before = self._committed.get(place, (log, 0, unclean))
            if former is not log or log.log_start_offset == end or unclean > unclean_before:
                kept = 0
            self._expect(
                end >= kept,
                f"I13: {partition}: broker {broker_id} ends at {end}, {kept} was committed there",
            )
            known = min(copy.high_watermark, log.flushed_offset)
            if log.epochs.latest < unclean:  # it will be cut to what its leader has
                known = min(known, _kept_by_unclean(copies, unclean))
            self._committed[place] = (log, max(kept, known), unclean)

    def _watch_store(self, session: MemoryCoord, ops: Sequence[Op]) -> None:
        """Look at what a multi has done; one that is refused does nothing."""
        self._change_store(session, ops)
        changed = {op.path for op in ops if not isinstance(op, Check)}
        if CONTROLLER_EPOCH in changed:
            self._office = session
        written = sorted(changed.intersection(PARTS))  # a head alone changes nothing
        self._expect(
            not written or self._office in (None, session),
            f"I33: {written} were written by a controller that was replaced",
        )

    def _check_elected(self, partition: TopicPartition, broker_id: int, copy: Partition) -> None:
        place = f"{partition} epoch {copy.leader_epoch}"
        first = self._leaders.setdefault((partition, copy.leader_epoch), broker_id)
        self._expect(first == broker_id, f"I11: {place}: led by {first} and by {broker_id}")
        newest = max(epoch for one, epoch in self._leaders if one == partition)
        if copy.leader_epoch < newest:
            return  # elected before, and late: it was stopped while others took over from it
        told, end = self._told.get(partition, 0), copy.log.log_end_offset
        self._expect(
            end >= told, f"I12: {place}: broker {broker_id} ends at {end}, readers saw {told}"
        )

    def _check_marks(
        self, partition: TopicPartition, copy: Partition, before: _Sample, now: _Sample
    ) -> None:
        mark, place = now[1], f"{partition} epoch {now[0]}"
        self._expect(mark >= before[1], f"I9: {place}: the high watermark fell to {mark}")
        self._expect(
            copy.durable_offset <= mark <= now[2],
            f"I9: {place}: durable {copy.durable_offset}, high watermark {mark}, end {now[2]}",
        )
        stood_still = mark == before[1] or not (before[3] and now[3])
        self._expect(stood_still, f"I14: {place}: the mark moved with {copy.isr} in sync")
        stable = now[4]
        self._expect(
            before[4] <= stable <= mark,
            f"I23: {place}: stable at {before[4]}, then at {stable}, high watermark {mark}",
        )

    def _check_acting(
        self,
        partition: TopicPartition,
        copies: Mapping[int, Partition],
        brokers: Mapping[int, Broker],
    ) -> None:
        leading = [one for one, copy in copies.items() if copy.is_leader]
        if len(leading) < 2 or self.stale_hosts:
            return
        acting = [i for i in leading if copies[i].may_act and not self._world.is_paused(i)]
        are_leased = all(brokers[one].cluster.may_act for one in acting)
        self._expect(
            len(acting) < 2 or are_leased,  # one that is moved while it lives: marks wait for it
            f"I8: {partition}: {acting} act at once, one of them without a lease",
        )

    def _check_in_sync(
        self,
        partition: TopicPartition,
        copies: Mapping[int, Partition],
        brokers: Mapping[int, Broker],
    ) -> None:
        newest = self._newest(partition, brokers)
        leader = None if newest is None else copies.get(newest.leader)
        if newest is None or leader is None or leader.leader_epoch != newest.leader_epoch:
            return
        if not leader.is_leader:
            return
        for broker_id in newest.isr:
            copy = copies.get(broker_id)
            if copy is None or copy is leader:
                continue
            end, mark = copy.log.log_end_offset, leader.high_watermark
            place = f"I14: {partition} epoch {leader.leader_epoch}: in-sync broker {broker_id}"
            # One that lost power comes back without what it had not flushed. It is let in only when
            # it has been taken out of the set.
            is_let_in = not brokers[broker_id].cluster.lease.fenced
            if is_let_in:
                self._expect(end >= mark, f"{place} ends at {end}, the high watermark is {mark}")
            flushed, durable = copy.log.flushed_offset, leader.durable_offset
            self._expect(flushed >= durable, f"{place} has flushed {flushed}, durable is {durable}")

    def _newest(
        self, partition: TopicPartition, brokers: Mapping[int, Broker]
    ) -> PartitionImage | None:
        """The newest state of a partition that any of these brokers knows."""
        newest: PartitionImage | None = None
        for broker in brokers.values():
            topic = broker.cluster.image.topics.get(partition.topic)
            if topic is None:
                continue
            known = topic.partitions[partition.partition]
            if newest is None or known.partition_epoch > newest.partition_epoch:
                newest = known
        return newest

    def _expect(self, holds: bool, what: str) -> None:
        if not holds and self.broken is None:
            self.broken = f"{self._world.loop.time():.3f} {what}"


def _counted_on(image: PartitionImage) -> set[int]:
    """Who has all that was readable, or may have it although it ended unclean."""
    return {*image.isr, *image.elr, *image.suspects}


def _kept_by_unclean(copies: Mapping[int, Partition], unclean: int) -> int:
    """Where the logs of that epoch begin: what is below, an unclean election has kept."""
    logs = [one.log for one in copies.values() if one.log.epochs.latest >= unclean]
    ends = [log.epochs.end_offset_for(unclean - 1, log.log_end_offset)[1] for log in logs]
    return min(ends, default=0)
