"""Arrow's buffers built by hand, so that tests of `hot` need no pyarrow."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def binary_cells(cells, values: Sequence[bytes | None], first: int = 0):
    """`values[first:]` as a slice of one column."""
    offsets = array("i", [0])
    data = bytearray()
    for value in values:
        data += value or b""
        offsets.append(len(data))
    validity = _bitmap([value is not None for value in values])
    return cells(len(values) - first, memoryview(offsets), bytes(data), validity, first)


def list_cells(cells, sizes: Sequence[int], first: int = 0):
    """Lists of these sizes, one after the other; a negative size is a null."""
    offsets = array("i", [0])
    for size in sizes:
        offsets.append(offsets[-1] + max(size, 0))
    validity = _bitmap([size >= 0 for size in sizes])
    count = len(sizes) - first
    return cells(count, memoryview(offsets), b"", validity, first, offsets[-1])


def _bitmap(bits: Sequence[bool]) -> bytes:
    number = sum(1 << index for index, bit in enumerate(bits) if bit)
    return number.to_bytes((len(bits) + 7) // 8, "little")
