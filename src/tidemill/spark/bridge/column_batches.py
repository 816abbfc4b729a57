"""Arrow record batches as the columns that `hot.columns.column_encode` reads: views, no copies.

Only rare or small data is converted: columns with 64-bit offsets, timestamps to milliseconds, and
rows of several topics, which are separated.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import UserError
from tidemill.core.ids import is_legal_topic_name
from tidemill.hot.columns.arrow_cells import Cells
from tidemill.hot.columns.column_encode import RowColumns
from tidemill.hot.columns.row_partitions import UNDECIDED

__all__ = ["asked_partitions", "by_topic", "cells_of", "row_columns"]

_MS = pa.timestamp("ms", "UTC")
_NARROW = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; if `topic` is given, all rows belong to it."""
    if topic is not None:
        yield topic, batch
        return
    column = _column(batch, "topic")
    if column is None or column.null_count:
        raise UserError("a row has no topic: fill the column topic, or give the option topic")
    encoded = column.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    for index, name in enumerate(names):
        if not is_legal_topic_name(name):
            raise UserError(f"a row names the topic {name!r}, which is not a topic name")
        if len(names) == 1:
            yield name, batch
        else:
            yield name, batch.filter(pc.equal(encoded.indices, index))


def row_columns(batch: pa.RecordBatch, now_ms: int) -> RowColumns:
    """The columns of a record; a row without a timestamp gets `now_ms`."""
    values = _column(batch, "value")
    if values is None:
        raise UserError("the column value is missing")
    keys = _column(batch, "key")
    timestamps = _timestamps(batch, now_ms)
    headers = _column(batch, "headers")
    if headers is None:
        return RowColumns(timestamps, cells_of(values), None if keys is None else cells_of(keys))
    entries = headers.values
    return RowColumns(
        timestamps,
        cells_of(values),
        None if keys is None else cells_of(keys),
        _list_cells(headers),
        cells_of(entries.field("key")),
        cells_of(entries.field("value")),
    )


def asked_partitions(batch: pa.RecordBatch, topic: str, partition_count: int) -> array[int]:
    """The partition that each row asks for; UNDECIDED if it asks for none."""
    column = _column(batch, "partition")
    if column is None or column.null_count == len(column):
        row_count: int = batch.num_rows
        return array("i", [UNDECIDED]) * row_count
    extremes = pc.min_max(column).as_py()
    for asked in extremes.values():
        if not 0 <= asked < partition_count:
            raise UserError(
                f"a row asks for partition {asked} of topic {topic}, which has the partitions "
                f"0 to {partition_count - 1}"
            )
    filled = column.fill_null(UNDECIDED)
    asked_for = array("i")
    asked_for.frombytes(_view(filled.buffers()[1], "i")[filled.offset :][: len(filled)].tobytes())
    return asked_for


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    for index, found in enumerate(batch.schema.names):
        if found.lower() == name:
            column = batch.column(index)
            narrow = _NARROW.get(column.type)
            return column if narrow is None else column.cast(narrow)
    return None


def cells_of(column: pa.Array) -> Cells:
    """A column of bytes or text, read in place."""
    narrow = _NARROW.get(column.type)
    if narrow is not None:
        column = column.cast(narrow)
    validity, offsets, data = column.buffers()
    return Cells(
        len(column),
        _view(offsets, "i"),
        _view(data, "B"),
        None if validity is None else _view(validity, "B"),
        column.offset,
    )


def _list_cells(column: pa.ListArray) -> Cells:
    validity, offsets = column.buffers()[:2]
    return Cells(
        len(column),
        _view(offsets, "i"),
        b"",
        None if validity is None else _view(validity, "B"),
        column.offset,
        len(column.values),
    )


def _timestamps(batch: pa.RecordBatch, now_ms: int) -> memoryview:
    column = _column(batch, "timestamp")
    if column is None:
        return memoryview(array("q", [now_ms]) * batch.num_rows)
    in_ms = column.cast(_MS, safe=False).cast(pa.int64()).fill_null(now_ms)
    return _view(in_ms.buffers()[1], "q")[in_ms.offset :][: len(in_ms)]


def _view(buffer: pa.Buffer | None, item: Literal["B", "i", "q"]) -> memoryview:
    """A buffer as whole items; None is an empty buffer, which Arrow leaves out."""
    if buffer is None:
        return memoryview(b"").cast(item)
    bytes_view = memoryview(buffer).cast("B")
    if item == "B":
        return bytes_view
    size_bytes = array(item).itemsize
    return bytes_view[: len(bytes_view) // size_bytes * size_bytes].cast(item)
