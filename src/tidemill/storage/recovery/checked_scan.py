"""Walks the bytes of a segment, batch by batch, without trusting any of them.

Recovery, scrub and inspection use it. A batch is valid if it is wholly inside the file, its
checksum matches, and its offsets follow the batches before it. The checksum does not cover base
offset, length and leader epoch (a leader writes these into a client's bytes), so the order of
offsets is part of the check, and so is the order of leader epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from crc32c import crc32c

from tidemill.core.limits import MIB
from tidemill.storage.files.disk import DiskFile
from tidemill.wire.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    CorruptBatch,
    read_header,
)

__all__ = ["CheckHeader", "CheckedScan", "FoundBatch", "ends_by", "try_find_batch_after"]

_MAGIC = bytes([MAGIC])
_WINDOW_BYTES = MIB
_SEARCH_CRC_FACTOR = 4
"""A search may checksum at most this many times the bytes it looks through."""
_OFFSET_LEAP_MAX = 1 << 32
"""Damage that fits into a segment cannot hide more offsets than this."""


CheckHeader = Callable[[BatchHeader, int], None]
"""Takes a header and the offset that is next. The checksum covers neither offset nor epoch."""


@final
@dataclass(slots=True)
class FoundBatch:
    """A valid batch and its position."""

    position: int
    header: BatchHeader


@final
class _Window:
    """Reads a file forward in large pieces."""

    def __init__(self, file: DiskFile, end: int) -> None:
        self._file = file
        self._end = end
        self._start = 0
        self._data = b""

    def header_at(self, position: int) -> BatchHeader:
        self._cover(position, HEADER_BYTES)
        return read_header(self._data, position - self._start)

    def crc_of(self, start: int, end: int) -> int:
        """The checksum of a range of any length, in bounded memory."""
        crc, position = 0, start
        while position < end:
            self._cover(position, min(end - position, _WINDOW_BYTES))
            at = position - self._start
            piece = memoryview(self._data)[at : at + end - position]
            if len(piece) == 0:
                break
            crc = crc32c(piece, crc)
            position += len(piece)
        return crc

    def find(self, needle: bytes, position: int) -> int:
        """The next position of `needle` (one byte), or -1."""
        while position < self._end:
            self._cover(position, 1)
            found = self._data.find(needle, position - self._start)
            if found >= 0:
                return self._start + found
            position = self._start + len(self._data)
        return -1

    def _cover(self, position: int, size: int) -> None:
        if self._start <= position and position + size <= self._start + len(self._data):
            return
        self._start = position
        self._data = self._file.pread(min(_WINDOW_BYTES, self._end - position), position)


@final
class CheckedScan:
    """Iterates over the valid batches from a position on; stops at the first invalid one.

    After the iteration, `position` and `next_offset` are the end of the valid batches, and `damage`
    says what is wrong with the bytes after it (None: there are none).
    """

    def __init__(
        self,
        file: DiskFile,
        *,
        position: int,
        end: int,
        next_offset: int,
        leader_epoch: int = -1,
        check: CheckHeader | None = None,
    ) -> None:
        """`check`: what else the caller knows of the batches; it raises CorruptBatch."""
        self._window = _Window(file, end)
        self._end = end
        self._check = check
        self.position = position
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.damage: str | None = None

    def __iter__(self) -> Iterator[FoundBatch]:
        while self.position < self._end:
            try:
                header = self._valid_batch()
            except CorruptBatch as error:
                self.damage = error.detail
                return
            found = FoundBatch(self.position, header)
            self.position += header.size_bytes
            self.next_offset = header.next_offset
            self.leader_epoch = header.partition_leader_epoch
            yield found

    def skip_to(self, found: FoundBatch) -> None:
        """Continue after damage, at a batch that `try_find_batch_after` found."""
        self.position = found.position
        self.next_offset = found.header.base_offset
        self.leader_epoch = min(self.leader_epoch, found.header.partition_leader_epoch)
        self.damage = None

    def _valid_batch(self) -> BatchHeader:
        header = self._window.header_at(self.position)
        batch_end = self.position + header.size_bytes
        if batch_end > self._end:
            missing = batch_end - self._end
            raise CorruptBatch(f"the batch at byte {self.position} lacks {missing} bytes")
        if header.base_offset < self.next_offset:
            detail = f"offset {header.base_offset} where {self.next_offset} is the next"
            raise CorruptBatch(detail)
        if header.partition_leader_epoch < self.leader_epoch:
            detail = f"leader epoch {header.partition_leader_epoch} after {self.leader_epoch}"
            raise CorruptBatch(detail)
        if self._check is not None:
            self._check(header, self.next_offset)
        if self._window.crc_of(self.position + ATTRIBUTES_AT, batch_end) != header.crc:
            raise CorruptBatch(f"checksum mismatch in the batch at byte {self.position}")
        return header


def ends_by(end_offset: int) -> CheckHeader:
    """Refuses batches that reach beyond the end of their segment."""

    def check(header: BatchHeader, _next_offset: int) -> None:
        if header.next_offset > end_offset:
            raise CorruptBatch(f"offset {header.last_offset} in a segment up to {end_offset}")

    return check


def try_find_batch_after(
    file: DiskFile,
    *,
    position: int,
    end: int,
    next_offset: int,
    accepts: Callable[[BatchHeader], bool] = lambda _header: True,
) -> FoundBatch | None:
    """The next valid batch somewhere after damage, or None.

    Only a matching checksum counts, and what else the caller knows (`accepts`). Garbage may look
    like many batches, so the bytes that are checksummed in vain are bounded.
    """
    window = _Window(file, end)
    budget = _SEARCH_CRC_FACTOR * (end - position)
    at = position
    while budget > 0:
        magic_at = window.find(_MAGIC, at + MAGIC_AT)
        if magic_at < 0 or magic_at - MAGIC_AT + HEADER_BYTES > end:
            return None
        at = magic_at - MAGIC_AT
        header = _try_header(window, at)
        if header is not None and _could_follow(header, next_offset, end - at) and accepts(header):
            budget -= header.size_bytes
            if window.crc_of(at + ATTRIBUTES_AT, at + header.size_bytes) == header.crc:
                return FoundBatch(at, header)
        at += 1
    return None


def _could_follow(header: BatchHeader, next_offset: int, bytes_left: int) -> bool:
    leap = header.base_offset - next_offset
    return 0 <= leap < _OFFSET_LEAP_MAX and header.size_bytes <= bytes_left


def _try_header(window: _Window, position: int) -> BatchHeader | None:
    try:
        return window.header_at(position)
    except CorruptBatch:
        return None
