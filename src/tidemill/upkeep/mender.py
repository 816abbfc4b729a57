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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError, StorageFault
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.core.telemetry import Telemetry
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.rewriting.new_segment import LogChanged, swap_steps
from tidemill.storage.rewriting.segment_mend import Hole, SegmentMend, WrongBatches, first_header
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.log_damage import DamagedRange, store_damage

__all__ = ["Mender"]

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
REST_S_MAX = 5.0
DAMAGED_EVERYWHERE_TRIES_MAX = 10
"""How often in a row all others must say that they lack the same, before it is given up."""

AskBatches = Callable[[int, Partition, int], Awaitable[Buffer]]


class _Outcome(Enum):
    MENDED = auto()
    NOT_NOW = auto()
    DAMAGED_TOO = auto()
    """The other replica has not mended the same offsets yet."""
    DIFFERS = auto()
    """The leader's log is another one where this log is damaged."""
    NEVER = auto()


class _Way(Enum):
    """How much of a damaged segment is replaced; see `segment_mend`."""

    TAKE_HOLES = auto()
    TAKE_REST = auto()
    TAKE_ALL = auto()


@final
@dataclass(slots=True)
class _Patient:
    """A log with damage, or in doubt."""

    doubtful: set[int] = field(default_factory=set)
    """Base offsets of segments to be checked."""
    tries: int = 0
    due_at: float = 0.0
    damaged_everywhere: int = 0
    """How often in a row all others have said that they lack the same."""
    source: int | None = None
    """The replica whose compacted log this one becomes: it must not be a mixture of two."""
    replaced: set[int] = field(default_factory=set)
    """Base offsets of segments that are that replica's already."""

    def postpone(self, now: float) -> None:
        self.due_at = now + min(REST_S_MAX, LOOK_INTERVAL_S * 2.0 ** min(self.tries, 10))
        self.tries += 1


@final
class Mender:
    """Mends the logs of one data directory, one at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        replicas: ReplicaManager,
        *,
        broker_id: int,
        clock: Clock,
        telemetry: Telemetry,
        log_changes: asyncio.Lock,
        cutter: LogCutter,
        ask: AskBatches,
        released: Callable[[Partition, float], None],
        last_end_is_counted: Callable[[], bool],
    ) -> None:
        """`released` hears of a partition that may be fetched again.

        `last_end_is_counted`: the in-sync sets are those after this broker's last start.
        """
        self._disk = disk
        self._directory = directory
        self._replicas = replicas
        self._broker_id = broker_id
        self._clock = clock
        self._telemetry = telemetry
        self._log_changes = log_changes
        self._cutter = cutter
        self._ask = ask
        self._released = released
        self._last_end_is_counted = last_end_is_counted
        self._patients: dict[TopicPartition, _Patient] = {}
        """No more entries than there are logs."""
        self._has_patients = asyncio.Event()
        self._cuts_before = 0
        """Of the log that is being mended, when that began."""

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

    def _admit(self, name: TopicPartition) -> _Patient:
        self._has_patients.set()
        return self._patients.setdefault(name, _Patient())

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
            await self._has_patients.wait()
            await asyncio.sleep(LOOK_INTERVAL_S)
            for name, patient in [*self._patients.items()]:
                if self._clock.monotonic() >= patient.due_at:
                    await self._treat(name, patient)
            if not self._patients:
                self._has_patients.clear()

    async def _treat(self, name: TopicPartition, patient: _Patient) -> None:
        log_, partition = self._directory.get(name), self._replicas.find(*name)
        if log_ is None or self._directory.failure is not None:
            del self._patients[name]
            return
        is_done = False
        if partition is not None and partition.log is log_:
            before = log_.damage.encode()
            try:
                is_done = await self._mend(partition, log_, patient)
                if log_.damage.encode() != before:
                    await self._store(log_)
            except StorageFault as fault:
                log.error("mending %s failed: %s", name, fault)
            if partition.as_follower.is_whole:
                self._released(partition, 0.0)
        if is_done and not patient.doubtful and not log_.damage.to_mend:  # what was found meanwhile
            del self._patients[name]
        else:
            patient.postpone(self._clock.monotonic())

    async def _store(self, log_: FilePartitionLog) -> None:
        if not log_.is_closed:
            store = partial(store_damage, self._disk, log_.directory, log_.damage.encode())
            await self._disk.run(store, DiskWork.BACKGROUND)

    async def _mend(self, partition: Partition, log_: FilePartitionLog, patient: _Patient) -> bool:
        """Whether nothing is left to be done."""
        if log_.damage.cut_offset is not None and not await self._try_cut(partition, log_, patient):
            return False
        await self._store(log_)  # before anything else: a crash must not hide it
        if log_.is_closed:
            return True  # its topic is gone, and another one may have its directory
        is_done = True
        for segment in reversed(self._segments(log_, patient)):
            is_done = await self._try_mend_segment(partition, log_, segment, patient) and is_done
        return is_done and not log_.damage.to_mend

    # --- cuts -------------------------------------------------------------------------------------

    async def _try_cut(
        self, partition: Partition, log_: FilePartitionLog, patient: _Patient
    ) -> bool:
        image, offset = partition.image, log_.damage.cut_offset
        assert offset is not None
        if image is None or not self._last_end_is_counted():
            return False
        if self._may_be_elected(partition):
            # It has led since, or leads: the others have what it has.
            log_.damage.cut_offset = None
            found = [one for one in log_.segments if one.next_offset > offset and one.size_bytes]
            patient.doubtful.update(one.base_offset for one in found)
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

    def _segments(self, log_: FilePartitionLog, patient: _Patient) -> list[Segment]:
        """What is to be looked at, oldest first. One that grows is closed first."""
        found = [one for one in log_.segments if _is_touched(one, log_, patient)]
        patient.doubtful &= {one.base_offset for one in found}
        if log_.segments.active in found and not log_.is_being_cut:
            log_.roll()
        return found

    async def _try_mend_segment(
        self, partition: Partition, log_: FilePartitionLog, segment: Segment, patient: _Patient
    ) -> bool:
        """Whether the segment is whole, or given up."""
        is_busy = log_.is_being_rewritten or log_.is_being_cut
        if is_busy or not log_.is_at_rest(segment):
            return False
        log_.is_being_rewritten = True
        self._cuts_before = log_.cuts
        try:
            return await self._mend_segment(partition, log_, segment, patient)
        except LogChanged:
            return False
        finally:
            log_.is_being_rewritten = False

    async def _mend_segment(
        self, partition: Partition, log_: FilePartitionLog, segment: Segment, patient: _Patient
    ) -> bool:
        await self._disk.run(lambda: log_.may_have_gaps, DiskWork.BACKGROUND)  # known from now on
        sources = self._sources(partition)
        takes_over = log_.may_have_gaps and _is_in_doubt_whole(segment, log_)
        if takes_over:
            sources = _one_source(sources, patient)
        else:
            holes = await self._survey(log_, segment)
            if not holes:
                self._healed(log_, segment, patient)
                return True
            self._note_holes(log_, holes, has_sources=bool(sources))
            if log_.may_have_gaps and sources:
                return False  # the next look takes over all segments, newest first
        outcomes = []
        for source in sources:
            outcome = await self._copy_from(source, partition, log_, segment)
            if outcome is _Outcome.MENDED and takes_over:
                return self._taken_over(log_, segment, patient, source)
            if outcome is _Outcome.MENDED:
                self._healed(log_, segment, patient)
                return True
            outcomes.append(outcome)
        patient.source = None  # another one is taken, from the beginning
        if _Outcome.DIFFERS in outcomes and not self._may_be_elected(partition):
            # A fetch would tell where the logs part, but it fetches nothing: so it is cut here.
            ranges = log_.damage.to_mend
            log_.damage.cut_offset = min((one.start_offset for one in ranges), default=None)
            return False
        if not self._must_give_up(partition, outcomes, patient):
            return False
        holes = await self._survey(log_, segment)
        self._give_up(log_, segment, holes)
        if holes and not any(hole.size_bytes for hole in holes):
            await self._fill_gaps(log_, segment)
        patient.doubtful.discard(segment.base_offset)
        return True

    def _note_holes(
        self, log_: FilePartitionLog, holes: Sequence[Hole], *, has_sources: bool
    ) -> None:
        for hole in holes:
            self._note(log_, hole.range)
        if log_.may_have_gaps and has_sources:
            end_offset = log_.segments.active.base_offset
            log_.damage.note(DamagedRange(log_.log_start_offset, end_offset))

    def _taken_over(
        self, log_: FilePartitionLog, segment: Segment, patient: _Patient, source: int
    ) -> bool:
        """Whether all closed segments are those of the other replica: only then they are whole."""
        patient.source = source
        patient.replaced.add(segment.base_offset)
        end_offset = log_.segments.active.base_offset
        if any(one.base_offset not in patient.replaced for one in log_.segments if one.is_closed):
            return False
        log_.damage.mended(0, end_offset)
        patient.doubtful.clear()
        return True

    def _healed(self, log_: FilePartitionLog, segment: Segment, patient: _Patient) -> None:
        log_.damage.mended(segment.base_offset, segment.next_offset)
        patient.doubtful.discard(segment.base_offset)

    def _sources(self, partition: Partition) -> list[int]:
        """Whom to ask, the most certain first."""
        image = partition.image
        if image is None:
            return []
        if partition.is_leader:
            asked = [*image.isr, *image.replicas]
            return [one for one in dict.fromkeys(asked) if one != self._broker_id]
        return [] if image.leader == NO_LEADER else [image.leader]

    def _must_give_up(
        self, partition: Partition, outcomes: Sequence[_Outcome], patient: _Patient
    ) -> bool:
        """Whether nobody can have what is missing."""
        if not outcomes or not partition.is_leader:
            return partition.is_leader or _Outcome.NEVER in outcomes
        # Replicas that are behind, or are being moved, lack for a while what they will have.
        is_everywhere = all(one in (_Outcome.NEVER, _Outcome.DAMAGED_TOO) for one in outcomes)
        patient.damaged_everywhere = patient.damaged_everywhere + 1 if is_everywhere else 0
        return patient.damaged_everywhere >= DAMAGED_EVERYWHERE_TRIES_MAX

    def _give_up(self, log_: FilePartitionLog, segment: Segment, holes: Sequence[Hole]) -> None:
        log_.damage.mended(segment.base_offset, segment.next_offset)
        for hole in holes:
            self._telemetry.damage_given_up += 1
            if hole.size_bytes:
                log_.damage.give_up(hole.range)
            log.error(
                "%s: offsets %d to %d are lost: no other replica has them",
                log_.directory,
                hole.range.start_offset,
                hole.range.end_offset - 1,
            )

    # --- one attempt ------------------------------------------------------------------------------

    async def _survey(self, log_: FilePartitionLog, segment: Segment) -> list[Hole]:
        """What is missing in the segment."""
        mend = await self._begin(log_, segment, _Way.TAKE_HOLES)
        try:
            while not mend.is_done:
                await self._run(log_, mend.run_slice)
                if mend.hole is not None:
                    mend.skip_hole()
            return mend.holes
        finally:
            await self._disk.run(mend.new.discard, DiskWork.BACKGROUND)

    async def _fill_gaps(self, log_: FilePartitionLog, segment: Segment) -> None:
        """Where not even damaged bytes are left, readers must find what comes next."""
        mend = await self._begin(log_, segment, _Way.TAKE_HOLES)
        try:
            while not mend.is_done:
                await self._run(log_, mend.run_slice)
                if mend.hole is not None:
                    await self._run(log_, mend.fill_with_nothing)
            await self._commit(log_, mend, segment, _Way.TAKE_HOLES)
        finally:
            await self._disk.run(mend.new.discard, DiskWork.BACKGROUND)

    async def _copy_from(
        self, source: int, partition: Partition, log_: FilePartitionLog, segment: Segment
    ) -> _Outcome:
        ways = [_Way.TAKE_ALL] if log_.may_have_gaps else [_Way.TAKE_HOLES, _Way.TAKE_REST]
        for way in ways:
            try:
                return await self._attempt(source, partition, log_, segment, way)
            except WrongBatches as error:
                log.warning("%s: broker %d cannot mend it: %s", log_.directory, source, error)
        return _Outcome.NEVER if partition.is_leader else _Outcome.DIFFERS

    async def _attempt(
        self,
        source: int,
        partition: Partition,
        log_: FilePartitionLog,
        segment: Segment,
        way: _Way,
    ) -> _Outcome:
        """Raises WrongBatches."""
        mend = await self._begin(log_, segment, way)
        may_have_gaps = way is _Way.TAKE_ALL or not partition.is_leader
        try:
            while not mend.is_done:
                await self._run(log_, mend.run_slice)
                while mend.hole is not None:
                    records = await self._fetch(source, partition, mend.hole, mend.next_offset)
                    await self._run(log_, partial(mend.take, records, may_have_gaps=may_have_gaps))
            await self._commit(log_, mend, segment, way)
        except DiskFull as full:
            log.error("%s cannot be mended while the disk is full: %s", log_.directory, full)
            return _Outcome.NOT_NOW
        except KafkaError as error:
            return _outcome_of(error, is_leader=partition.is_leader)
        finally:
            await self._disk.run(mend.new.discard, DiskWork.BACKGROUND)
        self._report(log_, mend, source)
        return _Outcome.MENDED

    async def _begin(self, log_: FilePartitionLog, segment: Segment, way: _Way) -> SegmentMend:
        later = [one for one in log_.segments if one.base_offset >= segment.next_offset]
        begin = partial(
            SegmentMend,
            self._disk,
            segment,
            index_interval_bytes=log_.config.index_interval_bytes,
            following=partial(first_header, later),
            epoch_at=partial(
                _known_epoch, LeaderEpochs(log_.epochs.entries()), log_.log_start_offset
            ),
            start_offset=log_.log_start_offset,
            has_gaps=log_.may_have_gaps,
            takes_rest=way is _Way.TAKE_REST,
            takes_all=way is _Way.TAKE_ALL,
        )
        return await self._disk.run(begin, DiskWork.BACKGROUND)

    async def _fetch(self, source: int, partition: Partition, hole: Hole, offset: int) -> Buffer:
        """At least one batch. Raises KafkaError, WrongBatches."""
        records = await self._ask(source, partition, offset)
        if not records and offset >= hole.range.end_offset:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "it lacks only what follows")
        if not records:
            raise WrongBatches(f"its log ends at {offset}")
        return records

    async def _run(self, log_: FilePartitionLog, step: Callable[[], None]) -> None:
        """Raises LogChanged, also if the log was cut while another replica was asked."""
        if log_.cuts == self._cuts_before:
            await self._disk.run(step, DiskWork.BACKGROUND)
        if log_.cuts != self._cuts_before:
            raise LogChanged

    async def _commit(
        self, log_: FilePartitionLog, mend: SegmentMend, segment: Segment, way: _Way
    ) -> None:
        """Put the new segment in place: nothing else may change the files of logs meanwhile."""
        async with self._log_changes:
            await self._run(log_, mend.new.pin_sources)
            try:
                if way is _Way.TAKE_ALL and log_.config.compacts:
                    lower = partial(log_.clean_point.lower_to, segment.base_offset)
                    await self._run(log_, lower)
                await self._run(log_, mend.new.sync)
                for step in swap_steps(self._disk, log_, mend.new):
                    await self._disk.run(step, DiskWork.BACKGROUND)
            except StorageFault as fault:
                if not isinstance(fault, DiskFull):
                    self._directory.fail(fault)
                raise

    def _report(self, log_: FilePartitionLog, mend: SegmentMend, source: int) -> None:
        self._telemetry.damage_mended += len(mend.holes)
        for hole in mend.holes:
            log.warning(
                "%s: offsets %d to %d were damaged, and are again what broker %d has",
                log_.directory,
                hole.range.start_offset,
                hole.range.end_offset - 1,
                source,
            )


def _is_in_doubt_whole(segment: Segment, log_: FilePartitionLog) -> bool:
    start = max(segment.base_offset, log_.log_start_offset)
    return any(
        one.start_offset <= start and segment.next_offset <= one.end_offset
        for one in log_.damage.to_mend
    )


def _is_touched(segment: Segment, log_: FilePartitionLog, patient: _Patient) -> bool:
    if not segment.size_bytes and segment is log_.segments.active:
        return False
    if segment.base_offset in patient.replaced:
        return False
    return segment.base_offset in patient.doubtful or any(
        one.start_offset < segment.next_offset and segment.base_offset < one.end_offset
        for one in log_.damage.to_mend
    )


def _one_source(sources: list[int], patient: _Patient) -> list[int]:
    """The one that segments were taken from already; all, if there is none or it is gone."""
    if patient.source in sources:
        return [one for one in sources if one == patient.source]
    patient.replaced.clear()
    return sources


def _known_epoch(epochs: LeaderEpochs, log_start_offset: int, offset: int) -> int | None:
    """What is below the log start is forgotten."""
    return None if offset < log_start_offset else epochs.epoch_at(offset)


def _outcome_of(error: KafkaError, *, is_leader: bool) -> _Outcome:
    if error.code is ErrorCode.CORRUPT_MESSAGE:
        return _Outcome.NEVER
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:  # its log ends before
        return _Outcome.NEVER if is_leader else _Outcome.DIFFERS
    if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
        return _Outcome.DAMAGED_TOO
    return _Outcome.NOT_NOW
