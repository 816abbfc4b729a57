"""Copies chosen records of a batch, with their offsets and times as they were.

HOT PATH of views: once per record of a batch of which only some match.
"""

from __future__ import annotations

from array import array

from tidemill.hot import byte_copy
from tidemill.hot.record_walk import index

__all__ = ["CHUNK_RECORDS", "pick"]

Buffer = bytes | bytearray | memoryview

CHUNK_RECORDS = 512
"""The most records of one call: the table of their positions takes 36 KB."""


def pick(
    buf: Buffer,
    start: int,
    end: int,
    first: int,
    count: int,
    verdicts: bytearray,
    out: bytearray,
    out_at: int,
) -> tuple[int, int, int | None]:
    """Copy those of `count` records from `start` on whose verdict is not 0 to `out[out_at:]`.

    `first` is the number of the first one in its batch. Returns where the records end, where the
    copies end, and the highest timestamp delta of a copied one, None if there is none.
    """
    if not 0 <= count <= CHUNK_RECORDS or not 0 <= first <= len(verdicts) - count:
        raise ValueError("more records than there are verdicts")
    rows = array("q", bytes(8 * 9 * count))
    target = memoryview(out)
    chosen = memoryview(verdicts)
    position = index(buf, start, end, first, count, rows)
    highest = 0
    copied = 0
    record_at = start
    for record in range(count):
        record_end = rows[record * 9 + 8]
        if chosen[first + record]:
            size = record_end - record_at
            byte_copy.copy_bytes(target, out_at, buf, record_at, size)
            out_at += size
            delta = rows[record * 9 + 1]
            if copied == 0 or delta > highest:
                highest = delta
            copied += 1
        record_at = record_end
    return position, out_at, highest if copied else None
