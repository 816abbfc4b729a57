"""Walks the headers of a segment's batches from a known position on, without their records.

For finding batches: append or recovery has checked them, so only the header is read. Bytes that are
not a header are damage and raise CorruptBatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, final

from tidemill.storage.files.disk import Buffer
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header

__all__ = ["NotResident", "ResidentRange", "Source", "walk_headers"]

_WALK_BYTES = 8 * 1024
"""Bytes per read: two default index intervals."""


class Source(Protocol):
    """Where the bytes come from: a file, or a view of part of one."""

    def pread(self, size: int, position: int) -> Buffer: ...


class NotResident(Exception):
    """A search left its view; repeat the same search on the file."""


@final
class ResidentRange:
    """A view of a file's bytes from `origin` on, readable like the file."""

    __slots__ = ("_origin", "_view")

    def __init__(self, view: memoryview, origin: int) -> None:
        self._view = view
        self._origin = origin

    def pread(self, size: int, position: int) -> memoryview:
        start = position - self._origin
        found = self._view[start : start + size]
        if start < 0 or len(found) < min(size, HEADER_BYTES):
            raise NotResident
        return found


def walk_headers(source: Source, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch that begins in `start` .. `end`."""
    buffer: Buffer = b""
    buffer_at = position = start
    while position < end:
        at = position - buffer_at
        if at + HEADER_BYTES > len(buffer):
            buffer = source.pread(min(_WALK_BYTES, end - position), position)
            buffer_at, at = position, 0
        header = read_header(buffer, at)
        size = header.size_bytes
        if size > end - position:
            raise CorruptBatch(f"{end - position} bytes of {size} at byte {position}")
        yield position, header
        position += size
