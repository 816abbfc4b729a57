"""Decodes batches into columns of Arrow's layout, without a Python object per record.

Theory of operation. `RecordColumns` fills as batch after batch is appended; `pyarrow`'s
`Array.from_buffers` takes its buffers: int64 values, and for bytes a validity bitmap (least
significant bit first), int32 end offsets and the bytes themselves. The buffers are longer than what
is used and grow by doubling. `record_walk.index` finds the records, a chunk at a time; one loop
over that table then fills each column. A chunk that does not fit (2 GiB of int32 offsets) or is
damaged raises before any column has grown.

`append` stops after the chunk that brings the columns to `bytes_max` and returns its position: the
caller makes an Arrow batch of the columns and continues with new ones.

Headers are Arrow's `list<struct<key, value>>`: a record without headers has null there, as in
Spark's Kafka source.
"""

from __future__ import annotations

from array import array
from typing import final

from tidemill.hot import byte_copy
from tidemill.hot.record_walk import header_at, index

__all__ = ["BinaryColumn", "HeaderColumn", "RecordColumns", "append"]

Buffer = bytes | bytearray | memoryview

_CHUNK_RECORDS = 512
_CHUNK_BYTES = 256 * 1024
"""A few large records make a small chunk, so `bytes_max` is not exceeded by much."""
_ROW_FIELDS = 9
_DATA_BYTES_MAX = 0x7FFF_FFFF
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF
_TIMESTAMP_MS_MAX = 1 << 52
"""Base and delta each: their sum in microseconds fits 64 bits. 142,000 years."""


@final
class BinaryColumn:
    """A column of nullable bytes: Arrow's `binary`."""

    __slots__ = ("data", "data_bytes", "null_count", "offsets", "validity")

    def __init__(self, rows: int = 0, data_bytes: int = 0) -> None:
        self.offsets = array("i", bytes(4 * (rows + 1)))
        self.data = bytearray(data_bytes)
        self.validity = bytearray((rows + 7) // 8)
        self.data_bytes = 0
        """Used bytes of `data`."""
        self.null_count = 0

    def reserve(self, rows: int, data_bytes: int) -> None:
        """Make room for this many rows in total, and this many more bytes."""
        if data_bytes > _DATA_BYTES_MAX - self.data_bytes:
            raise OverflowError("a column of bytes holds at most 2 GiB")
        _grow_array(self.offsets, rows + 1)
        _grow(self.validity, (rows + 7) // 8)
        _grow(self.data, self.data_bytes + data_bytes)

    def value(self, row: int) -> bytes | None:
        """One cell, for tests and tools."""
        if not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])


@final
class HeaderColumn:
    """A column of lists of headers; `keys` and `values` have `count` rows, one for each header."""

    __slots__ = ("count", "keys", "null_count", "offsets", "table", "validity", "values")

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.validity = bytearray()
        self.null_count = 0
        self.count = 0
        self.keys = BinaryColumn()
        self.values = BinaryColumn()
        self.table = array("q")
        """Scratch: position and size of key and value of each header of a chunk."""

    def value(self, row: int) -> list[tuple[bytes | None, bytes | None]] | None:
        """One cell, for tests and tools."""
        if not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        entries = range(self.offsets[row], self.offsets[row + 1])
        return [(self.keys.value(entry), self.values.value(entry)) for entry in entries]


@final
class RecordColumns:
    """What was read from one partition, column by column; all columns have `row_count` rows.

    Columns that are not wanted are None and cost nothing. `rows` and `data_bytes` are estimates.
    """

    __slots__ = (
        "headers",
        "keys",
        "offsets",
        "row_count",
        "table",
        "timestamps_us",
        "values",
    )

    def __init__(
        self,
        *,
        keys: bool = True,
        values: bool = True,
        headers: bool = True,
        rows: int = 0,
        data_bytes: int = 0,
    ) -> None:
        self.row_count = 0
        self.offsets = array("q", bytes(8 * rows))
        self.timestamps_us = array("q", bytes(8 * rows))
        self.keys = BinaryColumn(rows) if keys else None
        self.values = BinaryColumn(rows, data_bytes) if values else None
        self.headers = HeaderColumn() if headers else None
        self.table = array("q", bytes(8 * _ROW_FIELDS * _CHUNK_RECORDS))
        """Scratch: the table of a chunk from `record_walk.index`."""

    @property
    def size_bytes(self) -> int:
        """The size of the rows so far: keys, values and headers, offsets and timestamps."""
        total = 16 * self.row_count
        for column in (self.keys, self.values):
            total += column.data_bytes if column is not None else 0
        if self.headers is not None:
            total += self.headers.keys.data_bytes + self.headers.values.data_bytes
            total += 8 * self.headers.count  # also of an empty one, of which there may be millions
        return total


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
    first: int = 0,
    bytes_max: int = _INT64_MAX,
) -> tuple[int, int]:
    """Append records `first`..`count`-1 of a records section that have offsets low..high-1.

    Record `first` begins at `start`, the last one ends at `end`. Returns where it stopped and the
    index of the next record: `end` and `count`, unless `bytes_max` was reached. With `append_time`
    every record has that timestamp. ValueError if the section is damaged or a number is out of
    range, OverflowError if a column would exceed 2 GiB.
    """
    if not 0 <= base_offset <= _INT64_MAX - 0x8000_0000:
        raise ValueError("base offset leaves 64 bits")
    base = base_timestamp if append_time is None else append_time
    if not -_TIMESTAMP_MS_MAX <= base <= _TIMESTAMP_MS_MAX:
        raise ValueError("timestamp leaves 64 bits in microseconds")
    chunk_max = _chunk_records(end - start, count - first)
    factor = 1 if append_time is None else 0
    position = start
    done = first
    while done < count:
        if columns.size_bytes >= bytes_max:
            return position, done
        chunk = min(count - done, chunk_max)
        position = index(buf, position, end, done, chunk, columns.table)
        _append_chunk(columns, buf, chunk, base_offset, base, factor, low, high)
        done += chunk
    if position != end:
        raise ValueError("bytes after the last record")
    return position, done


def _chunk_records(section_bytes: int, count: int) -> int:
    """The number of records that make about `_CHUNK_BYTES`, at least one."""
    if section_bytes <= 0:
        return _CHUNK_RECORDS
    return min(_CHUNK_RECORDS, max(1, _CHUNK_BYTES * count // section_bytes))


def _append_chunk(
    columns: RecordColumns,
    buf: Buffer,
    chunk: int,
    base_offset: int,
    base: int,
    factor: int,
    low: int,
    high: int,
) -> None:
    table = columns.table
    kept = _keep(table, chunk, base_offset, low, high)
    if kept == 0:
        return
    if factor:
        _check_timestamps(table, kept)
    first = columns.row_count
    rows = first + kept
    _reserve(columns, buf, table, kept)
    _grow_array(columns.offsets, rows)
    _grow_array(columns.timestamps_us, rows)
    _put_sums(columns.offsets, first, table, kept, 0, base_offset, 1, 1)
    _put_sums(columns.timestamps_us, first, table, kept, 1, base, factor, 1000)
    if columns.keys is not None:
        _put_binary(columns.keys, first, buf, table, kept, _ROW_FIELDS, 2)
    if columns.values is not None:
        _put_binary(columns.values, first, buf, table, kept, _ROW_FIELDS, 4)
    if columns.headers is not None:
        _put_headers(columns.headers, first, buf, table, kept)
    columns.row_count = rows


def _reserve(columns: RecordColumns, buf: Buffer, table: array[int], kept: int) -> None:
    """Make room in every column, or raise before any of them has changed its content."""
    rows = columns.row_count + kept
    if columns.keys is not None:
        columns.keys.reserve(rows, _sum_sizes(table, kept, _ROW_FIELDS, 3))
    if columns.values is not None:
        columns.values.reserve(rows, _sum_sizes(table, kept, _ROW_FIELDS, 5))
    headers = columns.headers
    if headers is not None:
        found = _count_headers(table, kept)
        _grow_array(headers.table, 4 * found)
        _index_headers(buf, table, kept, headers.table)
        _grow_array(headers.offsets, rows + 1)
        _grow(headers.validity, (rows + 7) // 8)
        headers.keys.reserve(headers.count + found, _sum_sizes(headers.table, found, 4, 1))
        headers.values.reserve(headers.count + found, _sum_sizes(headers.table, found, 4, 3))


def _grow(buffer: bytearray, size: int) -> None:
    if size > len(buffer):
        buffer.extend(bytes(max(size, 2 * len(buffer)) - len(buffer)))


def _grow_array(cells: array[int], count: int) -> None:
    if count > len(cells):
        cells.frombytes(bytes((max(count, 2 * len(cells)) - len(cells)) * cells.itemsize))


# --- loops over the records of a chunk -----------------------------------------------------------


def _keep(table: array[int], count: int, base_offset: int, low: int, high: int) -> int:
    """Move the wanted rows to the front; returns how many there are."""
    kept = 0
    for row in range(0, count * 9, 9):
        offset = base_offset + table[row]
        if offset < low or offset >= high:
            continue
        if kept != row:
            for field in range(9):
                table[kept + field] = table[row + field]
        kept += 9
    return kept // 9


def _check_timestamps(table: array[int], count: int) -> None:
    for row in range(1, count * 9, 9):
        if not -_TIMESTAMP_MS_MAX <= table[row] <= _TIMESTAMP_MS_MAX:
            raise ValueError("timestamp leaves 64 bits in microseconds")


def _sum_sizes(table: array[int], count: int, stride: int, field: int) -> int:
    total = 0
    for row in range(count):
        size = table[row * stride + field]
        if size > 0:
            total += size
    return total


def _put_sums(
    column: array[int],
    first: int,
    table: array[int],
    count: int,
    field: int,
    base: int,
    factor: int,
    unit: int,
) -> None:
    """Put unit * (base + factor * cell) for one field of the table."""
    cells = memoryview(column)
    for row in range(count):
        cells[first + row] = unit * (base + factor * table[row * 9 + field])


def _put_binary(
    column: BinaryColumn,
    first: int,
    buf: Buffer,
    table: array[int],
    count: int,
    stride: int,
    field: int,
) -> None:
    """Put the bytes that (field, field + 1) of the table point to."""
    data = memoryview(column.data)
    ends = memoryview(column.offsets)
    validity = memoryview(column.validity)
    at = column.data_bytes
    nulls = 0
    for row in range(count):
        size = table[row * stride + field + 1]
        if size < 0:
            nulls += 1
        else:
            validity[(first + row) >> 3] |= 1 << ((first + row) & 7)
            byte_copy.copy_bytes(data, at, buf, table[row * stride + field], size)
            at += size
        ends[first + row + 1] = at
    column.data_bytes = at
    column.null_count += nulls


def _count_headers(table: array[int], count: int) -> int:
    total = 0
    for row in range(count):
        total += table[row * 9 + 7]
    return total


def _index_headers(buf: Buffer, table: array[int], count: int, entries: array[int]) -> None:
    """Fill (key position, key size, value position, value size) for each header of the rows."""
    entry = 0
    for row in range(count):
        position = table[row * 9 + 6]
        end = table[row * 9 + 8]
        for _ in range(table[row * 9 + 7]):
            name_at, name_bytes, position, size = header_at(buf, position, end)
            entries[entry] = name_at
            entries[entry + 1] = name_bytes
            entries[entry + 2] = position
            entries[entry + 3] = size
            position += max(0, size)
            entry += 4


def _put_headers(
    column: HeaderColumn, first: int, buf: Buffer, table: array[int], count: int
) -> None:
    found = _count_headers(table, count)
    _put_binary(column.keys, column.count, buf, column.table, found, 4, 0)
    _put_binary(column.values, column.count, buf, column.table, found, 4, 2)
    column.null_count += _put_lists(
        column.offsets, column.validity, first, table, count, column.count
    )
    column.count += found


def _put_lists(
    offsets: array[int],
    validity_bits: bytearray,
    first: int,
    table: array[int],
    count: int,
    entry: int,
) -> int:
    """Put the bounds of each row's list; returns how many rows have none."""
    ends = memoryview(offsets)
    validity = memoryview(validity_bits)
    nulls = 0
    for row in range(count):
        size = table[row * 9 + 7]
        if size == 0:
            nulls += 1
        else:
            validity[(first + row) >> 3] |= 1 << ((first + row) & 7)
            entry += size
        ends[first + row + 1] = entry
    return nulls
