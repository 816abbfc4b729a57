"""Copies a range of bytes from one open file to another, in bounded memory."""

from __future__ import annotations

from tidemill.core.limits import MIB
from tidemill.storage.files.disk import DiskFile

__all__ = ["copy_range"]

_COPY_BYTES = MIB


def copy_range(
    source: DiskFile, target: DiskFile, *, start: int, end: int, target_position: int
) -> None:
    """Write the bytes `start` .. `end` of `source` to `target` from `target_position` on."""
    for position in range(start, end, _COPY_BYTES):
        data = source.pread(min(_COPY_BYTES, end - position), position)
        target.pwrite([data], target_position + position - start)
