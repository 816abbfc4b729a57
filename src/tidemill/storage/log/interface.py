"""What one partition's log looks like from outside.

A log is a sequence of record batches with rising offsets. It assigns nothing and decides nothing:
its owner (the leader or the follower of the partition) hands it batches that already carry their
offsets and leader epochs. It keeps them, finds them again, and knows which of them are on disk.

    log_start_offset <= flushed_offset <= log_end_offset

`flushed_offset` moves only when a flush round that covered those bytes has ended well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from tidemill.storage.files.disk import Buffer
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import BatchHeader

__all__ = ["FlushPoint", "LogConfig", "LogSlice", "PartitionLog", "TimedOffset"]

FOREVER = -1
"""For retention and flush settings: never by this rule."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic keys that the log itself obeys."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    retention_ms: int = 14 * 24 * 3600 * 1000
    retention_bytes: int = FOREVER
    delete_delay_ms: int = 60_000
    deletes: bool = True
    """cleanup.policy has `delete`: age and size drop segments."""
    compacts: bool = False
    """cleanup.policy has `compact`: of each key only the newest record is kept."""
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER


@final
@dataclass(slots=True)
class LogSlice:
    """Whole stored batches, found but perhaps not yet read.

    `chunks` is filled when the bytes could be had at once (mapped views, or a short read at the
    growing end). Otherwise it is empty and `load` finds and reads them: call it through `Disk.run`.
    `load` checks checksums, since these bytes come from the medium: KafkaError CORRUPT_MESSAGE.
    """

    chunks: Sequence[Buffer]
    size_bytes: int
    """The chunks' size; before `load` the most that it brings, unless one batch alone is larger."""
    load: Callable[[], Sequence[Buffer]] | None = None


@final
@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record found by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@final
@dataclass(slots=True)
class FlushPoint:
    """What one flush of one log covers: taken on the loop, synced in a thread, then reported."""

    log_end_offset: int
    sync: Callable[[], None]
    """Sync every dirty file and the directory where a file is new. Raises StorageFault."""
    token: object = None
    """The log's own note of what it handed out."""


class PartitionLog(Protocol):
    """One partition's batches; a file and a memory implementation, one contract test."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next batch gets."""
        ...

    @property
    def flushed_offset(self) -> int:
        """All below it is on disk."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def epochs(self) -> LeaderEpochs: ...

    @property
    def producers(self) -> ProducerStates: ...

    @property
    def config(self) -> LogConfig: ...

    def set_config(self, config: LogConfig) -> None: ...

    def append(
        self, chunks: Sequence[Buffer], headers: Sequence[BatchHeader], *, now_ms: int
    ) -> None:
        """Append batches that carry their offsets, one write for all of them.

        The headers describe the chunks' batches in order, the first starting at or behind
        `log_end_offset`. Epochs, producers and indexes follow. On an error nothing was appended.
        Chunks are views of single bytes: `len` is their size.
        """
        ...

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, none with records at or past
        `end_offset`.

        At most `max_bytes`, but the first batch whole if `at_least_one`. KafkaError
        OFFSET_OUT_OF_RANGE outside [log_start_offset, log_end_offset].
        """
        ...

    def offset_by_time(self, timestamp_ms: int, *, end_offset: int) -> TimedOffset | None:
        """The first record with this time or later (per record, not per batch).

        It only reads and may have to wait for the disk: call it through `Disk.run`.
        """
        ...

    def max_timestamp(self, *, end_offset: int) -> TimedOffset | None:
        """The record with the greatest timestamp; the first of them if there are several.

        As `offset_by_time`: through `Disk.run`.
        """
        ...

    def truncate_to(self, offset: int) -> None:
        """Drop everything at `offset` and behind it (a follower that diverged).

        A batch that only reaches over `offset` goes as a whole, and the log then ends where its
        last batch does, which may be earlier still: compaction leaves gaps. If the end goes back
        behind the log's start, the start goes with it; the owner raises it again when it has
        fetched what lies between anew.
        """
        ...

    def restart_at(self, offset: int) -> None:
        """Drop everything and begin anew at `offset` (a follower too far behind)."""
        ...

    def advance_start(self, offset: int) -> None:
        """Raise the log start offset (DeleteRecords, retention); never lowers it."""
        ...

    def apply_retention(self, *, now_ms: int, high_watermark: int) -> int:
        """Drop whole segments that time, size or start offset allow; the number dropped."""
        ...

    def take_flush_point(self) -> FlushPoint | None:
        """What must be synced so that all appended until now is durable; None when all is."""
        ...

    def flushed(self, point: FlushPoint) -> None:
        """`point.sync` ended well: move `flushed_offset` up to what it covered."""
        ...

    def close(self) -> None: ...
