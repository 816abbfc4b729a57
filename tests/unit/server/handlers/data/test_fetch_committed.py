"""Fetch and ListOffsets for readers of committed records: how far, and what was aborted (T34)."""

from __future__ import annotations

import pytest

from tests.unit.server.cold_log import ColdLog
from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

UNCOMMITTED, COMMITTED = 0, 1
LATEST = -1
FETCH_VERSION, LIST_VERSION = 12, 7


@pytest.fixture
def orders(broker):
    broker.make_topic("orders")
    return broker


def write(broker, producer, sequence=0):
    return broker.append(
        "orders",
        NOW_MS,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def end(broker, producer, *, commit, coordinator_epoch=3):
    broker.partition("orders").as_leader.append_marker(
        producer, 0, is_commit=commit, coordinator_epoch=coordinator_epoch, now_ms=NOW_MS
    )


def request(offset, isolation=COMMITTED, max_bytes=1 << 20, **fields):
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [FetchTopic(topic="orders", partitions=[wanted])]
    fields = {"max_bytes": 1 << 20, "min_bytes": 1, **fields}
    return FetchRequest(isolation_level=isolation, topics=topics, **fields)


def fetch(broker, offset, **fields):
    return broker.call(request(offset, **fields), FETCH_VERSION).responses[0].partitions[0]


def bases(data):
    return [header.base_offset for _, header in iter_headers(data.records or b"")]


def aborted(data):
    return [(one.producer_id, one.first_offset) for one in data.aborted_transactions]


def mixed(broker):
    """Offsets: 0 and 2 of producer 1, aborted at 3; 1 of producer 2, committed at 4; 5 is open."""
    write(broker, 1)
    write(broker, 2)
    write(broker, 1, 1)
    end(broker, 1, commit=False)
    end(broker, 2, commit=True)
    write(broker, 3)


def test_T34_a_committed_reader_stops_at_the_open_transaction(orders):
    mixed(orders)
    data = fetch(orders, 0)
    assert (data.last_stable_offset, data.high_watermark) == (5, 6)
    assert bases(data) == [0, 1, 2, 3, 4]
    assert bases(fetch(orders, 5)) == []
    assert bases(fetch(orders, 0, isolation=UNCOMMITTED)) == [0, 1, 2, 3, 4, 5]


def test_T34_aborted_transactions_that_reach_into_the_range_are_listed(orders):
    mixed(orders)
    assert aborted(fetch(orders, 0)) == [(1, 0)]
    assert aborted(fetch(orders, 2)) == [(1, 0)]
    assert aborted(fetch(orders, 3)) == [(1, 0)]
    assert aborted(fetch(orders, 4)) == []
    one_batch = len(fetch(orders, 0, isolation=UNCOMMITTED, max_bytes=1).records)
    end(orders, 3, commit=False)
    assert aborted(fetch(orders, 0, max_bytes=one_batch)) == [(1, 0)]
    assert aborted(fetch(orders, 4)) == [(3, 5)]
    assert aborted(fetch(orders, 7)) == []


def test_T34_readers_of_everything_get_no_list(orders):
    mixed(orders)
    assert fetch(orders, 0, isolation=UNCOMMITTED).aborted_transactions is None


def test_T34_the_list_is_complete_for_batches_that_come_from_the_disk(orders):
    mixed(orders)
    partition = orders.partition("orders")
    found = partition.log.read(0, max_bytes=1 << 20, end_offset=5)
    partition.log = ColdLog(partition.log, lambda: found.chunks, size_bytes=found.size_bytes)
    answer = orders.start_deferred(request(0), FETCH_VERSION)
    heard = []
    answer.then(heard.append)

    while not heard:
        turn(orders)
    data = heard[0].responses[0].partitions[0]
    assert bases(data) == [0, 1, 2, 3, 4]
    assert aborted(data) == [(1, 0)]


def turn(broker):
    async def nothing():
        pass

    broker.run(nothing())
    broker.run(nothing())


def test_a_parked_committed_fetch_is_woken_by_the_last_stable_offset(orders):
    write(orders, 1)
    heard = []
    waiting = orders.start_deferred(request(0, max_wait_ms=10_000), FETCH_VERSION)
    assert isinstance(waiting, Deferred)
    waiting.then(heard.append)
    write(orders, 1, 1)
    orders.append("orders", NOW_MS)
    turn(orders)
    assert heard == []
    end(orders, 1, commit=True)
    turn(orders)
    assert bases(heard[0].responses[0].partitions[0]) == [0, 1, 2, 3]


def latest(broker, isolation):
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topics = [ListOffsetsTopic(name="orders", partitions=[wanted])]
    asked = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    (entry,) = broker.call(asked, LIST_VERSION).topics[0].partitions
    assert entry.error_code == ErrorCode.NONE
    return entry.offset


def test_ListOffsets_names_the_end_for_each_isolation_level(orders):
    mixed(orders)
    assert latest(orders, COMMITTED) == 5
    assert latest(orders, UNCOMMITTED) == 6


def test_DescribeProducers_shows_what_is_open_and_who_ended_the_rest(orders):
    mixed(orders)
    asked = DescribeProducersRequest(topics=[TopicRequest(name="orders", partition_indexes=[0])])
    producers = orders.call(asked, 0).topics[0].partitions[0].active_producers
    found = {
        one.producer_id: (one.coordinator_epoch, one.current_txn_start_offset) for one in producers
    }
    assert found == {1: (3, -1), 2: (3, -1), 3: (-1, 5)}
