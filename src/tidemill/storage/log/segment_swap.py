"""Replaces several old segments with one new segment; a crash at any moment loses neither.

    N.log.cleaned        the new segment, written and synced under a name that recovery ignores
    `begin_swap`         renamed to N-M.swap; the next sync of the directory decides the swap: a
                         start that finds the file completes the remaining steps (`finish_swaps`)
    `switch`             readers get the new segment; all old ones but the first are renamed away,
                         and the first one's index, which describes other bytes, is removed
    `finish`             after another sync: renamed to N.log, over the first old one

The renames happen on the loop, so no read runs between two of them; the syncs between the steps may
run in a thread. A log that must be cut meanwhile calls `settle` first: a swap that was not switched
is undone, one that was is finished, so no swap file ever describes bytes that were cut.

Readers in a thread may still hold an old segment. It was pinned (see `segment`) before the first
rename, and its bytes stay readable while any reader holds its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import final

from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    offset_path,
    swap_path,
    try_parse_offset,
    try_parse_swap,
)
from tidemill.storage.index.segment_index import unlink_index_files
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segments import Segments

__all__ = ["SegmentSwap", "finish_swaps", "open_cleaned"]


class _Phase(Enum):
    ANNOUNCED = auto()
    SWITCHED = auto()
    FINISHED = auto()
    OVER = auto()


@final
class SegmentSwap:
    """One swap in progress."""

    def __init__(
        self, disk: Disk, files: FileCache, segments: Segments, old: Sequence[Segment], new: Segment
    ) -> None:
        """`new` is pinned to its file, which has the name of its place plus `CLEANED_SUFFIX`."""
        self._disk = disk
        self._files = files
        self._segments = segments
        self._old = old
        self._new = new
        self._path = swap_path(segments.directory, new.base_offset, new.next_offset)
        self._phase = _Phase.ANNOUNCED
        self.obsolete: list[str] = []
        """Files of the old segments, to be unlinked."""
        disk.rename(new.path + CLEANED_SUFFIX, self._path)

    def switch(self) -> bool:
        """The announcement is durable: readers get the new segment. False: it was undone."""
        if self._phase is not _Phase.ANNOUNCED:
            return False
        directory = self._segments.directory
        for segment in self._old:
            unlink_index_files(self._disk, directory, segment.base_offset)
            segment.forget()
        for segment in self._old[1:]:
            self.obsolete.append(segment.path + DELETED_SUFFIX)
            self._disk.rename(segment.path, segment.path + DELETED_SUFFIX)
        self._segments.replace(self._old, self._new)
        self._phase = _Phase.SWITCHED
        return True

    def finish(self) -> None:
        """The effects of `switch` are durable: the new segment gets its name."""
        if self._phase is not _Phase.SWITCHED:
            return
        new = self._new
        self._disk.rename(self._path, new.path)
        self._files.put(new.path, new.file())
        new.unpin()
        new.adopt_index_files(CLEANED_SUFFIX)
        self._phase = _Phase.FINISHED

    def synced(self) -> None:
        """The effects of `finish` are durable."""
        if self._phase is _Phase.FINISHED:
            self._phase = _Phase.OVER

    def settle(self) -> None:
        """The log is about to be cut or closed: finish or undo the swap."""
        directory = self._segments.directory
        if self._phase is _Phase.ANNOUNCED:
            self._disk.unlink(self._path)
        if self._phase is _Phase.SWITCHED:
            self._disk.sync_directory(directory)
            self.finish()
        if self._phase is not _Phase.OVER:
            self._disk.sync_directory(directory)
        self._phase = _Phase.OVER


def finish_swaps(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Complete the swaps that a crash interrupted after they were decided."""
    for name in names:
        span = try_parse_swap(name)
        if span is not None:
            _finish(disk, directory, f"{directory}/{name}", span)


def _finish(disk: Disk, directory: str, path: str, span: tuple[int, int]) -> None:
    base_offset, next_offset = span
    for name in disk.list_names(directory):
        old = try_parse_offset(name, LOG_SUFFIX)
        if old is not None and base_offset <= old < next_offset:
            unlink_index_files(disk, directory, old)
            if old != base_offset:
                disk.unlink(f"{directory}/{name}")
    disk.sync_directory(directory)
    disk.rename(path, offset_path(directory, base_offset, LOG_SUFFIX))
    disk.sync_directory(directory)


def open_cleaned(disk: Disk, path: str) -> DiskFile:
    """A new file beside `path`; removes what an earlier attempt left there."""
    disk.unlink(path + CLEANED_SUFFIX)
    return disk.open(path + CLEANED_SUFFIX, create=True)
