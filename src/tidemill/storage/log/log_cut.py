"""A log is cut: its end is dropped (a follower that diverged), or everything (one too far behind).

    plan       on the loop      what is known about the log
    `read`     in a thread      where the last batch that stays ends, and which producers are left;
                                copies what cannot be cut in place
    `begin`    on the loop      readers find the shorter log
    `perform`  in a thread      the files follow, durably, in an order that recovery understands
    `end`      on the loop      the log may be appended to again

From the plan to the end nothing is appended and nothing else changes the log's files, and no flush
round runs beside `begin` and `perform`: the owner sees to it. A checkpoint that is taken after
`begin` promises nothing of the log. `perform` is a list of steps; after a fault (a full disk) it
may be called again and continues with the step that failed. A closed log is left alone.

Before a cut below the flushed offset, and before a restart, the owner makes durable that its
recovery point is no higher (`cap`). Later segments leave newest first and together, because nothing
counts after a gap; a restart drops the oldest first, one by one, so that no gap is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import final

from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import DELETED_SUFFIX
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segment_head import SegmentHead
from tidemill.storage.log.segments import Segments
from tidemill.storage.state.producer_capture import ProducerCapture
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import CorruptBatch
from tidemill.wire.marks import VEILED

__all__ = ["FileLogCut"]

Step = Callable[[], object]


@final
class FileLogCut:
    """One cut of a log on a disk."""

    def __init__(
        self,
        disk: Disk,
        segments: Segments,
        *,
        offset: int,
        restarts: bool,
        producers: ProducerCapture,
        snapshots: ProducerSnapshots,
        begin: Callable[[FileLogCut], bool],
        end: Callable[[], None],
        is_closed: Callable[[], bool],
        is_in_journal: Callable[[], bool],
    ) -> None:
        """`segments`, `producers` and `snapshots` are copies: a thread reads them."""
        self._disk = disk
        self._segments = segments
        self._known = producers
        self._snapshots = snapshots
        self._begin = begin
        self._end = end
        self._is_closed = is_closed
        self.is_in_journal = is_in_journal
        self._steps: deque[Step] = deque()
        self.offset = offset
        self.restarts = restarts
        self.kept: list[Segment] = []
        self.dropped: list[Segment] = []
        self.head: SegmentHead | None = None
        """What is left of the last segment that is kept, if that is not all of it."""
        self.end_offset = offset
        """Where the log ends after the cut."""
        self.kept_end = offset
        """No checkpoint may promise more than this: the base of a batch that is cut, or the end."""
        self.producers: ProducerStates | None = None
        """The producers that are left; None if none changes."""

    # --- in a thread, before anything changes -----------------------------------------------------

    def read(self) -> None:
        """For `Disk.run`. Raises StorageFault, CorruptBatch."""
        if self.restarts:
            self.dropped = list(self._segments)
            self.kept_end = self._base_of_batch()
            self.producers = ProducerStates()
            return
        segments = list(self._segments)
        stay = [segment for segment in segments if segment.base_offset < self.offset]
        self.kept = stay or segments[:1]
        self.dropped = segments[len(self.kept) :]
        last = self.kept[-1]
        self.end_offset = last.next_offset
        if self.offset < last.next_offset:
            self.head = SegmentHead(self._disk, last, self.offset)
            self.head.copy_if_viewed()
            self.end_offset = self.head.next_offset
        self.kept_end = self.end_offset
        self.producers = self._try_rebuild_producers()

    def _base_of_batch(self) -> int:
        """The base offset of the batch that holds the offset, if the log has it."""
        first, last = self._segments.oldest, self._segments.active
        if not first.base_offset < self.offset < last.next_offset:
            return self.offset
        try:
            _, header = self._segments.holding(self.offset).finder().locate(self.offset)
        except CorruptBatch:
            return first.base_offset
        return self.offset if header is None else min(self.offset, header.base_offset)

    def _try_rebuild_producers(self) -> ProducerStates | None:
        """Forget the batches that are cut: load the newest snapshot and replay from there."""
        known = ProducerStates.restored(self._known)
        if not known.reaches(self.end_offset):
            return None
        found = self._snapshots.try_load_newest(self.end_offset)
        states, offset = found or (ProducerStates(), self._segments.oldest.base_offset)
        for header, marker in self._segments.replay_from(offset):
            if header.base_offset >= self.end_offset:
                break
            last_append_ms = known.last_append_ms(header.producer_id)
            if marker is not None:
                states.end_transaction(header, marker, last_append_ms or header.max_timestamp)
            elif last_append_ms is not None:
                states.update(header, last_append_ms)
            elif header.is_transactional:  # it may be open again
                states.update(header, header.max_timestamp)
            elif header.attributes & VEILED:
                states.note_veiled(header)
            # Else the producer was forgotten, and stays so.
        return states

    # --- the cut itself ---------------------------------------------------------------------------

    def begin(self) -> bool:
        """Readers find the shorter log, on the loop. False: `read` again, readers came between."""
        return self._begin(self)

    def begun(
        self, *, before: Sequence[Step], started: Segment | None, after: Sequence[Step]
    ) -> None:
        """The log changed: what `perform` has to do. `started` is the segment of a restart."""
        self._steps.extend((*before, *self._file_steps(started), *after))

    def perform(self) -> None:
        """For `Disk.run`. Raises StorageFault; then it may be called again."""
        while self._steps and not self._is_closed():
            self._steps[0]()
            self._steps.popleft()

    def end(self) -> None:
        """Everything is durable. On the loop."""
        if self.head is not None:
            self.head.end()
        self._end()

    def _file_steps(self, started: Segment | None) -> Iterator[Step]:
        sync = partial(self._disk.sync_directory, self._segments.directory)
        if started is not None:
            for segment in self.dropped:
                yield partial(segment.rename, DELETED_SUFFIX)
                yield sync
                yield partial(self._disk.unlink, segment.path + DELETED_SUFFIX)
            yield started.make_file
            yield sync
            return
        for segment in reversed(self.dropped):
            yield partial(segment.rename, DELETED_SUFFIX)
        yield sync
        for segment in self.dropped:
            yield partial(self._disk.unlink, segment.path + DELETED_SUFFIX)
        if self.head is not None:
            yield self.head.cut
