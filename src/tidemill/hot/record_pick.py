"""Chooses records of a batch, and copies the chosen ones with their offsets and times as they were.

HOT PATH of views and of topics with delay: once per record of a batch of which only some are shown.

Which records of a veiled batch consumers see is a function of the bytes alone: those without a
header that hides them. No clock and no key of the topic counts, so every replica, every index and
every reader agree, now and after any restart.
"""

from __future__ import annotations

from array import array

from tidemill.hot import byte_copy
from tidemill.hot.record_walk import header_at, index

__all__ = ["CHUNK_RECORDS", "HIDING_NAMES", "judge", "pick"]

Buffer = bytes | bytearray | memoryview

CHUNK_RECORDS = 512
"""The most records of one call: the table of their positions takes 36 KB."""
HIDING_NAMES = frozenset(
    {
        b"tidemill.command",
        b"tidemill.delay-ms",
        b"tidemill.deliver-at",
        b"tidemill.half",
        b"tidemill.only-group",
        b"tidemill.schedule",
    }
)
"""Headers of records that are held, private or commands; all begin with `t`."""


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


def judge(
    data: bytes, start: int, end: int, first: int, count: int, delta_min: int, verdicts: bytearray
) -> tuple[int, int, int, int]:
    """Set the verdicts of `count` records from `start` on: 1 if a consumer sees the record.

    `first` is the number of the first one in its batch. Records with an offset delta below
    `delta_min` are not seen. Returns where the records end, how many are seen, the offset delta of
    the last of these (-1: none), and the highest timestamp delta of all of them.
    """
    if not 0 < count <= CHUNK_RECORDS or not 0 <= first <= len(verdicts) - count:
        raise ValueError("no records, or more than there are verdicts")
    rows = array("q", bytes(8 * 9 * count))
    position = index(data, start, end, first, count, rows)
    seen = 0
    last_delta = -1
    highest = rows[1]
    for record in range(count):
        at = record * 9
        if rows[at + 1] > highest:
            highest = rows[at + 1]
        is_seen = rows[at] >= delta_min
        if is_seen and rows[at + 7]:
            is_seen = not _is_hidden(data, rows[at + 6], rows[at + 8], rows[at + 7])
        verdicts[first + record] = is_seen
        if is_seen:
            seen += 1
            last_delta = rows[at]
    return position, seen, last_delta, highest


def _is_hidden(data: bytes, start: int, end: int, count: int) -> bool:
    """Without an object per header: a record may have as many as it has bytes."""
    buf = memoryview(data)
    position = start
    for _ in range(count):
        name_at, name_bytes, position, size = header_at(buf, position, end)
        position += max(0, size)
        name_end = name_at + name_bytes
        if name_bytes > 9 and buf[name_at] == 0x74 and data[name_at:name_end] in HIDING_NAMES:
            return True
    return False
