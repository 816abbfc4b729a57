"""Views for readers of committed records: how far, and what was aborted (T34)."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.server.cold_log import ColdLog
from tests.unit.server.one_broker import NOW_MS, value_of
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.records import Record, build_batch

UNCOMMITTED, COMMITTED = 0, 1
VIEW = {"tidemill.view.of": "orders", "tidemill.view.filter": "region = 'eu'"}


@pytest.fixture
def viewed(broker):
    broker.make_topic("orders")
    broker.make_topic("orders.eu", partitions=-1, overrides=VIEW)
    return broker


def write(broker, producer, *regions, sequence=0):
    records = [Record(b"v", timestamp=NOW_MS, headers=[("region", r.encode())]) for r in regions]
    batch = build_batch(
        records,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    broker.partition("orders").as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)


def end(broker, producer, *, commit):
    broker.partition("orders").as_leader.append_marker(
        producer, 0, is_commit=commit, coordinator_epoch=3, now_ms=NOW_MS
    )


def start(broker, offset, isolation=COMMITTED, **fields):
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="orders.eu", partitions=[wanted])]
    fields = {"max_bytes": 1 << 20, "min_bytes": 1, **fields}
    return broker.start_deferred(
        FetchRequest(isolation_level=isolation, topics=topics, **fields), 12
    )


def settled(broker, answer):
    if isinstance(answer, Deferred):
        for _ in range(100):
            broker.run(asyncio.sleep(0))
        answer = value_of(answer)
    return answer.responses[0].partitions[0]


def fetch(broker, offset, **fields):
    return settled(broker, start(broker, offset, **fields))


def batches(data):
    """Base offsets of the batches that may be shown; a skip batch is a control batch."""
    headers = [header for _, header in iter_headers(data.records or b"")]
    return [one.base_offset for one in headers if not one.is_control]


def aborted(data):
    return [(one.producer_id, one.first_offset) for one in data.aborted_transactions]


def mixed(broker):
    """0 and 2 of producer 1, aborted at 3; 1 of producer 2, committed at 4; 5 is open."""
    write(broker, 1, "eu")
    write(broker, 2, "eu")
    write(broker, 1, "eu", sequence=1)
    end(broker, 1, commit=False)
    end(broker, 2, commit=True)
    write(broker, 3, "eu")


def test_T34_a_committed_reader_of_a_view_stops_at_the_open_transaction(viewed):
    mixed(viewed)
    data = fetch(viewed, 0)
    assert (data.last_stable_offset, data.high_watermark) == (5, 6)
    assert (batches(data), aborted(data)) == ([0, 1, 2], [(1, 0)])
    assert fetch(viewed, 5).aborted_transactions == []
    everything = fetch(viewed, 0, isolation=UNCOMMITTED)
    assert batches(everything) == [0, 1, 2, 5]
    assert everything.aborted_transactions is None


def test_T34_the_list_of_a_view_is_complete_for_batches_that_come_from_the_disk(viewed):
    mixed(viewed)
    partition = viewed.partition("orders")
    found = partition.log.read(0, max_bytes=1 << 20, end_offset=5)
    partition.log = ColdLog(partition.log, lambda: found.chunks, size_bytes=found.size_bytes)
    data = fetch(viewed, 0)
    assert (batches(data), aborted(data)) == ([0, 1, 2], [(1, 0)])


def test_T34_the_list_of_a_view_is_searched_in_a_thread_if_its_index_is_cold(viewed):
    mixed(viewed)
    log = viewed.partition("orders").log
    log.find_aborted = log.try_find_aborted
    log.try_find_aborted = lambda *_range: None
    assert aborted(fetch(viewed, 0)) == [(1, 0)]


def test_only_transactions_with_records_in_the_answer_are_named(viewed):
    """Producer 1 aborts what does not match and commits what does."""
    write(viewed, 1, "us")  # 0, aborted at 2
    write(viewed, 2, "us", "eu")  # 1 and 2, aborted at 4
    end(viewed, 1, commit=False)
    end(viewed, 2, commit=False)
    write(viewed, 1, "eu", sequence=1)
    end(viewed, 1, commit=True)
    data = fetch(viewed, 0)
    assert (batches(data), aborted(data)) == ([1, 5], [(2, 1)])


def test_a_transaction_is_named_from_its_first_batch_in_the_answer(viewed):
    """kafkajs takes in one entry per record: 2 must not wait behind 1, which shows up later."""
    write(viewed, 1, "us")  # 0
    write(viewed, 2, "us")  # 1
    write(viewed, 2, "eu", sequence=1)  # 2
    write(viewed, 1, "eu", sequence=1)  # 3
    end(viewed, 1, commit=False)
    end(viewed, 2, commit=False)
    data = fetch(viewed, 0)
    assert (batches(data), aborted(data)) == ([2, 3], [(2, 2), (1, 3)])


def test_a_committed_reader_of_a_view_waits_until_a_transaction_ends(viewed):
    write(viewed, 1, "us")
    end(viewed, 1, commit=True)
    write(viewed, 2, "eu")
    answer = start(viewed, 2, max_wait_ms=10_000)
    write(viewed, 2, "eu", sequence=1)
    for _ in range(100):
        viewed.run(asyncio.sleep(0))
    assert not answer.resolved
    end(viewed, 2, commit=False)
    data = settled(viewed, answer)
    assert (batches(data), aborted(data)) == ([2, 3], [(2, 2)])
