"""One cleaning of one compacted log: only the newest record of each key stays (F26, I35).

Theory of operation. A cleaning takes the closed segments that can no longer be truncated. The clean
point divides them:

    |--- clean: noted by an earlier cleaning ---|--- dirty: noted now ---|--- later, active ---|
    oldest segment                              noted_from               clean_end

First it walks the dirty part and notes the newest offset of each key, as far as its table has room
(`hot.key_offsets`); the clean end is where that stops. Then it rewrites everything from the oldest
segment up to the clean end, merging neighbours up to the size of a segment and leaving out records
for which a newer one is known, and swaps each result in for its sources. Offsets, timestamps,
headers, epochs and order stay the same; a batch that loses nothing keeps its bytes. At the end the
clean point moves.

Tombstones. A batch with a tombstone gets a *delete horizon* when it is first cleaned: now plus
`delete.retention.ms`, stored in place of the base timestamp and marked by attribute bit 6, as Kafka
does. After the horizon the tombstone is dropped too. By then the log has no older record of its
key: the cleaning that set the horizon had noted the tombstone, and it writes oldest segments first.

Transactions. Records of an aborted transaction go, whatever their key. When nothing of a
transaction is left, not even an empty batch, its marker gets a delete horizon too, and goes after
it. Nothing at or above the last stable offset is touched: there transactions are undecided.

Some batches stay although they are empty: those that a producer may still retry, the first of each
leader epoch, and the last of each written segment. The last one keeps segments adjacent; recovery
would take a gap for a loss.

`steps` is a generator. Run each callable it yields in a thread; the code between two yields runs on
the loop and takes no longer than a few renames. It may be abandoned after any step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import final

from tidemill.core.limits import COMPACTED_SEGMENTS_MAX
from tidemill.hot.key_offsets import SLOT_BYTES
from tidemill.hot.record_sift import Sift
from tidemill.storage.compaction.key_collector import KeyCollector
from tidemill.storage.compaction.segment_rewriter import SegmentRewriter
from tidemill.storage.compaction.transactions_left import TransactionsLeft
from tidemill.storage.files.disk import Disk
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from tidemill.storage.rewriting.new_segment import LogChanged, Step, swap_steps
from tidemill.storage.state.clean_point import CleanPoint

__all__ = ["Compaction"]

_SLOTS_MIN = 64


@final
class Compaction:
    """One cleaning of one log."""

    def __init__(
        self,
        disk: Disk,
        log: FilePartitionLog,
        segments: Sequence[Segment],
        *,
        secret: int,
        dedupe_buffer_bytes: int,
        now_ms: int,
        take_room: Callable[[int], None] = lambda _size_bytes: None,
    ) -> None:
        """`segments` are `log.compactable_segments`; `secret` has 128 bits.

        `take_room` is told how much a step has written, and may raise DiskFull.
        """
        self._disk = disk
        self._log = log
        self._segments = list(segments)
        self._secret = secret
        self._dedupe_buffer_bytes = dedupe_buffer_bytes
        self._now_ms = now_ms
        self._take_room = take_room
        self._cuts = log.cuts
        self.is_committing = False
        """From the sync of a new segment until it is in place: a fault then is the disk's own."""
        self.bytes_read = 0
        self.bytes_written = 0
        self.segments_cleaned = 0
        self.records_dropped = 0

    def steps(self) -> Generator[Step, None, None]:
        """Raises LogChanged, StorageFault, and KafkaError if the log is damaged.

        The yielded callables may raise the same; see `log_has_changed`.
        """
        log, segments = self._log, self._segments
        point = max(log.clean_point.offset, segments[0].base_offset)
        collector = KeyCollector(
            slot_count=self._slot_count(segments[-1].next_offset - point),
            secret=self._secret,
            from_offset=point,
            find_aborted=log.find_aborted,
        )
        yield collector.allocate
        for segment in segments:
            if segment.next_offset > point and not collector.is_full:
                yield from self._note(collector, segment)
        sift = Sift(collector.keys, collector.noted_from, collector.next_offset, self._now_ms)
        kept = log.kept_batches()
        left = TransactionsLeft()
        for group in self._groups(collector.next_offset):
            yield from self._rewrite(sift, group, kept, left)
        yield from self._move_point(collector.next_offset)

    @property
    def log_has_changed(self) -> bool:
        """The log was cut or closed: a fault then only means that files are gone."""
        return self._log.cuts != self._cuts

    def _slot_count(self, offsets: int) -> int:
        """Large enough for every record between the offsets, if the buffer is."""
        room = self._dedupe_buffer_bytes // SLOT_BYTES
        return max(_SLOTS_MIN, min(room, offsets * 4 // 3 + 4))

    def _note(self, collector: KeyCollector, segment: Segment) -> Iterator[Step]:
        yield partial(collector.enter, segment)
        while collector.has_more and not collector.is_full:
            before = collector.position
            yield collector.run_slice
            self.bytes_read += collector.position - before
            self._check_unchanged()

    def _groups(self, clean_end: int) -> Iterator[list[Segment]]:
        """Neighbours that fit into one segment together."""
        group: list[Segment] = []
        for segment in self._segments:
            if segment.base_offset >= clean_end:
                break
            if group and not self._fits(group, segment):
                yield group
                group = []
            group.append(segment)
        if group:
            yield group

    def _fits(self, group: Sequence[Segment], segment: Segment) -> bool:
        size_bytes = sum(member.size_bytes for member in group) + segment.size_bytes
        offsets = segment.next_offset - group[0].base_offset
        return (
            size_bytes <= self._log.config.segment_bytes
            and offsets <= RELATIVE_OFFSET_MAX
            and len(group) < COMPACTED_SEGMENTS_MAX
        )

    def _rewrite(
        self,
        sift: Sift,
        group: Sequence[Segment],
        kept: frozenset[int],
        left: TransactionsLeft,
    ) -> Iterator[Step]:
        work = SegmentRewriter(
            self._disk,
            sift,
            group,
            kept=kept,
            left=left,
            find_aborted=self._log.find_aborted,
            index_interval_bytes=self._log.config.index_interval_bytes,
            delete_retention_ms=self._log.config.delete_retention_ms,
        )
        try:
            while not work.is_done:
                written = work.new.size_bytes
                yield work.run_slice
                self.bytes_read += work.slice_bytes
                self._check_unchanged()
                self._take_room(work.new.size_bytes - written)
            self.records_dropped += work.records_dropped
            self.segments_cleaned += len(group)
            if len(group) > 1 or work.has_changed:
                yield work.new.pin_sources
                self._check_unchanged()
                self.is_committing = True
                yield work.new.sync
                self._check_unchanged()
                self.bytes_written += work.new.size_bytes
                yield from swap_steps(self._disk, self._log, work.new)
                self.is_committing = False
        finally:
            work.new.discard()

    def _move_point(self, offset: int) -> Iterator[Step]:
        file = self._log.clean_point.open_next()
        yield partial(CleanPoint.write, file, offset)
        self._check_unchanged()
        self._log.clean_point.move_to(offset)

    def _check_unchanged(self) -> None:
        if self.log_has_changed:
            raise LogChanged
