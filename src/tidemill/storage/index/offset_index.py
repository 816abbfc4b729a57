"""Offset to file position, sparse: one entry for about every `index.interval.bytes` of a segment.

An entry names a batch: its base offset and where it begins. Between two entries the segment itself
is read, header by header. Entries are kept as two arrays of 32-bit numbers relative to the
segment's beginning, eight bytes per entry, and are found by bisection.

The file (`index_blocks`) is appended to at a roll or a checkpoint, only with entries whose bytes
are already synced. It is never needed: what it does not cover is scanned again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, final

from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.index_blocks import decode_blocks, encode_block

__all__ = ["OffsetIndex"]

_KIND: Final = b"OIDX"


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
        """The last entry whose batch begins at or before `offset`; -1 if there is none."""
        return bisect_right(self.offsets, offset - self.base_offset, 0, len(self.positions)) - 1

    def entry_at_position(self, position: int) -> int:
        """The last entry whose batch begins at or before `position`; -1 if there is none."""
        return bisect_right(self.positions, position) - 1

    def position_before(self, offset: int) -> int:
        """Where to start reading for `offset`: no batch before this position reaches it."""
        entry = self.entry_at_offset(offset)
        return self.positions[entry] if entry >= 0 else 0

    def head(self, count: int) -> OffsetIndex:
        """The first `count` entries, copied."""
        head = OffsetIndex(self.base_offset)
        head.offsets, head.positions = self.offsets[:count], self.positions[:count]
        return head

    def encode_from(self, first: int) -> bytes:
        """A block with the entries from `first` on, to append to the file."""
        columns = (self.offsets[first:], self.positions[first:])
        return encode_block(_KIND, columns, base_offset=self.base_offset, first=first)

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int, name: str) -> tuple[OffsetIndex, int]:
        """As many entries as are whole and in sequence, and how many bytes they take."""
        index = cls(base_offset)
        columns = (index.offsets, index.positions)
        used_bytes = decode_blocks(data, columns, kind=_KIND, base_offset=base_offset, name=name)
        return index, used_bytes
