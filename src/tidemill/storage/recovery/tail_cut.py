"""Cuts the end off a log during recovery and keeps the bytes that were cut.

The order makes it safe to interrupt and repeat: first the side files are written, then later
segments leave the log, newest first, then the file is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tidemill.core.limits import MIB
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.file_copy import copy_range
from tidemill.storage.files.log_file_names import TEMPORARY_SUFFIX
from tidemill.storage.index.segment_index import unlink_index_files
from tidemill.storage.recovery.checked_scan import try_find_batch_after
from tidemill.storage.recovery.recovery_report import CutTail
from tidemill.storage.recovery.segment_files import SegmentFile

__all__ = ["CUT_INFIX", "TailCut"]

CUT_INFIX = ".cut-"
"""A side file is named after the file it was cut from and the offset of the cut."""

_READ_BYTES = MIB


@final
class TailCut:
    """Everything from one byte of one segment on, and the segments after it."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        segments: Sequence[SegmentFile],
        *,
        place: int,
        position: int,
        offset: int,
    ) -> None:
        """`segments[place]` is cut before its byte `position`; the log then ends at `offset`."""
        self._disk = disk
        self._files = files
        self._directory = directory
        self._offset = offset
        self._goes_whole = position == 0 and place > 0
        first = place if self._goes_whole else place + 1
        self.kept = list(segments[:first])
        """The segments that stay."""
        self._leaving = segments[first:]
        self._cut_at = position
        later = segments[place + 1 :]
        self._cut_ranges = [(segments[place], position), *((segment, 0) for segment in later)]
        """Each segment with bytes to cut, and where these begin."""

    def has_valid_batch(self) -> bool:
        """Whether a valid batch of this log is about to be cut off."""
        return any(
            try_find_batch_after(
                self._files.get(found.path),
                position=start,
                end=found.size_bytes,
                next_offset=self._offset,
            )
            for found, start in self._cut_ranges
        )

    def perform(self, detail: str) -> CutTail:
        """Cut, durably. `detail` says what was wrong."""
        size_bytes = sum(found.size_bytes - start for found, start in self._cut_ranges)
        kept_in = [] if self._goes_whole else [self._keep_tail(self.kept[-1])]
        kept_in += [self._put_aside(found) for found in reversed(self._leaving)]
        self._disk.sync_directory(self._directory)
        if not self._goes_whole:
            self._cut_file(self.kept[-1])
        self.kept[-1].next_offset = self._offset
        paths = tuple(path for path in kept_in if path is not None)
        return CutTail(self._offset, size_bytes, detail, paths)

    def _cut_file(self, found: SegmentFile) -> None:
        unlink_index_files(self._disk, self._directory, found.base_offset)
        file = self._files.get(found.path)
        file.truncate(self._cut_at)
        file.sync()
        self._disk.sync_directory(self._directory)
        found.size_bytes = self._cut_at

    def _keep_tail(self, found: SegmentFile) -> str | None:
        """Copy the bytes to be cut to a side file, durably; None if they are all zeros."""
        source = self._files.get(found.path)
        if _is_zero(source, self._cut_at, found.size_bytes):
            return None
        target = f"{found.path}{CUT_INFIX}{self._offset}"
        temporary = target + TEMPORARY_SUFFIX
        self._disk.unlink(temporary)
        copy = self._disk.open(temporary, create=True)
        copy_range(source, copy, start=self._cut_at, end=found.size_bytes, target_position=0)
        copy.sync()
        copy.close()
        self._disk.rename(temporary, target)
        self._disk.sync_directory(self._directory)
        return target

    def _put_aside(self, found: SegmentFile) -> str | None:
        unlink_index_files(self._disk, self._directory, found.base_offset)
        self._files.drop(found.path)
        if found.size_bytes == 0:
            self._disk.unlink(found.path)
            return None
        target = f"{found.path}{CUT_INFIX}{self._offset}"
        self._disk.rename(found.path, target)
        return target


def _is_zero(file: DiskFile, position: int, end: int) -> bool:
    return all(
        not any(file.pread(min(_READ_BYTES, end - at), at))
        for at in range(position, end, _READ_BYTES)
    )
