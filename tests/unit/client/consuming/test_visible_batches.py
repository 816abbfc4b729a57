from __future__ import annotations

from tidemill.client.consuming.consumer import FetchedBatches
from tidemill.client.consuming.visible_batches import visible_batches
from tidemill.core.ids import TopicPartition
from tidemill.wire.batch import read_header
from tidemill.wire.generated.fetch import AbortedTransaction
from tidemill.wire.records import Record, build_batch

ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


def data(offset: int, producer: int = -1) -> memoryview:
    return _batch(offset, Record(b"v", timestamp=1), producer, control=False)


def marker(offset: int, producer: int, key: bytes) -> memoryview:
    return _batch(offset, Record(b"\x00" * 6, key, timestamp=1), producer, control=True)


def _batch(offset: int, record: Record, producer: int, *, control: bool) -> memoryview:
    return memoryview(
        build_batch(
            [record],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=producer >= 0,
            control=control,
        )
    )


def visible(*views: memoryview, aborted: tuple[tuple[int, int], ...] = ()) -> list[int]:
    fetched = FetchedBatches(
        partition=TopicPartition("t", 0),
        batches=[(view, read_header(view)) for view in views],
        from_offset=0,
        high_watermark=100,
        aborted=[AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted],
    )
    return [header.base_offset for _, header in visible_batches(fetched)]


def test_control_batches_are_never_seen():
    assert visible(data(0), marker(1, 7, COMMIT), data(2)) == [0, 2]


def test_an_aborted_transaction_is_left_out_up_to_its_marker():
    views = (data(0, 7), data(1, 8), data(2, 7), marker(3, 7, ABORT), data(4, 7))
    assert visible(*views, aborted=((7, 0),)) == [1, 4]


def test_a_transaction_that_was_aborted_later_does_not_hide_an_earlier_one():
    views = (data(0, 7), marker(1, 7, COMMIT), data(2, 7), marker(3, 7, ABORT))
    assert visible(*views, aborted=((7, 2),)) == [0]


def test_what_a_producer_writes_outside_transactions_is_seen():
    plain = memoryview(
        build_batch(
            [Record(b"v", timestamp=1)],
            base_offset=1,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
        )
    )
    assert visible(data(0, 7), plain, aborted=((7, 0),)) == [1]


def test_two_aborted_transactions_of_one_producer_end_each_at_its_own_marker():
    views = (
        data(0, 7),
        marker(1, 7, ABORT),
        data(2, 7),
        marker(3, 7, COMMIT),
        data(4, 7),
        marker(5, 7, ABORT),
    )
    assert visible(*views, aborted=((7, 0), (7, 4))) == [2]
