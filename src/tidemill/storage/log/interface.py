"""The interface of one partition's log.

A log is a sequence of record batches with rising offsets. It assigns nothing and decides nothing:
its owner (the partition's leader or follower) passes batches that already carry their offsets and
leader epochs. The log stores them, finds them again, and knows which of them are on disk.

    log_start_offset <= flushed_offset <= log_end_offset

`flushed_offset` moves only after a flush round that covered those bytes has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.log_damage import LogDamage
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import BatchHeader, iter_headers

__all__ = ["LogConfig", "LogCut", "LogSlice", "PartitionLog", "TimedOffset", "end_of"]

FOREVER = -1
"""In retention, lag and flush settings: no limit."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic settings that the log itself applies."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    retention_ms: int = 14 * 24 * 3600 * 1000
    retention_bytes: int = FOREVER
    delete_delay_ms: int = 60_000
    deletes: bool = True
    """cleanup.policy has `delete`: age and size drop segments."""
    compacts: bool = False
    """cleanup.policy has `compact`: only the newest record of each key is kept."""
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER


@final
@dataclass(slots=True)
class LogSlice:
    """Whole stored batches, located but perhaps not yet read.

    `chunks` is filled if the bytes were available at once (mapped views, or a short read at the
    growing end). Otherwise it is empty and `load` finds and reads them: call it through `Disk.run`.
    `load` verifies checksums because these bytes come from the medium: KafkaError
    KAFKA_STORAGE_ERROR, and what is damaged is mended meanwhile.
    """

    chunks: Sequence[Buffer]
    size_bytes: int
    """The chunks' size. Before `load`: the most it returns, unless a single batch is larger."""
    load: Callable[[], Sequence[Buffer]] | None = None
    find_end: Callable[[], int] | None = None
    """Finds the offset after the last batch, where that is cheaper than a walk over the chunks."""

    def next_offset(self) -> int:
        """The offset after the last of its chunks' batches, at least one."""
        return end_of(self.chunks) if self.find_end is None else self.find_end()


def end_of(chunks: Sequence[Buffer]) -> int:
    """The offset after the last of these whole batches."""
    *_, (_, last) = iter_headers(chunks[-1])
    return last.next_offset


@final
@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class LogCut(Protocol):
    """The steps of a cut. Nothing is appended from its plan to its end; see `log_cut`."""

    def read(self) -> None:
        """Find out what is left: for `Disk.run`. Changes nothing; may be repeated."""
        ...

    def is_in_journal(self) -> bool:
        """Whether the journal has bytes of the log: it must be settled before `begin`."""
        ...

    def begin(self) -> bool:
        """Readers find the shorter log from now on. False: `read` again first."""
        ...

    def perform(self) -> None:
        """Cut the files, durably: for `Disk.run`. After a StorageFault it may be called again."""
        ...

    def end(self) -> None:
        """The cut is durable; the log may be appended to."""
        ...


class PartitionLog(Protocol):
    """One partition's batches. The file and the memory implementation share one contract test."""

    @property
    def directory(self) -> str:
        """Where its files are; empty if it has none."""
        ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next batch."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Everything below it is on disk: in its own file, or in the journal."""
        ...

    @property
    def is_closed(self) -> bool:
        """It was deleted, or the broker ends: nothing of it is flushed any more."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def epochs(self) -> LeaderEpochs: ...

    @property
    def producers(self) -> ProducerStates: ...

    @property
    def damage(self) -> LogDamage: ...

    @property
    def config(self) -> LogConfig: ...

    def set_config(self, config: LogConfig) -> None: ...

    def append(
        self, chunks: Sequence[Buffer], headers: Sequence[BatchHeader], *, now_ms: int
    ) -> None:
        """Append batches that carry their offsets, in one write.

        The headers describe the batches in order; the first starts at or after `log_end_offset`.
        Epochs, producers and indexes are updated too. On an error nothing was appended:
        StorageFault, or CorruptBatch if a control batch is no transaction marker. Chunks are views
        of single bytes: `len` is their size.
        """
        ...

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, without records from `end_offset` on.

        At most `max_bytes`; with `at_least_one` the first batch is returned whole even if it is
        larger. KafkaError OFFSET_OUT_OF_RANGE outside [log_start_offset, log_end_offset].
        """
        ...

    def doubt(self, offset: int) -> None:
        """A batch near this offset is damaged: whoever mends logs is to look."""
        ...

    def try_find_aborted(
        self, start_offset: int, end_offset: int
    ) -> list[AbortedTransaction] | None:
        """The aborted transactions that reach into this range, by their markers (T34).

        None if that would wait for the disk: call `find_aborted`.
        """
        ...

    def find_aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The same; call it through `Disk.run`. Raises StorageFault, KafkaError."""
        ...

    def offset_by_time(self, timestamp_ms: int, *, end_offset: int) -> TimedOffset | None:
        """The first record with this timestamp or a later one (per record, not per batch).

        It only reads, but may wait for the disk: call it through `Disk.run`.
        """
        ...

    def max_timestamp(self, *, end_offset: int) -> TimedOffset | None:
        """The record with the greatest timestamp; the first one if several have it.

        Like `offset_by_time`, call it through `Disk.run`.
        """
        ...

    def plan_truncation(self, offset: int) -> LogCut | None:
        """Drop every batch that reaches `offset` (for a follower that diverged); None: no batch.

        A batch that spans `offset` is dropped whole. The log then ends where its last batch ends,
        which may be earlier still, because compaction leaves gaps. If the end falls below the log's
        start, the start moves with it; the owner raises it again after it has fetched the offsets
        in between a second time.
        """
        ...

    def plan_restart(self, offset: int) -> LogCut:
        """Drop everything and continue at `offset` (for a follower too far behind)."""
        ...

    def truncate_to(self, offset: int) -> None:
        """All steps of `plan_truncation`; blocks."""
        ...

    def restart_at(self, offset: int) -> None:
        """All steps of `plan_restart`; blocks."""
        ...

    def advance_start(self, offset: int) -> None:
        """Raise the log start offset (DeleteRecords, retention); never lowers it."""
        ...

    def apply_retention(self, *, now_ms: int, high_watermark: int) -> int:
        """Drop whole segments that age, size or log start allow; the number dropped. Blocks."""
        ...

    def expired(self, *, now_ms: int, end_offset: int) -> tuple[int, int]:
        """Up to where retention would drop what is below `end_offset`, and how many bytes that is.

        It only reads, but may wait for the disk: call it through `Disk.run`.
        """
        ...

    def take_flush_point(self) -> FlushPoint | None:
        """What must be synced to make everything appended so far durable; None if it is."""
        ...

    def take_sync_point(self) -> FlushPoint | None:
        """Like `take_flush_point`, for a flush that syncs the files of what is in the journal."""
        ...

    def flushed(self, point: FlushPoint) -> None:
        """The point is durable: raise `flushed_offset` to what it covered."""
        ...

    def close(self) -> None: ...
