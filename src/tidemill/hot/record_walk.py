"""Walks the records section of a batch of magic 2: the only parser of records in Tidemill.

    record  = length varint | attributes i8 | timestamp_delta varlong | offset_delta varint
            | key_length varint (-1: null) | key | value_length varint (-1: null) | value
            | header_count varint | header*
    header  = key_length varint | key | value_length varint (-1: null) | value

Theory of operation. `_scan` is one straight loop over records that trusts nothing: each length is
compared with the remaining bytes before it is used, a record must end exactly where its length
says, and a varint longer than its type is refused, as Java's reader does. `walk` checks a whole
section this way and keeps no record. Code that needs single records uses `index`: a table of
positions, `ROW_FIELDS` 64-bit numbers per record, for a bounded number of records at a time, so
that a batch with millions of tiny records never becomes millions of objects at once.

Errors are ValueError with the record's index in the text; callers in `wire` give them a code.
`_varint` does not use `varint.read`: compiled, a call inside one module takes 2.6 ns and a call
across two modules 10 ns, six times per record.
"""

from __future__ import annotations

from array import array

__all__ = [
    "HEADERS_AT",
    "HEADER_COUNT",
    "KEY_AT",
    "KEY_BYTES",
    "OFFSET_DELTA",
    "RECORD_END",
    "ROW_FIELDS",
    "TIMESTAMP_DELTA",
    "VALUE_AT",
    "VALUE_BYTES",
    "find_time",
    "header_at",
    "index",
    "keyless",
    "read_headers",
    "rows",
    "timestamps_outside",
    "walk",
]

Buffer = bytes | bytearray | memoryview
Header = tuple[bytes, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, list[Header]]

# Columns of the table that `index` fills. Sizes are -1 for null.
OFFSET_DELTA = 0
TIMESTAMP_DELTA = 1
KEY_AT = 2
KEY_BYTES = 3
VALUE_AT = 4
VALUE_BYTES = 5
HEADERS_AT = 6
HEADER_COUNT = 7
RECORD_END = 8
ROW_FIELDS = 9

_CHUNK_RECORDS = 512
"""Records per table where this module creates one: 36 KB."""
_OWN_PREFIX = b"tidemill."
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF
_INT64_MIN = -0x8000_0000_0000_0000


def walk(buf: Buffer, start: int, end: int, count: int) -> tuple[int, int, int, int]:
    """Check that `buf[start:end]` is exactly `count` records with offset deltas 0, 1, 2, ...

    Returns the lowest and highest timestamp delta, how many records have no key, and how many
    headers have a name that begins with `tidemill.`.
    """
    _check_range(len(buf), start, end, count)
    position, lowest, highest, null_keys, own_headers = _scan(buf, start, end, 0, count, True, None)
    if position != end:
        raise ValueError("bytes after the last record")
    return lowest, highest, null_keys, own_headers


def index(
    buf: Buffer, start: int, end: int, first: int, count: int, table: array[int] | memoryview
) -> int:
    """Fill `table` with the positions of `count` records from `start` on; returns where they end.

    `first` is the index of the record at `start`. Offset deltas need only be increasing within
    the call: compaction leaves gaps.
    """
    _check_range(len(buf), start, end, count)
    if len(table) // 9 < count:
        raise ValueError("table is too small")
    return _scan(buf, start, end, first, count, False, table)[0]


def find_time(
    buf: Buffer, start: int, end: int, count: int, base_timestamp: int, target_ms: int
) -> tuple[int, int] | None:
    """The first record with a timestamp of `target_ms` or later: offset delta and timestamp."""
    _check_range(len(buf), start, end, count)
    if target_ms - base_timestamp > _INT64_MAX:
        return None
    target_delta = max(target_ms - base_timestamp, _INT64_MIN)
    table = array("q", bytes(8 * 9 * min(count, _CHUNK_RECORDS)))
    position = start
    done = 0
    while done < count:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(buf, position, end, done, chunk, table)
        for row in range(0, chunk * 9, 9):
            if table[row + 1] >= target_delta:
                return table[row], base_timestamp + table[row + 1]
        done += chunk
    return None


def keyless(buf: Buffer, start: int, end: int, count: int, limit: int) -> list[int]:
    """Indexes of the first `limit` records without a key."""
    found: list[int] = []
    _check_range(len(buf), start, end, count)
    table = array("q", bytes(8 * 9 * min(count, _CHUNK_RECORDS)))
    position = start
    done = 0
    while done < count and len(found) < limit:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(buf, position, end, done, chunk, table)
        for row in range(chunk):
            if table[row * 9 + 3] < 0:
                found.append(done + row)  # noqa: PERF401 -- compiled, a generator is slower
        done += chunk
    return found[:limit]


def timestamps_outside(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    low: int,
    high: int,
    limit: int,
) -> list[int]:
    """Indexes of the first `limit` records with a timestamp neither in low..high nor -1 (unset)."""
    found: list[int] = []
    _check_range(len(buf), start, end, count)
    # Deltas are compared, not sums, which may exceed 64 bits. Bounds that no delta can reach put
    # every record outside.
    low_delta = _INT64_MAX
    high_delta = _INT64_MIN
    if low - base_timestamp <= _INT64_MAX and high - base_timestamp >= _INT64_MIN:
        low_delta = max(low - base_timestamp, _INT64_MIN)
        high_delta = min(high - base_timestamp, _INT64_MAX)
    unset_delta = -1 - base_timestamp
    table = array("q", bytes(8 * 9 * min(count, _CHUNK_RECORDS)))
    position = start
    done = 0
    while done < count and len(found) < limit:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(buf, position, end, done, chunk, table)
        for row in range(chunk):
            delta = table[row * 9 + 1]
            if (delta < low_delta or delta > high_delta) and delta != unset_delta:
                found.append(done + row)
        done += chunk
    return found[:limit]


def rows(data: bytes, start: int, end: int, first: int, count: int) -> tuple[int, list[Row]]:
    """`count` records as (offset delta, timestamp delta, key, value, headers), and where they end.

    The caller bounds `count`: every row is Python objects.
    """
    table = array("q", bytes(8 * 9 * count))
    stop = index(data, start, end, first, count, table)
    out: list[Row] = []
    for row in range(0, count * 9, 9):
        at = table[row + 2]
        size = table[row + 3]
        key = data[at : at + size] if size >= 0 else None
        at = table[row + 4]
        size = table[row + 5]
        value = data[at : at + size] if size >= 0 else None
        headers: list[Header] = []
        if table[row + 7]:
            headers = read_headers(data, table[row + 6], table[row + 8], table[row + 7])
        out.append((table[row], table[row + 1], key, value, headers))
    return stop, out


def read_headers(data: bytes, start: int, end: int, count: int) -> list[Header]:
    """The `count` headers that a row of the table points to."""
    _check_range(len(data), start, end, count)
    headers: list[Header] = []
    buf = memoryview(data)
    position = start
    for _ in range(count):
        name_at, name_bytes, position, size = header_at(buf, position, end)
        key = data[name_at : name_at + name_bytes]
        if size < 0:
            headers.append((key, None))
        else:
            headers.append((key, data[position : position + size]))
            position += size
    return headers


def header_at(buf: Buffer, position: int, end: int) -> tuple[int, int, int, int]:
    """Where the name and the value of a header are, each with its size: -1 for a null value.

    The headers of a record follow each other, so the next one is behind the value. ValueError if
    one of the two is not within `end`, which is in the buffer.
    """
    name_bytes, name_at = _varint(buf, position, end, 32)
    if name_at < 0 or not 0 <= name_bytes <= end - name_at:
        raise ValueError("header key beyond the record")
    value_bytes, value_at = _varint(buf, name_at + name_bytes, end, 32)
    if value_at < 0 or not -1 <= value_bytes <= end - value_at:
        raise ValueError("header value beyond the record")
    return name_at, name_bytes, value_at, value_bytes


def _check_range(length: int, start: int, end: int, count: int) -> None:
    """A negative index would wrap silently in C: everything must satisfy 0 <= start <= end."""
    if not 0 <= start <= end <= length:
        raise ValueError("range outside the buffer")
    if count < 0 or count > end - start:
        raise ValueError("record count does not fit the bytes")


def _scan(
    buf: Buffer,
    position: int,
    end: int,
    first: int,
    count: int,
    dense: bool,
    table: array[int] | memoryview | None,
) -> tuple[int, int, int, int, int]:
    """Where the records end, and the four numbers that `walk` returns."""
    lowest = 0
    highest = 0
    null_keys = 0
    own_headers = 0
    previous = -1
    row = 0
    for record in range(first, first + count):
        size, position = _varint(buf, position, end, 32)
        if position < 0 or not 0 < size <= end - position:
            raise ValueError(f"record {record}: length beyond the batch")
        stop = position + size

        # One byte of attributes, which has no meaning yet.
        timestamp_delta, position = _varint(buf, position + 1, stop, 64)
        offset_delta, position = _varint(buf, position, stop, 32)
        key_bytes, position = _varint(buf, position, stop, 32)
        if position < 0:
            raise ValueError(f"record {record}: cut or overlong varint")
        if dense:
            if offset_delta != record:
                raise ValueError(f"record {record}: offset delta is {offset_delta}")
        elif offset_delta <= previous:
            raise ValueError(f"record {record}: offset delta does not increase")
        previous = offset_delta
        if timestamp_delta < lowest or record == first:
            lowest = timestamp_delta
        if timestamp_delta > highest or record == first:
            highest = timestamp_delta

        key_at = position
        if not -1 <= key_bytes <= stop - position:
            raise ValueError(f"record {record}: key beyond the record")
        if key_bytes < 0:
            null_keys += 1
        else:
            position += key_bytes

        value_bytes, position = _varint(buf, position, stop, 32)
        value_at = position
        if position < 0 or not -1 <= value_bytes <= stop - position:
            raise ValueError(f"record {record}: value beyond the record")
        if value_bytes > 0:
            position += value_bytes

        header_count, position = _varint(buf, position, stop, 32)
        headers_at = position
        if position < 0 or not 0 <= header_count <= stop - position:
            raise ValueError(f"record {record}: header count beyond the record")
        for _ in range(header_count):
            size, position = _varint(buf, position, stop, 32)
            if position < 0 or not 0 <= size <= stop - position:
                raise ValueError(f"record {record}: header key beyond the record")
            if size > 8 and buf[position] == 0x74 and buf[position + 8] == 0x2E:
                own_headers += _is_own_name(buf, position)
            size, position = _varint(buf, position + size, stop, 32)
            if position < 0 or not -1 <= size <= stop - position:
                raise ValueError(f"record {record}: header value beyond the record")
            if size > 0:
                position += size
        if position != stop:
            raise ValueError(f"record {record}: length does not match its content")

        if table is not None:
            table[row] = offset_delta
            table[row + 1] = timestamp_delta
            table[row + 2] = key_at
            table[row + 3] = key_bytes
            table[row + 4] = value_at
            table[row + 5] = value_bytes
            table[row + 6] = headers_at
            table[row + 7] = header_count
            table[row + 8] = stop
            row += 9
    return position, lowest, highest, null_keys, own_headers


def _is_own_name(buf: Buffer, at: int) -> int:
    """1 if the nine bytes from `at` on are `tidemill.`, else 0."""
    for place in range(9):
        if buf[at + place] != _OWN_PREFIX[place]:
            return 0
    return 1


def _varint(buf: Buffer, position: int, end: int, bits: int) -> tuple[int, int]:
    """Value and next position; the position is -1 for a cut or overlong varint, or if it was -1."""
    if 0 <= position < end and buf[position] < 0x80:
        return (buf[position] >> 1) ^ -(buf[position] & 1), position + 1
    return _long_varint(buf, position, end, bits)


def _long_varint(buf: Buffer, position: int, end: int, bits: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    while 0 <= position < end and shift < bits:
        byte = buf[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift + 7 > bits and byte >> (bits - shift):
                break
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    return 0, -1
