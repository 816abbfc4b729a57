"""Copies held records into a release: key, value and headers as they are, without some headers.

HOT PATH of releases: once per record that is delivered. `find_records` looks up records of a batch
by their offset deltas, `put_record` writes one of them. No record becomes an object.
"""

from __future__ import annotations

from array import array

from tidemill.hot import byte_copy
from tidemill.hot.record_walk import header_at, index
from tidemill.hot.varint import size as varint_bytes
from tidemill.hot.varint import write as write_varint

__all__ = ["OVERHEAD_BYTES", "find_records", "put_record"]

OVERHEAD_BYTES = 32
"""By which a record may grow, beside what is added to its headers: its numbers may get longer."""
_CHUNK_RECORDS = 512


def find_records(
    data: bytes, count: int, wanted: array[int] | memoryview, found: array[int] | memoryview
) -> int:
    """Where the records with the `wanted` offset deltas, which rise, are: nine numbers for each.

    `data` is a section of `count` records. Returns the highest timestamp delta of all of them.
    Raises ValueError, also if a record is missing.
    """
    if len(found) // 9 < len(wanted):
        raise ValueError("table is too small")
    table = array("q", bytes(8 * 9 * min(count, _CHUNK_RECORDS)))
    rows = memoryview(table)
    position = 0
    done = 0
    matched = 0
    highest = 0
    while done < count:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(data, position, len(data), done, chunk, rows)
        for row in range(0, chunk * 9, 9):
            if rows[row + 1] > highest or (done == 0 and row == 0):
                highest = rows[row + 1]
            if matched < len(wanted) and rows[row] == wanted[matched]:
                for column in range(9):
                    found[matched * 9 + column] = rows[row + column]
                matched += 1
        done += chunk
    if matched < len(wanted):
        raise ValueError("a record is not where it was")
    return highest


def put_record(
    out: bytearray,
    out_at: int,
    data: bytes,
    found: array[int] | memoryview,
    place: int,
    offset_delta: int,
    added: bytes,
    added_count: int,
    dropped: frozenset[bytes],
) -> int:
    """Write the record at `place` in `found` to `out[out_at:]`; returns where it ends.

    Its timestamp delta is 0. It loses the headers named in `dropped`, which all begin with `t`, and
    gets `added`, which are as many headers as `added_count` in their encoded form.
    """
    rows = memoryview(found)
    row = place * 9
    buf = memoryview(data)
    target = memoryview(out)
    key_bytes = rows[row + 3]
    value_bytes = rows[row + 5]
    kept = array("q", bytes(8 * 2 * rows[row + 7]))
    spans = memoryview(kept)
    count = _keep_headers(data, buf, rows[row + 6], rows[row + 8], rows[row + 7], dropped, spans)
    size = 2 + varint_bytes(offset_delta) + varint_bytes(count + added_count) + len(added)
    size += varint_bytes(key_bytes) + max(0, key_bytes)
    size += varint_bytes(value_bytes) + max(0, value_bytes)
    for header in range(count):
        size += spans[2 * header + 1]
    out_at = write_varint(out, out_at, size)
    if size > len(out) - out_at:
        raise IndexError("no room for the record")
    out[out_at] = 0
    out[out_at + 1] = 0
    out_at = write_varint(out, out_at + 2, offset_delta)
    out_at = _put_field(out, target, out_at, buf, rows[row + 2], key_bytes)
    out_at = _put_field(out, target, out_at, buf, rows[row + 4], value_bytes)
    out_at = write_varint(out, out_at, count + added_count)
    for header in range(count):
        span = spans[2 * header + 1]
        byte_copy.copy_bytes(target, out_at, buf, spans[2 * header], span)
        out_at += span
    byte_copy.copy_bytes(target, out_at, memoryview(added), 0, len(added))
    return out_at + len(added)


def _keep_headers(
    data: bytes,
    buf: memoryview,
    position: int,
    end: int,
    count: int,
    dropped: frozenset[bytes],
    spans: memoryview,
) -> int:
    """Fill `spans` with start and size of each header that stays; returns how many do."""
    kept = 0
    for _ in range(count):
        start = position
        name_at, name_bytes, position, size = header_at(buf, position, end)
        position += max(0, size)
        name_end = name_at + name_bytes
        if name_bytes > 0 and buf[name_at] == 0x74 and data[name_at:name_end] in dropped:
            continue
        spans[2 * kept] = start
        spans[2 * kept + 1] = position - start
        kept += 1
    return kept


def _put_field(
    out: bytearray, target: memoryview, out_at: int, buf: memoryview, at: int, size: int
) -> int:
    out_at = write_varint(out, out_at, size)
    if size <= 0:
        return out_at
    byte_copy.copy_bytes(target, out_at, buf, at, size)
    return out_at + size
