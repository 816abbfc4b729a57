"""Encodes rows of Arrow columns into record batches, without a Python object per record.

Theory of operation. An `RowBatch` is the batch of one partition while it fills: a bytearray that
begins with room for the batch header, followed by records. `append` takes rows by their numbers,
first measures how many of them fit, then grows the bytearray once and writes. The bytes are the
same that `record_encode.encode` writes for these records: offsets count from 0, timestamps from the
first record's.
"""

from __future__ import annotations

from array import array

from tidemill.hot.columns.arrow_cells import Cells
from tidemill.hot.varint import size as varint_bytes
from tidemill.hot.varint import write as write_varint

__all__ = ["OversizedRecord", "RowBatch", "RowColumns", "append"]

# Named, since a literal beyond 31 bits would be a Python object in the compiled code.
_TIMESTAMP_MAX = 0x3FFF_FFFF_FFFF_FFFF
_RECORDS_MAX = 0x7FFF_FFFF


class OversizedRecord(ValueError):
    """The record for a row is larger than allowed."""

    def __init__(self, row: int, size_bytes: int) -> None:
        super().__init__(f"row {row} makes a record of {size_bytes} bytes")
        self.row = row
        self.size_bytes = size_bytes


class RowColumns:
    """The columns of some rows. Without `keys` or `headers` no row has any."""

    def __init__(
        self,
        timestamps: memoryview,
        values: Cells,
        keys: Cells | None = None,
        headers: Cells | None = None,
        header_names: Cells | None = None,
        header_values: Cells | None = None,
    ) -> None:
        if headers is not None and (header_names is None or header_values is None):
            raise ValueError("headers have names and values")
        self.timestamps = timestamps
        self.values = values
        self.keys = keys
        self.headers = headers
        self.header_names = header_names
        self.header_values = header_values


class RowBatch:
    """A batch that takes rows; the caller fills the first `head_bytes` of `buffer`."""

    def __init__(self, head_bytes: int) -> None:
        self.buffer = bytearray(head_bytes)
        self.record_count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1


def append(
    batch: RowBatch,
    columns: RowColumns,
    order: memoryview,
    start: int,
    stop: int,
    batch_bytes_max: int,
    record_bytes_max: int,
) -> int:
    """Append the rows order[start:stop] until the batch is full; the index of the first left out.

    The first row of an empty batch always fits. OversizedRecord for a record of more than
    `record_bytes_max`, ValueError if a header has no name or a column is damaged, OverflowError
    for a timestamp beyond 2^62; the batch is unchanged then.
    """
    if not 0 <= start <= stop <= len(order):
        raise ValueError("range outside the order")
    if start == stop:
        return start
    base = batch.base_timestamp
    if batch.record_count == 0:
        base = _timestamp(columns, order[start])
    sizes = array("q", bytes(8 * (stop - start)))
    end = _measure(
        columns,
        order,
        start,
        stop,
        batch.record_count,
        base,
        len(batch.buffer),
        batch_bytes_max,
        record_bytes_max,
        sizes,
    )
    batch.base_timestamp = base
    _write(batch, columns, order, start, end, sizes)
    return end


def _measure(
    columns: RowColumns,
    order: memoryview,
    start: int,
    stop: int,
    count: int,
    base: int,
    filled_bytes: int,
    batch_bytes_max: int,
    record_bytes_max: int,
    sizes: array[int],
) -> int:
    """Fill `sizes` for the rows that fit; returns where they end."""
    total = filled_bytes
    for at in range(start, stop):
        row = order[at]
        size = _record_bytes(columns, row, _timestamp(columns, row) - base, count)
        whole = size + varint_bytes(size)
        if whole > record_bytes_max:
            if at > start:
                return at  # the rows before it are sent first
            raise OversizedRecord(row, whole)
        if count > 0 and (total + whole > batch_bytes_max or count >= _RECORDS_MAX):
            return at
        sizes[at - start] = size
        total += whole
        count += 1
    return stop


def _timestamp(columns: RowColumns, row: int) -> int:
    if not 0 <= row < len(columns.timestamps):
        raise ValueError("no such row")
    timestamp = columns.timestamps[row]
    if not -_TIMESTAMP_MAX <= timestamp <= _TIMESTAMP_MAX:
        raise OverflowError("timestamp is beyond 62 bits")
    return timestamp


def _record_bytes(columns: RowColumns, row: int, timestamp_delta: int, offset_delta: int) -> int:
    """Bytes of one record after its length."""
    size = 1 + varint_bytes(timestamp_delta) + varint_bytes(offset_delta)
    size += _field_bytes(columns.keys, row) + _field_bytes(columns.values, row)
    if columns.headers is None or columns.header_names is None:
        return size + 1
    count = max(columns.headers.size(row), 0)
    size += varint_bytes(count)
    first = columns.headers.start(row)
    for child in range(first, first + count):
        if columns.header_names.size(child) < 0:
            raise ValueError(f"row {row} has a header without a key")
        size += _field_bytes(columns.header_names, child)
        size += _field_bytes(columns.header_values, child)
    return size


def _field_bytes(cells: Cells | None, row: int) -> int:
    if cells is None:
        return 1
    size = cells.size(row)
    return 1 if size < 0 else varint_bytes(size) + size


def _write(
    batch: RowBatch,
    columns: RowColumns,
    order: memoryview,
    start: int,
    end: int,
    sizes: array[int],
) -> None:
    position = len(batch.buffer)
    total = 0
    for at in range(end - start):
        total += sizes[at] + varint_bytes(sizes[at])
    batch.buffer.extend(bytes(total))
    out = memoryview(batch.buffer)
    for at in range(start, end):
        row = order[at]
        timestamp = columns.timestamps[row]
        position = write_varint(batch.buffer, position, sizes[at - start])
        # The attributes byte stays 0: no attribute of a record is defined.
        position = write_varint(batch.buffer, position + 1, timestamp - batch.base_timestamp)
        position = write_varint(batch.buffer, position, batch.record_count)
        position = _put_field(batch.buffer, out, position, columns.keys, row)
        position = _put_field(batch.buffer, out, position, columns.values, row)
        position = _put_headers(batch.buffer, out, position, columns, row)
        batch.record_count += 1
        if timestamp > batch.max_timestamp:
            batch.max_timestamp = timestamp


def _put_headers(
    buffer: bytearray, out: memoryview, position: int, columns: RowColumns, row: int
) -> int:
    if columns.headers is None:
        return write_varint(buffer, position, 0)
    count = max(columns.headers.size(row), 0)
    position = write_varint(buffer, position, count)
    first = columns.headers.start(row)
    for child in range(first, first + count):
        position = _put_field(buffer, out, position, columns.header_names, child)
        position = _put_field(buffer, out, position, columns.header_values, child)
    return position


def _put_field(
    buffer: bytearray, out: memoryview, position: int, cells: Cells | None, row: int
) -> int:
    if cells is None:
        return write_varint(buffer, position, -1)
    size = cells.size(row)
    position = write_varint(buffer, position, size)
    if size <= 0:
        return position
    start = cells.start(row)
    out[position : position + size] = cells.data[start : start + size]
    return position + size
