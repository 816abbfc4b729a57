"""Columns of variable size in Arrow's memory layout, read in place.

A column is a buffer of end offsets (32 bits), a validity bitmap (least significant bit first, 0 for
null; no bitmap: nothing is null) and the data that the offsets point into: the bytes of all cells,
or the child column of a list. `first` is where a slice of a longer array begins.

The buffers come from another process: each cell is checked against them before it is used.
"""

from __future__ import annotations

__all__ = ["Cells"]

Buffer = bytes | bytearray | memoryview


class Cells:
    """Arrow's `binary`, `string` or `list`; for a list `data` is empty and `extent` is given."""

    def __init__(
        self,
        count: int,
        offsets: memoryview,
        data: Buffer,
        validity: Buffer | None = None,
        first: int = 0,
        extent: int = -1,
    ) -> None:
        if count < 0 or first < 0 or (count > 0 and len(offsets) <= first + count):
            raise ValueError("the column's offsets do not reach its last row")
        if validity is not None and len(validity) * 8 < first + count:
            raise ValueError("the column's validity does not reach its last row")
        self.count = count
        self.first = first
        self.offsets = offsets
        self.data = data
        self.extent = len(data) if extent < 0 else extent
        self.has_validity = validity is not None
        self.validity = b"" if validity is None else validity

    def start(self, row: int) -> int:
        """Where the cell begins; valid only after `size` has checked the cell."""
        return self.offsets[self.first + row]

    def size(self, row: int) -> int:
        """The size of the cell, -1 if it is null; ValueError if the offsets are inconsistent."""
        if not 0 <= row < self.count:
            raise ValueError("no such row")
        at = self.first + row
        if self.has_validity and not self.validity[at >> 3] >> (at & 7) & 1:
            return -1
        begin = self.offsets[at]
        end = self.offsets[at + 1]
        if not 0 <= begin <= end <= self.extent:
            raise ValueError("a cell is outside its column")
        return end - begin
