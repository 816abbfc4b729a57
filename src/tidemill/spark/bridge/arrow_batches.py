"""Builds Arrow record batches of about a megabyte from fetched batches, columns at a time.

Batches are sized by bytes: measured through Spark, 100-byte values are fastest in batches of 10,000
rows and more, 1 KB values in batches of 1,000. `hot.columns.record_columns` builds the columns
without a Python object per row; columns with one value (topic, partition) are kept from batch to
batch and sliced, as long as the value stays the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, final

import pyarrow as pa

from tidemill.client.consuming.consumer import FetchedBatches
from tidemill.client.consuming.visible_batches import visible_batches
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.hot.columns.record_columns import BinaryColumn, HeaderColumn, RecordColumns, append
from tidemill.wire import compression
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, records_section, verify

__all__ = ["ArrowBatches"]

ARROW_BATCH_BYTES: Final = 1 * MIB

_CREATE_TIME = 0
_APPEND_TIME = 1


@final
class ArrowBatches:
    """Builds record batches of one schema, one partition after another."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows_guess = 0
        self._bytes_guess = 0
        self._constants: dict[str, tuple[object, pa.Array]] = {}
        """The last column with one value in all rows, by name; a task may read many topics."""

    def decode(self, fetched: FetchedBatches, stop: int) -> Iterator[pa.RecordBatch]:
        """The visible records of `fetched` with offsets below `stop`.

        KafkaError if a batch is damaged.
        """
        columns = self._new_columns()
        kind = _CREATE_TIME
        for view, header in visible_batches(fetched):
            if header.base_offset >= stop:
                break
            verify(view, header)
            batch_kind = _APPEND_TIME if header.timestamp_type == "append" else _CREATE_TIME
            if batch_kind != kind:
                yield from self._finished(columns, fetched.partition, kind)
                columns, kind = self._new_columns(), batch_kind
            section, at, end = _section(view, header)
            done = 0
            while True:
                at, done = _append(columns, section, at, end, done, header, fetched, stop)
                if columns.size_bytes < ARROW_BATCH_BYTES:
                    break
                yield from self._finished(columns, fetched.partition, kind)
                columns = self._new_columns()
        yield from self._finished(columns, fetched.partition, kind)

    def _new_columns(self) -> RecordColumns:
        names = self._schema.names
        return RecordColumns(
            keys="key" in names,
            values="value" in names,
            headers="headers" in names,
            rows=self._rows_guess,
            data_bytes=self._bytes_guess,
        )

    def _finished(
        self, columns: RecordColumns, partition: TopicPartition, kind: int
    ) -> Iterator[pa.RecordBatch]:
        if columns.row_count == 0:
            return
        if columns.size_bytes >= ARROW_BATCH_BYTES:
            # The next batches are likely to be as large: reserve their size plus an eighth.
            self._rows_guess = columns.row_count + columns.row_count // 8
            used = columns.values.data_bytes if columns.values is not None else 0
            self._bytes_guess = used + used // 8
        arrays = [self._array(field, columns, partition, kind) for field in self._schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(
        self, field: pa.Field, columns: RecordColumns, partition: TopicPartition, kind: int
    ) -> pa.Array:
        rows = columns.row_count
        match field.name:
            case "key":
                return _binary(field.type, rows, columns.keys)
            case "value":
                return _binary(field.type, rows, columns.values)
            case "offset":
                return _numbers(field.type, rows, columns.offsets)
            case "timestamp":
                return _numbers(field.type, rows, columns.timestamps_us)
            case "headers":
                return _headers(field.type, rows, columns.headers)
            case "topic":
                return self._constant(field, partition.topic, rows)
            case "partition":
                return self._constant(field, partition.partition, rows)
            case _:
                return self._constant(field, kind, rows)

    def _constant(self, field: pa.Field, value: object, rows: int) -> pa.Array:
        known_value, known = self._constants.get(field.name, (None, None))
        if known is None or known_value != value or len(known) < rows:
            # An eighth more: the next batch has about as many rows.
            known = pa.repeat(pa.scalar(value, field.type), rows + rows // 8)
            self._constants[field.name] = (value, known)
        return known.slice(0, rows)


def _section(
    view: memoryview, header: BatchHeader
) -> tuple[bytes | bytearray | memoryview, int, int]:
    """The records of a batch: the buffer, and where the records begin and end in it."""
    if header.codec == compression.NONE:
        return view, HEADER_BYTES, header.size_bytes
    section = records_section(view, header)
    return section, 0, len(section)


def _append(
    columns: RecordColumns,
    section: bytes | bytearray | memoryview,
    at: int,
    end: int,
    done: int,
    header: BatchHeader,
    fetched: FetchedBatches,
    stop: int,
) -> tuple[int, int]:
    is_append_time = header.timestamp_type == "append"
    try:
        return append(
            columns,
            section,
            at,
            end,
            header.record_count,
            base_offset=header.base_offset,
            base_timestamp=header.base_timestamp,
            append_time=header.max_timestamp if is_append_time else None,
            low=fetched.from_offset,
            high=stop,
            first=done,
            bytes_max=ARROW_BATCH_BYTES,
        )
    except ValueError as error:
        where = f"{fetched.partition} at offset {header.base_offset}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{where}: {error}") from None


# --- Arrow arrays over the buffers of columns ----------------------------------------------------


def _numbers(kind: pa.DataType, rows: int, cells: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(cells)], null_count=0)


def _binary(kind: pa.DataType, rows: int, column: BinaryColumn | None) -> pa.Array:
    assert column is not None
    buffers = [
        pa.py_buffer(column.validity) if column.null_count else None,
        pa.py_buffer(column.offsets),
        pa.py_buffer(column.data),
    ]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=column.null_count)


def _headers(kind: pa.DataType, rows: int, column: HeaderColumn | None) -> pa.Array:
    assert column is not None
    entry = kind.value_type
    entries = pa.Array.from_buffers(
        entry,
        column.count,
        [None],
        null_count=0,
        children=[
            _binary(entry.field(0).type, column.count, column.keys),
            _binary(entry.field(1).type, column.count, column.values),
        ],
    )
    buffers = [pa.py_buffer(column.validity), pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(
        kind, rows, buffers, null_count=column.null_count, children=[entries]
    )
