"""Cuts the end off a segment and keeps its head.

A file is cut in place unless a view of it may exist: a mapped page that loses its bytes is a
SIGBUS. Then the head is copied to a new file, which takes the name. The copy may take seconds, so
it is made before the cut begins.
"""

from __future__ import annotations

from typing import final

from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.file_copy import copy_range
from tidemill.storage.files.log_file_names import TEMPORARY_SUFFIX
from tidemill.storage.index.segment_index import unlink_index_files
from tidemill.storage.log.segment import Segment

__all__ = ["SegmentHead"]


@final
class SegmentHead:
    """The batches of one segment that are before the first one that reaches an offset."""

    def __init__(self, disk: Disk, segment: Segment, offset: int) -> None:
        """Looks the offset up: for `Disk.run`, like `copy` and `cut`."""
        finder = segment.finder()
        self._disk = disk
        self._segment = segment
        self._file = segment.dirty_file or segment.file()
        self._size_bytes, _ = finder.locate(offset)
        self.next_offset = finder.end_before(self._size_bytes)
        """The segment then ends where its last batch ends: a gap would look like loss."""
        self._index = segment.load_index().cut(self._file, self._size_bytes)
        self._copy: DiskFile | None = None

    def copy_if_viewed(self) -> None:
        """Copy the head if views may exist, durably, under a name without value."""
        if self._segment.may_have_views:
            temporary = self._segment.path + TEMPORARY_SUFFIX
            self._disk.unlink(temporary)
            copy = self._disk.open(temporary, create=True)
            copy_range(self._file, copy, start=0, end=self._size_bytes, target_position=0)
            copy.sync()
            self._copy = copy

    def begin(self) -> bool:
        """Readers find the head only, on the loop. False: a view was given out; copy it first."""
        if self._copy is None and self._segment.may_have_views:
            return False
        self._segment.keep_head(
            size_bytes=self._size_bytes, next_offset=self.next_offset, index=self._index
        )
        return True

    def cut(self) -> None:
        """Cut the file, durably. May be repeated after a StorageFault."""
        segment = self._segment
        unlink_index_files(self._disk, segment.directory, segment.base_offset)
        if self._copy is None:
            self._file.truncate(self._size_bytes)
            self._file.sync()
        elif self._disk.exists(segment.path + TEMPORARY_SUFFIX):
            self._disk.rename(segment.path + TEMPORARY_SUFFIX, segment.path)
        self._disk.sync_directory(segment.directory)

    def end(self) -> None:
        """The cut is durable: the segment is appended to again."""
        self._segment.head_is_durable(self._copy)
