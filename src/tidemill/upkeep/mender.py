"""The loop that mends logs: what is damaged is fetched again from another replica (I17, ADR 0025).

Damage is found by the scrub, by reads that check checksums, by compaction, and by recovery.

| damage                   | this replica leads                  | it follows                    |
|--------------------------|-------------------------------------|-------------------------------|
| ranges, found in use     | the segment is written anew, with   | the same, with those of its   |
|                          | batches of any other replica        | leader                        |
| a cut, after a recovery  | nothing is cut: what it has is what | it cuts its log and fetches   |
|                          | the partition has                   | on from there                 |

A follower is believed where it shows the batch after the damage, if there is one, and lacks
nothing; a leader is also believed about what it lacks. If every other replica has answered that it
has nothing better, the leader gives the range up, and then its followers do. A replica that does
not answer may come back, and is waited for. Segments are mended newest first: the batch after the
damage is then intact.
Of a compacted log all closed segments are replaced, and nobody reads them until that is done.

A follower outside the in-sync set fetches nothing before its log is whole (`LeaderAnswers`), and so
does not get in with a hole. One that is in the set goes on: it has the newest records, and what it
lacks the others have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import KafkaError, StorageFault
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.rewriting.new_segment import LogChanged
from tidemill.storage.rewriting.segment_mend import Hole
from tidemill.storage.state.log_damage import DamagedRange, store_damage
from tidemill.upkeep.mend_attempts import MendAttempts, MendOutcome, MendTools
from tidemill.upkeep.mend_progress import LOOK_INTERVAL_S, MendProgress

__all__ = ["Mender"]

log = logging.getLogger(__name__)


@final
class Mender:
    """Mends the logs of one data directory, one at a time."""

    def __init__(
        self,
        tools: MendTools,
        replicas: ReplicaManager,
        *,
        broker_id: int,
        clock: Clock,
        cutter: LogCutter,
        released: Callable[[Partition, float], None],
        last_end_is_counted: Callable[[], bool],
    ) -> None:
        """`released` hears of a partition that may be fetched again.

        `last_end_is_counted`: the in-sync sets are those after this broker's last start.
        """
        self.tools = tools
        self._disk = tools.disk
        self._directory = tools.directory
        self._telemetry = tools.telemetry
        self._replicas = replicas
        self._broker_id = broker_id
        self._clock = clock
        self._cutter = cutter
        self._released = released
        self._last_end_is_counted = last_end_is_counted
        self._in_work: dict[TopicPartition, MendProgress] = {}
        """No more entries than there are logs."""
        self._has_work = asyncio.Event()

    # --- what is to be mended ---------------------------------------------------------------------

    def found(self, name: TopicPartition, damaged: DamagedRange) -> None:
        """The scrub has found damage."""
        log_ = self._directory.get(name)
        if log_ is not None and log_.log_start_offset < damaged.end_offset <= log_.log_end_offset:
            self._note(log_, damaged)
            self._admit(name)

    def doubt(self, name: TopicPartition, base_offset: int) -> None:
        """A read has found damage in this segment, or there is another reason to check it."""
        self._admit(name).doubtful.add(base_offset)

    def _admit(self, name: TopicPartition) -> MendProgress:
        self._has_work.set()
        return self._in_work.setdefault(name, MendProgress())

    def _note(self, log_: FilePartitionLog, damaged: DamagedRange) -> None:
        if damaged not in log_.damage.ranges and damaged.start_offset < damaged.end_offset:
            log_.damage.note(damaged)
            self._telemetry.damage_found += 1
            log.error(
                "%s: offsets %d to %d are damaged",
                log_.directory,
                damaged.start_offset,
                damaged.end_offset - 1,
            )

    async def run(self) -> None:
        """Mend what is damaged, forever."""
        for name, log_ in self._directory.logs().items():
            if log_.damage:
                self._admit(name)
        while True:
            await self._has_work.wait()
            await asyncio.sleep(LOOK_INTERVAL_S)
            for name, progress in [*self._in_work.items()]:
                if self._clock.monotonic() >= progress.due_at:
                    await self._treat(name, progress)
            if not self._in_work:
                self._has_work.clear()

    async def _treat(self, name: TopicPartition, progress: MendProgress) -> None:
        log_, partition = self._directory.get(name), self._replicas.find(*name)
        if log_ is None or self._directory.failure is not None:
            del self._in_work[name]
            return
        is_done = False
        if partition is not None and partition.log is log_:
            before = log_.damage.encode()
            try:
                is_done = await self._mend(partition, log_, progress)
                if log_.damage.encode() != before:
                    await self._store(log_)
            except StorageFault as fault:
                log.error("mending %s failed: %s", name, fault)
            if partition.as_follower.is_whole:
                self._released(partition, 0.0)
        found_meanwhile = progress.doubtful or log_.damage.to_mend
        if is_done and not found_meanwhile:
            del self._in_work[name]
        else:
            progress.postpone(self._clock.monotonic())

    async def _store(self, log_: FilePartitionLog) -> None:
        async with self.tools.log_changes:  # `LostOffsets` writes the same file
            if not log_.is_closed:
                store = partial(store_damage, self._disk, log_.directory, log_.damage.encode())
                await self._disk.run(store, DiskWork.BACKGROUND)

    async def _mend(
        self, partition: Partition, log_: FilePartitionLog, progress: MendProgress
    ) -> bool:
        """Whether nothing is left to be done."""
        has_cut = log_.damage.cut_offset is not None
        if has_cut and not await self._try_cut(partition, log_, progress):
            return False
        await self._store(log_)  # before anything else: a crash must not hide it
        if log_.is_closed:
            return True  # its topic is gone, and another one may have its directory
        is_done = True
        for segment in reversed(self._segments(log_, progress)):
            is_done = await self._try_mend_segment(partition, log_, segment, progress) and is_done
        return is_done and not log_.damage.to_mend

    # --- cuts -------------------------------------------------------------------------------------

    async def _try_cut(
        self, partition: Partition, log_: FilePartitionLog, progress: MendProgress
    ) -> bool:
        image, offset = partition.image, log_.damage.cut_offset
        assert offset is not None
        if image is None or not self._last_end_is_counted():
            return False
        if self._may_be_elected(partition):
            # It has led since, or leads: the others have what it has.
            log_.damage.cut_offset = None
            found = [one for one in log_.segments if one.next_offset > offset and one.size_bytes]
            progress.doubtful.update(one.base_offset for one in found)
            return True
        if image.leader == NO_LEADER:
            return False
        epoch = partition.leader_epoch

        def is_wanted() -> bool:
            return not partition.is_leader and partition.leader_epoch == epoch

        log.error("%s: cut at offset %d, to be fetched again from there", log_.directory, offset)
        plan = partial(log_.plan_truncation, offset)
        try:
            await self._cutter.cut(partition.as_follower, plan, is_wanted=is_wanted)
        except KafkaError as error:  # damage before the cut, too: the next try drops the segment
            log.error("%s cannot be cut at offset %d: %s", log_.directory, offset, error)
            log_.damage.cut_offset = log_.segments.holding(max(0, offset - 1)).base_offset
            return False
        if offset >= log_.log_end_offset:
            log_.damage.cut_to(log_.log_end_offset)
        return log_.damage.cut_offset is None

    def _may_be_elected(self, partition: Partition) -> bool:
        image = partition.image
        if image is None or partition.is_leader:
            return True
        return self._broker_id in (*image.isr, *image.elr)

    # --- segments ---------------------------------------------------------------------------------

    def _segments(self, log_: FilePartitionLog, progress: MendProgress) -> list[Segment]:
        """What is to be looked at, oldest first. One that grows is closed first."""
        found = progress.segments(log_)
        if log_.segments.active in found and not log_.is_being_cut:
            log_.roll()
        return found

    async def _try_mend_segment(
        self, partition: Partition, log_: FilePartitionLog, segment: Segment, progress: MendProgress
    ) -> bool:
        """Whether the segment is whole, or given up."""
        is_busy = log_.is_being_rewritten or log_.is_being_cut
        if is_busy or not log_.is_at_rest(segment):
            return False
        log_.is_being_rewritten = True
        try:
            return await self._mend_segment(partition, log_, segment, progress)
        except LogChanged:
            return False
        finally:
            log_.is_being_rewritten = False

    async def _mend_segment(
        self, partition: Partition, log_: FilePartitionLog, segment: Segment, progress: MendProgress
    ) -> bool:
        attempts = MendAttempts(self.tools, partition, log_, segment)
        await self._disk.run(lambda: log_.may_have_gaps, DiskWork.BACKGROUND)  # known from now on
        role, sources = _role(partition), self._sources(partition)
        takes_over = log_.may_have_gaps and _is_in_doubt_whole(segment, log_)
        if takes_over:
            sources = progress.chosen(sources)
        else:
            holes = await attempts.survey()
            if not holes:
                progress.healed(log_, segment)
                return True
            self._note_holes(log_, holes, has_sources=bool(sources))
            if log_.may_have_gaps and sources:
                return False  # the next look takes over all segments, newest first
        outcomes = []
        for source in sources:
            outcome = await attempts.copy_from(source)
            if outcome is MendOutcome.MENDED and takes_over:
                return progress.taken_over(log_, segment, source)
            if outcome is MendOutcome.MENDED:
                progress.healed(log_, segment)
                return True
            outcomes.append(outcome)
        progress.source = None  # another one is taken, from the beginning
        if _role(partition) != role:
            return False  # what a follower says counts for a leader, and the other way round
        if MendOutcome.DIFFERS in outcomes and not self._may_be_elected(partition):
            # A fetch would tell where the logs part, but it fetches nothing: so it is cut here.
            ranges = log_.damage.to_mend
            log_.damage.cut_offset = min((one.start_offset for one in ranges), default=None)
            return False
        if not _is_lost(partition, segment, outcomes, progress):
            return False
        return await self._give_up(
            log_, segment, attempts, progress, sources=_mixable(partition, log_, sources)
        )

    async def _give_up(
        self,
        log_: FilePartitionLog,
        segment: Segment,
        attempts: MendAttempts,
        progress: MendProgress,
        *,
        sources: Sequence[int],
    ) -> bool:
        """No replica has all of it: each may have some. Whether nothing is left to be done."""
        if not await attempts.fill_gaps(sources, partial(self._note_lost, log_)):
            return False
        if log_.may_have_gaps and sources:
            return progress.taken_over(log_, segment, sources[0])
        progress.healed(log_, segment)
        return True

    def _note_holes(
        self, log_: FilePartitionLog, holes: Sequence[Hole], *, has_sources: bool
    ) -> None:
        for hole in holes:
            self._note(log_, hole.range)
        if log_.may_have_gaps and has_sources:
            end_offset = log_.segments.active.base_offset
            log_.damage.note(DamagedRange(log_.log_start_offset, end_offset))

    def _sources(self, partition: Partition) -> list[int]:
        """Whom to ask, the most certain first."""
        image = partition.image
        if image is None:
            return []
        if partition.is_leader:
            asked = [*image.isr, *image.replicas]
            return [one for one in dict.fromkeys(asked) if one != self._broker_id]
        return [] if image.leader == NO_LEADER else [image.leader]

    async def _note_lost(self, log_: FilePartitionLog, lost: Sequence[DamagedRange]) -> None:
        for one in lost:
            self._telemetry.damage_given_up += 1
            log_.damage.give_up(one)
            log_.damage.note(one)  # until the segment has a batch in its place
            log.error(
                "%s: offsets %d to %d are lost: no other replica has them",
                log_.directory,
                one.start_offset,
                one.end_offset - 1,
            )
        if lost:
            await self._store(log_)


def _mixable(partition: Partition, log_: FilePartitionLog, sources: Sequence[int]) -> Sequence[int]:
    """Whose batches may take the place of damaged ones, though none of them has all.

    A compacted log of several replicas could show deleted keys again: it is the leader's, or ours.
    """
    return [] if log_.may_have_gaps and partition.is_leader else sources


def _role(partition: Partition) -> tuple[int, bool]:
    return partition.leader_epoch, partition.is_leader


def _is_lost(
    partition: Partition,
    segment: Segment,
    outcomes: Sequence[MendOutcome],
    progress: MendProgress,
) -> bool:
    """Whether nobody can have what is missing. A single replica tries as often: disks recover."""
    if not partition.is_leader:
        return MendOutcome.NEVER in outcomes
    lack_it_all = all(one in (MendOutcome.NEVER, MendOutcome.DAMAGED_TOO) for one in outcomes)
    return progress.is_lost(segment, lack_it_all=lack_it_all)


def _is_in_doubt_whole(segment: Segment, log_: FilePartitionLog) -> bool:
    start = max(segment.base_offset, log_.log_start_offset)
    return any(
        one.start_offset <= start and segment.next_offset <= one.end_offset
        for one in log_.damage.to_mend
    )
