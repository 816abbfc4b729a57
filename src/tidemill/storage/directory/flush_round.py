"""Group commit (ADR 0008): which logs a flush round covers, and what its outcome does.

Theory of operation. A data directory runs one round at a time. `DirtyLogs` knows every log of the
directory with bytes that may not be on disk, and which of them want a flush *now*: because an
acknowledgement waits (`request`), or by the log's own rules: `flush.messages`, `flush.ms`, and a
bound on the unflushed tail, which recovery would have to scan. `collect` freezes one round: for
each wanted log the point up to which it was written at that moment. The round is made durable off
the event loop; appends that arrive meanwhile belong to the next round. Logs with few new bytes may
share one block of the journal (`round_journal`); the files of all others are synced.

The outcome is applied on the loop, all or nothing. If one sync failed, no log of the round moves,
the directory goes offline, and no further sync is tried: the kernel has already marked the lost
pages clean, so a second sync would succeed and prove nothing.

A log that is deleted while its round runs is forgotten: its files may be closed under the sync, and
that error says nothing about the disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from tidemill.core.errors import StorageFault, invariant
from tidemill.core.limits import UNFLUSHED_TAIL_BYTES_MAX
from tidemill.storage.files.disk import DiskFile
from tidemill.storage.journal.round_journal import JournalBlock, RoundJournal
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.interface import FOREVER, LogConfig, PartitionLog

__all__ = ["DirtyLogs", "FlushRound", "is_due_by_size"]

HEAP_SLACK: Final = 64


def is_due_by_size(config: LogConfig, *, unflushed_records: int, unflushed_bytes: int) -> bool:
    """Whether count or size alone require a flush, without a waiting acknowledgement."""
    by_count = config.flush_messages != FOREVER and unflushed_records >= config.flush_messages
    return by_count or unflushed_bytes >= UNFLUSHED_TAIL_BYTES_MAX


@final
@dataclass(slots=True, eq=False)
class _UnflushedTail:
    """What one log has appended since the last round that covered it."""

    log: PartitionLog
    due_ms: int | None
    """When `flush.ms` requires a flush; None: never by time."""
    size_bytes: int = 0


@final
@dataclass(slots=True, eq=False)
class _CoveredLog:
    """One log's share of a round."""

    log: PartitionLog
    point: FlushPoint
    is_forgotten: bool = False

    def try_finish(self) -> None:
        """Do what follows the syncs of its files."""
        try:
            if self.point.finish is not None:
                self.point.finish()
        except StorageFault:
            if not self.is_forgotten:
                raise


@final
class FlushRound:
    """What one round covers. Made durable off the loop, then `apply` or `fail` on the loop, once.

    Durable means: `block` is written, all `files` are synced, and then all of `finish_parts` ran.
    """

    def __init__(
        self,
        covered: Sequence[_CoveredLog],
        on_end: Callable[[StorageFault | None], None],
        block: JournalBlock | None = None,
    ) -> None:
        self._covered = covered
        self._on_end = on_end
        self.block = block
        """Has the bytes of the logs whose points have a lap of the journal."""
        self._synced = [
            (covered, tail.file)
            for covered in self._covered
            if not covered.point.journal_lap
            for tail in covered.point.tails
        ]
        self._is_synced = False
        self._has_ended = False

    @property
    def logs(self) -> list[PartitionLog]:
        return [covered.log for covered in self._covered if not covered.is_forgotten]

    @property
    def files(self) -> list[DiskFile]:
        """The files to sync."""
        return [file for _, file in self._synced]

    def check_synced(self, outcomes: Sequence[StorageFault | None]) -> None:
        """Raises the first fault of `files` that counts."""
        for (covered, _), fault in zip(self._synced, outcomes, strict=True):
            if fault is not None and not covered.is_forgotten:
                raise fault

    def finish_parts(self, ways: int) -> list[Callable[[], None]]:
        """What follows the syncs, for up to `ways` threads."""
        rest = [covered for covered in self._covered if covered.point.finish is not None]
        shares = [rest[start::ways] for start in range(min(ways, len(rest)))]
        return [_finish_of(share) for share in shares]

    def sync(self) -> None:
        """Make everything durable here and now. Raises StorageFault; never call it again."""
        if self.block is not None:
            self.block.write_now()
        self.check_synced([_try_sync(file) for file in self.files])
        for part in self.finish_parts(1):
            part()
        self._is_synced = True

    def synced(self) -> None:
        """Everything is durable."""
        self._is_synced = True

    def apply(self) -> None:
        """The sync succeeded: every log raises its flushed offset to its point."""
        invariant(self._is_synced, "a flush round was applied before its sync ended well")
        self._end(None)
        for covered in self._covered:
            if not covered.is_forgotten:
                covered.log.flushed(covered.point)

    def fail(self, error: StorageFault) -> None:
        """The sync failed: nothing of this round is durable, and the directory goes offline."""
        self._end(error)

    def covers(self, log: PartitionLog) -> bool:
        return any(covered.log is log for covered in self._covered)

    def forget(self, log: PartitionLog) -> None:
        """The log is being removed: its share can no longer fail the round."""
        for covered in self._covered:
            if covered.log is log:
                covered.is_forgotten = True

    def _end(self, error: StorageFault | None) -> None:
        invariant(not self._has_ended, "a flush round has one end")
        self._has_ended = True
        self._on_end(error)


def _finish_of(share: Sequence[_CoveredLog]) -> Callable[[], None]:
    def finish() -> None:
        for covered in share:
            covered.try_finish()

    return finish


def _try_sync(file: DiskFile) -> StorageFault | None:
    try:
        file.sync()
    except StorageFault as fault:
        return fault
    return None


@final
class DirtyLogs:
    """The logs of one data directory that have unflushed bytes.

    `now_ms` is monotonic time throughout: a jump of the wall clock must not delay a flush.
    """

    def __init__(
        self,
        *,
        on_failure: Callable[[StorageFault], None],
        journal: RoundJournal | None = None,
    ) -> None:
        self._on_failure = on_failure
        self._journal = journal
        self._tails: dict[PartitionLog, _UnflushedTail] = {}
        self._wanted: dict[PartitionLog, None] = {}
        self._by_time: list[tuple[int, int, _UnflushedTail]] = []
        self._sequence = 0
        self._already_flushed: list[PartitionLog] = []
        """Logs that wanted a round when nothing of them was left to flush, or that were deleted."""
        self._round: FlushRound | None = None
        self._has_failed = False
        """No further round starts: a sync after a failed one proves nothing."""

    def __len__(self) -> int:
        return len(self._tails)

    def grew(self, log: PartitionLog, size_bytes: int) -> bool:
        """Count more bytes of a log that is already dirty; False if `appended` must look closer.

        HOT PATH: the whole cost of an append here, unless its log is newly dirty or nearly due.
        """
        tail, config = self._tails.get(log), log.config
        if tail is None or config.flush_messages != FOREVER or config.flush_ms != FOREVER:
            return False
        size = tail.size_bytes + size_bytes
        if size >= UNFLUSHED_TAIL_BYTES_MAX:
            return False
        tail.size_bytes = size
        return True

    def appended(self, log: PartitionLog, size_bytes: int, *, now_ms: int) -> None:
        """The log grew; it is flushed on request, or when its own rules require it."""
        tail = self._tails.get(log)
        if tail is None:
            tail = self._tails[log] = self._new_tail(log, now_ms)
        tail.size_bytes += size_bytes
        unflushed_records = log.log_end_offset - log.flushed_offset
        if is_due_by_size(
            log.config, unflushed_records=unflushed_records, unflushed_bytes=tail.size_bytes
        ):
            self._wanted[log] = None

    def request(self, log: PartitionLog) -> None:
        """An acknowledgement waits until everything that this log holds now is durable."""
        self._wanted[log] = None

    def request_all(self) -> None:
        """Flush all dirty logs (before a checkpoint, at shutdown)."""
        self._wanted.update(dict.fromkeys(self._tails))

    def collect(self, *, now_ms: int) -> FlushRound | None:
        """The next round; None if no log wants one, a round is running, or one has failed."""
        if self._round is not None or self._has_failed:
            return None
        self._want_due_logs(now_ms)
        points = []
        for log in list(self._wanted):
            point = log.take_flush_point()
            if point is not None:
                points.append((log, point))
            else:
                self._discard_pending(log)
                self._already_flushed.append(log)
        block = None if self._journal is None else self._journal.try_place(points, now_ms)
        return self.begin_round(points, block)

    def take_already_flushed(self) -> list[PartitionLog]:
        """Logs whose flush was overtaken by DeleteRecords, retention or their own deletion."""
        logs, self._already_flushed = self._already_flushed, []
        return logs

    def begin_round(
        self,
        points: Sequence[tuple[PartitionLog, FlushPoint]],
        block: JournalBlock | None = None,
    ) -> FlushRound | None:
        """A round of these points, taken just now; None if there are none."""
        invariant(self._round is None, "flush rounds run one at a time")
        invariant(not self._has_failed, "no flush is tried after a failed one")
        for log, _ in points:
            self._discard_pending(log)
        if points:
            covered = [_CoveredLog(*point) for point in points]
            self._round = FlushRound(covered, self._round_ended, block)
        return self._round

    @property
    def wants_round(self) -> bool:
        """Whether an acknowledgement waits for a round, or a log's own rules require one."""
        return bool(self._wanted)

    @property
    def running(self) -> FlushRound | None:
        """The round that has not ended. Its logs must not be cut or created again."""
        return self._round

    def next_due_ms(self) -> int | None:
        """When `collect` has something to do by time alone; None: not before an append."""
        while self._by_time and self._is_stale(self._by_time[0][2]):
            heapq.heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None

    def forget(self, log: PartitionLog) -> None:
        """The log is being deleted or closed: no later round touches it."""
        if log in self._wanted:
            self._already_flushed.append(log)  # whoever waits for it need not any more
        self._discard_pending(log)
        if self._round is not None:
            self._round.forget(log)

    def _discard_pending(self, log: PartitionLog) -> None:
        """Forget what this log has pending: a round covers it, or nothing is left to flush."""
        self._tails.pop(log, None)
        self._wanted.pop(log, None)

    def _new_tail(self, log: PartitionLog, now_ms: int) -> _UnflushedTail:
        flush_ms = log.config.flush_ms
        if flush_ms == FOREVER:
            return _UnflushedTail(log, None)
        tail = _UnflushedTail(log, now_ms + flush_ms)
        self._drop_stale_times()
        self._sequence += 1
        heapq.heappush(self._by_time, (now_ms + flush_ms, self._sequence, tail))
        return tail

    def _want_due_logs(self, now_ms: int) -> None:
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            self._wanted[heapq.heappop(self._by_time)[2].log] = None

    def _is_stale(self, tail: _UnflushedTail) -> bool:
        return self._tails.get(tail.log) is not tail

    def _drop_stale_times(self) -> None:
        """Rounds on request leave their tails' times behind; keep the heap within its bound."""
        if len(self._by_time) > 2 * len(self._tails) + HEAP_SLACK:
            self._by_time = [entry for entry in self._by_time if not self._is_stale(entry[2])]
            heapq.heapify(self._by_time)

    def _round_ended(self, error: StorageFault | None) -> None:
        self._round = None
        if error is not None:
            self._has_failed = True
            self._on_failure(error)
