"""Offset to file position, sparse: one entry for about every `index.interval.bytes` of a segment.

An entry names a batch: its base offset and where it begins. Between two entries the segment itself
is read, header by header. Entries are kept as two arrays of 32-bit numbers relative to the
segment's beginning, eight bytes per entry, and are found by bisection.

The file is a sequence of checked blocks, appended to at a roll or a checkpoint and only with
entries whose bytes are already synced. It is never needed: what it does not cover, or does not
cover any more, is scanned again.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from struct import Struct
from typing import final

from tidemill.storage.files.checked_file import encode_checked, iter_blocks
from tidemill.storage.files.disk import Buffer

__all__ = ["OffsetIndex"]

_KIND = b"OIDX"
_VERSION = 1
_BLOCK = Struct("<qII")  # the segment's base offset, index of the block's first entry, entries
_ENTRY_BYTES = 4


@final
class OffsetIndex:
    """The entries of one segment; entry i is (`offsets[i]`, `positions[i]`), both rising."""

    __slots__ = ("base_offset", "offsets", "positions")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = array("I")
        """Base offsets of batches, relative to the segment's."""
        self.positions = array("I")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, offset: int, position: int) -> None:
        """A batch with this base offset begins here. Offset first: readers trust `positions`."""
        self.offsets.append(offset - self.base_offset)
        self.positions.append(position)

    def entry_at_offset(self, offset: int) -> int:
        """The last entry whose batch begins at `offset` or before it; -1: none."""
        return bisect_right(self.offsets, offset - self.base_offset, 0, len(self.positions)) - 1

    def entry_at_position(self, position: int) -> int:
        """The last entry whose batch begins at `position` or before it; -1: none."""
        return bisect_right(self.positions, position) - 1

    def position_before(self, offset: int) -> int:
        """Where to begin reading for `offset`: no batch before it reaches the offset."""
        entry = self.entry_at_offset(offset)
        return self.positions[entry] if entry >= 0 else 0

    def head(self, count: int) -> OffsetIndex:
        """The first `count` entries, copied."""
        head = OffsetIndex(self.base_offset)
        head.offsets, head.positions = self.offsets[:count], self.positions[:count]
        return head

    def encode_from(self, first: int) -> bytes:
        """A block with the entries from `first` on, to append to the file."""
        count = len(self) - first
        head = _BLOCK.pack(self.base_offset, first, count)
        body = _little_endian(self.offsets[first:]) + _little_endian(self.positions[first:])
        return encode_checked(_KIND, _VERSION, head + body)

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int, name: str) -> tuple[OffsetIndex, int]:
        """As many entries as are whole and in sequence, and how many bytes they take."""
        index = cls(base_offset)
        used_bytes = 0
        for payload, block_bytes in iter_blocks(data, kind=_KIND, version=_VERSION, name=name):
            if not index._try_extend(payload):
                break
            used_bytes += block_bytes
        return index, used_bytes

    def _try_extend(self, payload: memoryview) -> bool:
        if len(payload) < _BLOCK.size:
            return False
        base_offset, first, count = _BLOCK.unpack_from(payload)
        body = payload[_BLOCK.size :]
        in_sequence = base_offset == self.base_offset and first == len(self)
        if not in_sequence or len(body) != 2 * _ENTRY_BYTES * count:
            return False
        self.offsets.extend(_from_little_endian(body[: _ENTRY_BYTES * count]))
        self.positions.extend(_from_little_endian(body[_ENTRY_BYTES * count :]))
        return True


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _from_little_endian(data: memoryview) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
