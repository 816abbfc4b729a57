"""Attempts to write one damaged segment anew, each with the batches of one other replica.

| way        | what is taken from the other replica                                            |
|------------|---------------------------------------------------------------------------------|
| TAKE_HOLES | what is missing between valid batches                                           |
| TAKE_REST  | everything after the first damage: what looks valid there may be a record's     |
|            | content                                                                         |
| TAKE_ALL   | the whole segment, of a compacted log                                           |

All attempts walk through the segment in the same way (`segment_mend`); they differ in what they do
with a hole. A survey passes it by, and throws away what it wrote. A cut of the log ends an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import final

from tidemill.core.errors import DiskFull, ErrorCode, KafkaError, StorageFault
from tidemill.core.telemetry import Telemetry
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.batch_asker import DamagedThere
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.rewriting.new_segment import LogChanged, swap_steps
from tidemill.storage.rewriting.segment_mend import Hole, SegmentMend, WrongBatches, first_header
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.log_damage import DamagedRange

__all__ = ["AskBatches", "MendAttempts", "MendOutcome", "MendTools", "NoteLost"]

log = logging.getLogger(__name__)

AskBatches = Callable[[int, Partition, int], Awaitable[Buffer]]
"""Whom, of which partition, from which offset on. Raises KafkaError."""
NoteLost = Callable[[Sequence[DamagedRange]], Awaitable[None]]
"""Makes durable that nobody has these ranges."""


class MendOutcome(Enum):
    """What came of asking one other replica."""

    MENDED = auto()
    NOT_NOW = auto()
    DAMAGED_TOO = auto()
    """The other replica has not mended the same offsets yet."""
    DIFFERS = auto()
    """The leader's log is another one where this log is damaged."""
    NEVER = auto()


class _WrongSource(Exception):
    """What this replica has does not fit."""

    def __init__(self, source: int) -> None:
        super().__init__(source)
        self.source = source


class _Way(Enum):
    TAKE_HOLES = auto()
    TAKE_REST = auto()
    TAKE_ALL = auto()


@final
@dataclass(slots=True, kw_only=True)
class MendTools:
    """What all attempts of one broker share."""

    disk: Disk
    directory: LogDirectory
    telemetry: Telemetry
    log_changes: asyncio.Lock
    room: DiskRoom
    ask: AskBatches


@final
class MendAttempts:
    """The attempts on one closed segment, while nobody else rewrites its log. LogChanged."""

    def __init__(
        self, tools: MendTools, partition: Partition, log_: FilePartitionLog, segment: Segment
    ) -> None:
        self._tools = tools
        self._disk = tools.disk
        self._partition = partition
        self._log = log_
        self._segment = segment
        self._cuts_before = log_.cuts

    async def survey(self) -> list[Hole]:
        """What is missing in the segment; from now on the log knows whether it has gaps."""
        while True:
            async with self._begun(_Way.TAKE_HOLES) as mend:
                await self._walk(mend, _skip)
            if self._log.may_have_gaps or not mend.shows_gaps:
                return mend.holes
            self._log.has_shown_gaps = True

    async def fill_gaps(self, sources: Sequence[int], note_lost: NoteLost) -> bool:
        """Take each batch from whoever has it; what nobody has is lost. False: not yet.

        Readers must find what comes after that: a batch without records takes its place.
        A compacted log becomes that of the source, if there is one.
        """
        left = list(sources)
        way = _Way.TAKE_ALL if left and self._log.may_have_gaps else _Way.TAKE_HOLES
        while True:
            try:
                await self._fill_gaps(left, note_lost, way)
            except _WrongSource as wrong:
                if not self._partition.is_leader:
                    return False  # its leader's log is another one: a fetch tells where they part
                left.remove(wrong.source)
            except KafkaError as error:
                log.warning("%s: nothing is given up yet: %s", self._log.directory, error)
                return False
            else:
                return True

    async def _fill_gaps(self, sources: Sequence[int], note_lost: NoteLost, way: _Way) -> None:
        lost: list[DamagedRange] = []

        async def fill(mend: SegmentMend) -> None:
            while mend.hole is not None:
                end_offset = await self._take_from_any(mend, mend.hole, sources)
                if end_offset == mend.next_offset:
                    mend.close_hole()
                elif end_offset is not None:
                    lost.append(DamagedRange(mend.next_offset, end_offset))
                    await self._run(partial(mend.fill_with_nothing, end_offset))

        async with self._begun(way) as mend:
            await self._walk(mend, fill)
            await note_lost(lost)  # before: a batch without records does not look lost
            await self._commit(mend, way)
        self._found_again(mend.holes, but=lost)
        self._report([hole for hole in mend.holes if hole.range not in lost], "others")

    async def _take_from_any(
        self, mend: SegmentMend, hole: Hole, sources: Sequence[int]
    ) -> int | None:
        """None, or up to where all of them lack what comes next. KafkaError, _WrongSource."""
        leads, offset = self._partition.is_leader, mend.next_offset
        ends = [hole.range.end_offset]
        for source in sources:
            try:
                records = await self._ask_for(source, offset, leads=leads)
            except DamagedThere as damaged:
                ends.append(damaged.end_offset)
            except KafkaError:
                if offset < hole.range.end_offset:
                    raise
            else:
                if records:
                    await self._take(mend, records, source, may_have_gaps=not leads)
                    return None
        return min(ends)

    async def _ask_for(self, source: int, offset: int, *, leads: bool) -> Buffer:
        """Nothing: its log ends there. KafkaError: wait for it. DamagedThere: it lacks it."""
        try:
            records = await self._tools.ask(source, self._partition, offset)
        except KafkaError as error:
            outcome = _outcome_of(error, is_leader=leads)
            if outcome is MendOutcome.DAMAGED_TOO and not leads:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, str(error)) from error
            if outcome is MendOutcome.NEVER and not isinstance(error, DamagedThere):
                return b""
            raise
        if not records and not leads:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the leader's log ends there")
        return records

    async def _take(
        self, mend: SegmentMend, records: Buffer, source: int, *, may_have_gaps: bool
    ) -> None:
        try:
            await self._run(partial(mend.take, records, may_have_gaps=may_have_gaps))
        except WrongBatches as wrong:
            raise _WrongSource(source) from wrong

    async def copy_from(self, source: int) -> MendOutcome:
        """Mend the segment with what this replica has."""
        has_gaps = self._log.may_have_gaps
        ways = [_Way.TAKE_ALL] if has_gaps else [_Way.TAKE_HOLES, _Way.TAKE_REST]
        is_leader = self._partition.is_leader
        for way in ways:
            try:
                mend = await self._copy(source, way)
            except WrongBatches as error:
                log.warning("%s: broker %d cannot mend it: %s", self._log.directory, source, error)
            except DiskFull as full:
                log.error("%s: no room to mend it: %s", self._log.directory, full)
                return MendOutcome.NOT_NOW
            except KafkaError as error:
                return _outcome_of(error, is_leader=is_leader)
            else:
                self._report(mend.holes, f"broker {source}")
                return MendOutcome.MENDED
        return MendOutcome.NEVER if is_leader else MendOutcome.DIFFERS

    async def _copy(self, source: int, way: _Way) -> SegmentMend:
        """Raises WrongBatches, KafkaError, DiskFull."""
        may_have_gaps = way is _Way.TAKE_ALL or not self._partition.is_leader
        lost_in_both: list[DamagedRange] = []

        async def fetch(mend: SegmentMend) -> None:
            while mend.hole is not None:
                try:
                    records = await self._fetch(source, mend.hole, mend.next_offset)
                except DamagedThere as error:
                    lost = self._log.damage.try_given_up(mend.next_offset)
                    if error.code is not ErrorCode.CORRUPT_MESSAGE or lost is None:
                        raise
                    lost_in_both.append(lost)
                    await self._run(partial(mend.pass_over, lost.end_offset))
                    continue
                if records:
                    await self._run(partial(mend.take, records, may_have_gaps=may_have_gaps))
                else:
                    mend.close_hole()

        async with self._begun(way) as mend:
            await self._walk(mend, fetch)
            await self._commit(mend, way)
        self._found_again(mend.holes, but=lost_in_both)
        return mend

    # --- steps ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _begun(self, way: _Way) -> AsyncIterator[SegmentMend]:
        """An attempt; what it has written is removed, unless it was put in place.

        Raises DiskFull: an attempt that cannot end must not use up the reserve, again and again.
        """
        log_, segment = self._log, self._segment
        self._tools.room.check_for_own(segment.size_bytes)
        later = [one for one in log_.segments if one.base_offset >= segment.next_offset]
        epochs = LeaderEpochs(log_.epochs.entries())
        begin = partial(
            SegmentMend,
            self._disk,
            segment,
            index_interval_bytes=log_.config.index_interval_bytes,
            following=partial(first_header, later),
            epoch_at=partial(_known_epoch, epochs, log_.log_start_offset),
            start_offset=log_.log_start_offset,
            has_gaps=log_.may_have_gaps,
            takes_rest=way is _Way.TAKE_REST,
            takes_all=way is _Way.TAKE_ALL,
        )
        mend = await self._disk.run(begin, DiskWork.BACKGROUND)
        try:
            yield mend
        finally:
            await self._disk.run(mend.new.discard, DiskWork.BACKGROUND)

    async def _walk(
        self, mend: SegmentMend, pass_hole: Callable[[SegmentMend], Awaitable[None]]
    ) -> None:
        while not mend.is_done:
            await self._run(mend.run_slice)
            if mend.hole is not None:
                await pass_hole(mend)

    async def _fetch(self, source: int, hole: Hole, offset: int) -> Buffer:
        """Batches; none: nothing is missing any more. Raises KafkaError, WrongBatches."""
        records = await self._tools.ask(source, self._partition, offset)
        if records:
            return records
        if offset < hole.range.end_offset:
            raise WrongBatches(f"its log ends at {offset}")
        if not self._has_followed_up_to(source, offset):
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "it lacks only what follows")
        return records

    def _has_followed_up_to(self, source: int, offset: int) -> bool:
        """Whether its log is ours up to there, as a fetch in our own leader epoch has told.

        A follower gets nothing that lies behind a damaged header here, and so can never show it.
        """
        led = self._partition.led if self._partition.is_leader else None
        position = None if led is None else led.followers.get(source)
        return position is not None and position.log_end_offset >= offset

    async def _run(self, step: Callable[[], None]) -> None:
        """Raises LogChanged, also if the log was cut while another replica was asked."""
        if self._log.cuts == self._cuts_before:
            await self._disk.run(step, DiskWork.BACKGROUND)
        if self._log.cuts != self._cuts_before:
            raise LogChanged

    async def _commit(self, mend: SegmentMend, way: _Way) -> None:
        """Put the new segment in place: nothing else may change the files of logs meanwhile."""
        log_ = self._log
        async with self._tools.log_changes:
            await self._run(mend.new.pin_sources)
            try:
                if way is _Way.TAKE_ALL and log_.config.compacts:
                    await self._run(partial(log_.clean_point.lower_to, self._segment.base_offset))
                await self._run(mend.new.sync)
                for step in swap_steps(self._disk, log_, mend.new):
                    await self._disk.run(step, DiskWork.BACKGROUND)
            except StorageFault as fault:
                if not isinstance(fault, DiskFull):
                    self._tools.directory.fail(fault)
                raise

    def _found_again(self, holes: Sequence[Hole], *, but: Sequence[DamagedRange]) -> None:
        """A range may have been noted as lost before a crash, and come back after it."""
        for hole in holes:
            self._log.damage.found_again(hole.range, but=but)

    def _report(self, holes: Sequence[Hole], whom: str) -> None:
        self._tools.telemetry.damage_mended += len(holes)
        for hole in holes:
            log.warning(
                "%s: offsets %d to %d were damaged, and are again what %s had",
                self._log.directory,
                hole.range.start_offset,
                hole.range.end_offset - 1,
                whom,
            )


async def _skip(mend: SegmentMend) -> None:
    mend.skip_hole()


def _known_epoch(epochs: LeaderEpochs, log_start_offset: int, offset: int) -> int | None:
    """What is below the log start is forgotten."""
    return None if offset < log_start_offset else epochs.epoch_at(offset)


def _outcome_of(error: KafkaError, *, is_leader: bool) -> MendOutcome:
    if isinstance(error, DamagedThere):
        is_lost = error.code is ErrorCode.CORRUPT_MESSAGE
        return MendOutcome.NEVER if is_lost else MendOutcome.DAMAGED_TOO
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:  # its log ends before
        return MendOutcome.NEVER if is_leader else MendOutcome.DIFFERS
    return MendOutcome.NOT_NOW
