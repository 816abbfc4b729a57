from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tests.unit.hot.columns.arrow_layout import binary_cells, list_cells
from tidemill.client.producing.encoded_batch import EncodedBatch
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.ids import TopicPartition
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.records import Record, build_batch

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)

LARGE = 1 << 30

maybe_bytes = st.none() | st.binary(max_size=200)
header = st.tuples(st.text(max_size=8), maybe_bytes)
rows = st.lists(
    st.builds(
        Record,
        maybe_bytes,
        maybe_bytes,
        headers=st.lists(header, max_size=3),
        timestamp=st.integers(0, 2**50),
    ),
    min_size=1,
    max_size=12,
)


def row_columns(flavour: str, records: list[Record], *, first: int = 0):
    """The records as columns, after `first` rows that are not part of the slice."""
    padding = [Record(b"padding", b"padding")] * first
    everything = padding + records
    children = [entry for record in everything for entry in record.headers]
    names = [name.encode() for name, _ in children]
    cells = load(flavour, "columns.arrow_cells").Cells
    return load(flavour, "columns.column_encode").RowColumns(
        memoryview(array("q", [record.timestamp for record in records])),
        binary_cells(cells, [r.value for r in everything], first),
        binary_cells(cells, [r.key for r in everything], first),
        list_cells(cells, [len(r.headers) for r in everything], first),
        binary_cells(cells, names),
        binary_cells(cells, [data for _, data in children]),
    )


def in_order(count: int) -> memoryview:
    return memoryview(array("i", range(count)))


def sealed(batch) -> bytes:
    encoded = EncodedBatch(
        TopicPartition("t", 0),
        batch.buffer,
        0,
        batch.record_count,
        batch.base_timestamp,
        batch.max_timestamp,
    )
    encoded.seal(ProducerIdentity(7, 1), 42)
    return bytes(encoded.buffer)


def built(records: list[Record]) -> bytes:
    return bytes(build_batch(records, producer_id=7, producer_epoch=1, base_sequence=42))


@settings(max_examples=60)
@given(records=rows, first=st.integers(0, 9))
def test_columns_become_the_same_bytes_as_records_one_by_one(flavour, records, first):
    encode = load(flavour, "columns.column_encode")
    batch = encode.RowBatch(HEADER_BYTES)
    columns = row_columns(flavour, records, first=first)

    end = encode.append(batch, columns, in_order(len(records)), 0, len(records), LARGE, LARGE)

    assert end == len(records)
    assert sealed(batch) == built(records)


@settings(max_examples=40)
@given(records=rows, bytes_max=st.integers(1, 2000))
def test_a_batch_takes_rows_until_it_is_full_and_never_more(flavour, records, bytes_max):
    encode = load(flavour, "columns.column_encode")
    columns = row_columns(flavour, records)
    order = in_order(len(records))
    at = 0
    while at < len(records):
        batch = encode.RowBatch(HEADER_BYTES)
        begin, at = at, encode.append(batch, columns, order, at, len(records), bytes_max, LARGE)
        assert sealed(batch) == built(records[begin:at])
        assert len(batch.buffer) <= bytes_max or at == begin + 1
        if at < len(records):
            assert len(built(records[begin : at + 1])) > bytes_max


def test_a_batch_continues_with_the_next_columns(flavour):
    encode = load(flavour, "columns.column_encode")
    records = [Record(b"%d" % n, timestamp=1000 - n) for n in range(6)]
    batch = encode.RowBatch(HEADER_BYTES)
    for part in (records[:2], records[2:]):
        columns = row_columns(flavour, part)
        encode.append(batch, columns, in_order(len(part)), 0, len(part), LARGE, LARGE)
    assert sealed(batch) == built(records)


def test_rows_are_taken_in_the_requested_order(flavour):
    encode = load(flavour, "columns.column_encode")
    records = [Record(b"%d" % n, timestamp=5) for n in range(4)]
    batch = encode.RowBatch(HEADER_BYTES)
    order = memoryview(array("i", [3, 1, 0, 2]))
    encode.append(batch, row_columns(flavour, records), order, 1, 4, LARGE, LARGE)
    assert sealed(batch) == built([records[1], records[0], records[2]])


def test_without_keys_and_headers_no_record_has_any(flavour):
    encode = load(flavour, "columns.column_encode")
    cells = load(flavour, "columns.arrow_cells").Cells
    columns = encode.RowColumns(memoryview(array("q", [9, 9])), binary_cells(cells, [b"a", None]))
    batch = encode.RowBatch(HEADER_BYTES)
    encode.append(batch, columns, in_order(2), 0, 2, LARGE, LARGE)
    assert sealed(batch) == built([Record(b"a", timestamp=9), Record(None, timestamp=9)])


def test_an_oversized_record_is_named_with_its_size_after_those_before_it(flavour):
    encode = load(flavour, "columns.column_encode")
    records = [Record(b"small"), Record(b"x" * 500), Record(b"small")]
    columns = row_columns(flavour, records)
    batch = encode.RowBatch(HEADER_BYTES)
    assert encode.append(batch, columns, in_order(3), 0, 3, LARGE, 100) == 1
    with pytest.raises(encode.OversizedRecord) as refused:
        encode.append(batch, columns, in_order(3), 1, 3, LARGE, 100)
    assert (refused.value.row, refused.value.size_bytes) == (1, len(built([records[1]])) - 61)
    assert batch.record_count == 1


def test_a_header_without_a_key_is_refused(flavour):
    encode = load(flavour, "columns.column_encode")
    cells = load(flavour, "columns.arrow_cells").Cells
    columns = encode.RowColumns(
        memoryview(array("q", [0])),
        binary_cells(cells, [b"v"]),
        None,
        list_cells(cells, [1]),
        binary_cells(cells, [None]),
        binary_cells(cells, [b"x"]),
    )
    with pytest.raises(ValueError, match="header without a key"):
        encode.append(encode.RowBatch(61), columns, in_order(1), 0, 1, LARGE, LARGE)


def test_headers_need_names_and_values(flavour):
    encode = load(flavour, "columns.column_encode")
    cells = load(flavour, "columns.arrow_cells").Cells
    with pytest.raises(ValueError, match="names and values"):
        encode.RowColumns(
            memoryview(array("q", [0])), binary_cells(cells, [b"v"]), None, list_cells(cells, [0])
        )


@pytest.mark.parametrize("timestamp", [2**62, -(2**62), 2**63 - 1])
def test_a_timestamp_whose_deltas_could_overflow_is_refused(flavour, timestamp):
    encode = load(flavour, "columns.column_encode")
    columns = row_columns(flavour, [Record(b"v", timestamp=timestamp)])
    with pytest.raises(OverflowError):
        encode.append(encode.RowBatch(61), columns, in_order(1), 0, 1, LARGE, LARGE)


@pytest.mark.parametrize("order", [[1], [-1]])
def test_a_missing_row_is_refused(flavour, order):
    encode = load(flavour, "columns.column_encode")
    columns = row_columns(flavour, [Record(b"v")])
    numbers = memoryview(array("i", order))
    with pytest.raises(ValueError, match="no such row"):
        encode.append(encode.RowBatch(61), columns, numbers, 0, 1, LARGE, LARGE)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 2), (1, 0)])
def test_a_range_outside_the_order_is_refused(flavour, start, stop):
    encode = load(flavour, "columns.column_encode")
    columns = row_columns(flavour, [Record(b"v")])
    with pytest.raises(ValueError, match="range outside"):
        encode.append(encode.RowBatch(61), columns, in_order(1), start, stop, LARGE, LARGE)


def test_no_rows_change_nothing(flavour):
    encode = load(flavour, "columns.column_encode")
    batch = encode.RowBatch(61)
    assert encode.append(batch, row_columns(flavour, [Record(b"v")]), in_order(1), 1, 1, 9, 9) == 1
    assert batch.record_count == 0
