"""Decodes batches into columns of Arrow's layout, without a Python object per record.

Theory of operation. `RecordColumns` grows while batch after batch is appended; its buffers are what
`pyarrow.Array.from_buffers` takes: int64 values, and for bytes a validity bitmap (least significant
bit first), int32 end offsets and the bytes themselves. Records are found by `record_walk.index`,
`_CHUNK_RECORDS` at a time; each column is then filled by one loop over that table. A chunk that
does not fit (2 GiB of int32 offsets) or is damaged raises before any column has grown.

Headers stay raw: `headers` holds each record's header bytes, `header_counts` how many there are;
`record_walk.read_headers` opens them for who asks.
"""

from __future__ import annotations

from array import array
from typing import final

from tidemill.hot.record_walk import index

__all__ = ["BinaryColumn", "RecordColumns", "append"]

Buffer = bytes | bytearray | memoryview

_CHUNK_RECORDS = 512
_DATA_BYTES_MAX = 0x7FFF_FFFF
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF


@final
class BinaryColumn:
    """A column of nullable bytes: Arrow's `binary`."""

    __slots__ = ("data", "null_count", "offsets", "validity")

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.validity = bytearray()
        self.null_count = 0

    def value(self, row: int) -> bytes | None:
        """One cell, for tests and tools."""
        if not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])


@final
class RecordColumns:
    """What was read from one partition, column by column; all have `row_count` rows."""

    __slots__ = ("header_counts", "headers", "keys", "offsets", "row_count", "timestamps", "values")

    def __init__(self) -> None:
        self.row_count = 0
        self.offsets = array("q")
        self.timestamps = array("q")
        self.keys = BinaryColumn()
        self.values = BinaryColumn()
        self.headers = BinaryColumn()
        self.header_counts = array("q")

    @property
    def data_bytes(self) -> int:
        """Bytes of keys, values and headers so far: the caller cuts its Arrow batches by it."""
        return len(self.keys.data) + len(self.values.data) + len(self.headers.data)


def append(
    columns: RecordColumns,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None = None,
    low: int = 0,
    high: int = _INT64_MAX,
) -> int:
    """Append the records of one records section whose offset is in low..high-1; how many those are.

    With `append_time` every record has that timestamp. ValueError when the section is damaged or a
    number leaves its 64 bits, OverflowError when a column would pass 2 GiB.
    """
    if not 0 <= base_offset <= _INT64_MAX - 0x8000_0000:
        raise ValueError("base offset leaves 64 bits")
    table = array("q", bytes(8 * 9 * min(max(count, 0), _CHUNK_RECORDS)))
    position = start
    done = 0
    appended = 0
    while done < count:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(buf, position, end, done, chunk, table)
        kept = _keep(table, chunk, base_offset, low, high)
        _check_timestamps(table, kept, base_timestamp)
        _check_room(columns, table, kept)
        _append_numbers(columns, table, kept, base_offset, base_timestamp, append_time)
        _append_binary(columns.keys, columns.row_count, buf, table, kept, 2)
        _append_binary(columns.values, columns.row_count, buf, table, kept, 4)
        _append_binary(columns.headers, columns.row_count, buf, table, kept, 6)
        columns.row_count += kept
        appended += kept
        done += chunk
    if position != end:
        raise ValueError("bytes after the last record")
    return appended


def _keep(table: array[int], count: int, base_offset: int, low: int, high: int) -> int:
    """Move the wanted rows to the front, headers as (at, size, count) like keys; how many."""
    kept = 0
    for row in range(0, count * 9, 9):
        offset = base_offset + table[row]
        if offset < low or offset >= high:
            continue
        for field in range(7):
            table[kept + field] = table[row + field]
        header_count = table[row + 7]
        table[kept + 7] = table[row + 8] - table[row + 6]
        table[kept + 8] = header_count
        kept += 9
    return kept // 9


def _check_timestamps(table: array[int], count: int, base_timestamp: int) -> None:
    for row in range(1, count * 9, 9):
        delta = table[row]
        if delta > 0:
            fits = base_timestamp <= 0x7FFF_FFFF_FFFF_FFFF - delta
        else:
            fits = base_timestamp >= -0x7FFF_FFFF_FFFF_FFFF - delta
        if not fits:
            raise ValueError("timestamp leaves 64 bits")


def _check_room(columns: RecordColumns, table: array[int], count: int) -> None:
    for column, field in ((columns.keys, 3), (columns.values, 5), (columns.headers, 7)):
        if len(column.data) + _sum_sizes(table, count, field) > _DATA_BYTES_MAX:
            raise OverflowError("a column of bytes holds at most 2 GiB")


def _sum_sizes(table: array[int], count: int, field: int) -> int:
    total = 0
    for row in range(field, count * 9, 9):
        if table[row] > 0:
            total += table[row]
    return total


def _append_numbers(
    columns: RecordColumns,
    table: array[int],
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> None:
    # With an append time every delta counts as 0 from there.
    factor = 1 if append_time is None else 0
    base = base_timestamp if append_time is None else append_time
    _append_sums(columns.offsets, table, count, 0, base_offset, 1)
    _append_sums(columns.timestamps, table, count, 1, base, factor)
    _append_sums(columns.header_counts, table, count, 8, 0, 1)


def _append_sums(
    column: array[int], table: array[int], count: int, field: int, base: int, factor: int
) -> None:
    """Append base + factor * cell for one field of the table."""
    first = len(column)
    column.frombytes(bytes(8 * count))
    cells = memoryview(column)
    for row in range(count):
        cells[first + row] = base + factor * table[row * 9 + field]


def _append_binary(
    column: BinaryColumn, first: int, buf: Buffer, table: array[int], count: int, field: int
) -> None:
    """Append the bytes that (field, field + 1) of the table point at."""
    at = len(column.data)
    column.data.extend(bytes(_sum_sizes(table, count, field + 1)))
    column.offsets.frombytes(bytes(4 * count))
    column.validity.extend(bytes((first + count + 7) // 8 - len(column.validity)))
    data = memoryview(column.data)
    ends = memoryview(column.offsets)
    validity = memoryview(column.validity)
    nulls = 0
    for row in range(count):
        start = table[row * 9 + field]
        size = table[row * 9 + field + 1]
        if size < 0:
            nulls += 1
        else:
            validity[(first + row) >> 3] |= 1 << ((first + row) & 7)
            if size > 0:
                data[at : at + size] = buf[start : start + size]
                at += size
        ends[first + row + 1] = at
    column.null_count += nulls
