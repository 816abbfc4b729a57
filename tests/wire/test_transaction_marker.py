"""Markers: what stock clients read in them, and what Tidemill adds."""

from __future__ import annotations

import pytest

from tidemill.wire.batch import CorruptBatch, read_header, rebuild, verify
from tidemill.wire.records import Record, build_batch, iter_records
from tidemill.wire.transaction_marker import (
    TransactionMarker,
    build_marker,
    read_marker,
    with_horizon,
)

NOW_MS = 1_700_000_000_000
MARKERS = [
    TransactionMarker(True, 3, 5, 9),
    TransactionMarker(False, 0, 0, 1),
    TransactionMarker(False, 2**31 - 1, -1, 2**63 - 1),
]


def built(marker: TransactionMarker) -> memoryview:
    return memoryview(build_marker(marker, producer_id=7, producer_epoch=2, timestamp=NOW_MS))


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_read_as_it_was_built(marker):
    data = built(marker)
    header = read_header(data)
    verify(data, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, -1)
    assert read_marker(data, header) == marker


@pytest.mark.parametrize(("commits", "kind"), [(False, b"\0\0"), (True, b"\0\1")])
def test_T34_clients_find_the_outcome_in_the_key_and_the_coordinator_in_the_value(commits, kind):
    (record,) = iter_records(built(TransactionMarker(commits, 5, 1, 2)))
    assert record.key == b"\0\0" + kind
    assert record.value == b"\0\0" + b"\0\0\0\5"


def test_only_an_abort_of_records_concerns_readers():
    assert MARKERS[1].aborts_records
    assert not MARKERS[0].aborts_records
    assert not MARKERS[2].aborts_records


def test_a_horizon_changes_neither_outcome_nor_time():
    data = built(MARKERS[0])
    made = with_horizon(data, read_header(data), NOW_MS + 500)
    header = read_header(made)
    verify(memoryview(made), header)
    assert header.delete_horizon_ms == NOW_MS + 500
    assert read_marker(memoryview(made), header) == MARKERS[0]
    assert [record.timestamp for record in iter_records(made)] == [NOW_MS]


def test_an_emptied_marker_aborts_nothing():
    made = rebuild(
        read_header(built(MARKERS[1])),
        b"",
        record_count=0,
        max_timestamp=-1,
        delete_horizon_ms=None,
    )
    assert not read_marker(memoryview(made), read_header(made)).aborts_records


@pytest.mark.parametrize(
    "records",
    [
        [Record(b"")],
        [Record(b"\0\0\0\0\0\0", key=b"\0\0\0\7")],
        [Record(b"\0", key=b"\0\0\0\1")],
        [Record(b"\0\0\0\0\0\0", key=b"\0\0\0\1")] * 2,
    ],
)
def test_a_control_batch_of_another_kind_is_corrupt(records):
    data = memoryview(build_batch(records, producer_id=7, producer_epoch=0, control=True))
    with pytest.raises(CorruptBatch):
        read_marker(data, read_header(data))


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_cut_marker_is_corrupt(cut):
    data = built(MARKERS[0])
    with pytest.raises(CorruptBatch):
        read_marker(data[:-cut], read_header(data))
