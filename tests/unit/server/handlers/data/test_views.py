"""Requests on a view: read like a topic, written by nobody."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest

from tests.unit.server.cold_log import ColdLog
from tests.unit.server.one_broker import NOW_MS, value_of
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import FILTER_LOOP_BATCH_BYTES_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.delivery.filter.lexer import SelectorError
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import ConfigChange
from tidemill.server.metrics.group_metrics import measure_lag
from tidemill.server.request.authorizer import Operation
from tidemill.wire import compression
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch, iter_records

VERSIONS = range(4, 19)
VIEW = {"tidemill.view.of": "orders", "tidemill.view.filter": "region = 'eu'"}


def send(broker, *regions, value=b"v", topic="orders"):
    records = [Record(value, timestamp=NOW_MS, headers=[("region", r.encode())]) for r in regions]
    batch = build_batch(records)
    broker.partition(topic).as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)


@pytest.fixture
def viewed(broker):
    broker.make_topic("orders")
    broker.make_topic("orders.eu", partitions=-1, overrides=VIEW)
    return broker


def request(broker, offset, version=12, **fields):
    by_id = version >= 13
    topic = FetchTopic(
        topic="" if by_id else "orders.eu",
        topic_id=broker.image.topics["orders.eu"].topic_id if by_id else UUID(int=0),
        partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
    )
    return FetchRequest(**{"max_bytes": 1 << 20, "min_bytes": 1, **fields}, topics=[topic])


def fetch(broker, offset, version=12, **fields):
    """The answer for the partition, once it has been filtered."""
    return settled(
        broker, broker.start_deferred(request(broker, offset, version, **fields), version)
    )


def turns(broker):
    """As many turns of the loop as any of these fetches takes until it waits or is answered."""
    for _ in range(100):
        broker.run(asyncio.sleep(0))


def settled(broker, answer):
    if isinstance(answer, Deferred):
        turns(broker)
        answer = value_of(answer)
    return answer.responses[0].partitions[0]


def offsets(data):
    """Offsets of the records that a client shows, and the position that it has then."""
    shown, position = [], None
    for at, header in iter_headers(data.records):
        view = memoryview(data.records)[at : at + header.size_bytes]
        records = list(iter_records(view))
        position = records[-1].offset + 1
        if not header.is_control:
            shown += [one.offset for one in records]
    return shown, position


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_gets_the_matching_records_and_a_position_behind_the_others(viewed, version):
    send(viewed, "eu", "us")
    send(viewed, "us")
    data = fetch(viewed, 0, version)
    assert data.error_code == ErrorCode.NONE
    assert offsets(data) == ([0], 3)
    assert (data.high_watermark, data.log_start_offset) == (3, 0)


def test_a_view_without_any_match_moves_the_position_to_the_end(viewed):
    send(viewed, "us", "us")
    assert offsets(fetch(viewed, 0)) == ([], 2)


def test_a_fetch_at_the_end_waits_and_is_woken_by_the_base(viewed):
    send(viewed, "us")
    answer = viewed.start_deferred(request(viewed, 1, max_wait_ms=10_000), 12)
    assert not answer.resolved
    assert len(viewed.services.parked) == 1
    send(viewed, "us", "eu")
    assert offsets(settled(viewed, answer)) == ([2], 3)


def test_a_filter_that_changes_counts_for_the_next_fetch(viewed):
    send(viewed, "eu", "us")
    change = ConfigChange(
        name="orders.eu", changes=[("tidemill.view.filter", AlterOp.SET, "region = 'us'")]
    )
    viewed.run(viewed.cluster.alter_topic_configs([change]))
    assert offsets(fetch(viewed, 0)) == ([1], 2)


def test_a_view_grows_with_its_base(viewed):
    assert viewed.image.topics["orders.eu"].partitions == viewed.image.topics["orders"].partitions
    assert viewed.replicas.find("orders.eu", 0) is None
    assert len(viewed.replicas) == 1


def test_T32_outside_the_log_is_out_of_range(viewed):
    send(viewed, "us")
    for offset in (-1, 9):
        assert fetch(viewed, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_known_stretch_without_a_match_is_jumped_over(viewed):
    for _ in range(10):
        send(viewed, "us", value=bytes(10_000))
    assert offsets(fetch(viewed, 0)) == ([], 10)
    reads = []
    log = viewed.partition("orders").log
    read = log.read
    log.read = lambda offset, **limits: reads.append(offset) or read(offset, **limits)
    assert offsets(fetch(viewed, 3)) == ([], 10)
    send(viewed, "eu")
    assert offsets(fetch(viewed, 0)) == ([10], 11)
    assert reads == [10, 10]


def test_another_leader_epoch_looks_again(viewed):
    for _ in range(10):
        send(viewed, "us", value=bytes(10_000))
    fetch(viewed, 0)
    viewed.lead_again("orders")
    log = viewed.partition("orders").log
    reads, read = [], log.read
    log.read = lambda offset, **limits: reads.append(offset) or read(offset, **limits)
    assert offsets(fetch(viewed, 0)) == ([], 10)
    assert reads == [0]


def test_cold_batches_are_read_in_a_thread_and_filtered(viewed):
    send(viewed, "us", "eu", "us")
    partition = viewed.partition("orders")
    stored = bytes(partition.log.read(0, max_bytes=1 << 20, end_offset=3).chunks[0])
    partition.log = ColdLog(partition.log, lambda: [stored], size_bytes=len(stored))
    before = viewed.services.response_memory.free_bytes
    assert offsets(fetch(viewed, 0)) == ([1], 3)
    assert viewed.services.response_memory.free_bytes == before


def test_damage_is_the_error_of_the_partition(viewed):
    send(viewed, "us")
    partition = viewed.partition("orders")
    damaged = bytearray(partition.log.read(0, max_bytes=1 << 20, end_offset=1).chunks[0])
    damaged[61] = 0xFE
    partition.log = ColdLog(partition.log, lambda: [bytes(damaged)], size_bytes=len(damaged))
    data = fetch(viewed, 0)
    assert data.error_code == ErrorCode.CORRUPT_MESSAGE
    assert not data.records


# --- other requests ------------------------------------------------------------------------------


def test_metadata_shows_a_view_as_a_topic(viewed):
    wanted = [MetadataRequestTopic(name="orders.eu")]
    (topic,) = viewed.call(MetadataRequest(topics=wanted), 12).topics
    assert topic.error_code == ErrorCode.NONE
    assert topic.topic_id == viewed.image.topics["orders.eu"].topic_id
    assert [(one.partition_index, one.leader_id) for one in topic.partitions] == [(0, 1)]


def test_the_ends_of_a_view_are_those_of_its_base(viewed):
    send(viewed, "us", "eu")
    for timestamp, offset in ((-2, 0), (-1, 2)):
        wanted = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        topics = [ListOffsetsTopic(name="orders.eu", partitions=wanted)]
        answer = viewed.call(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        assert answer.topics[0].partitions[0].offset == offset


def test_T37_the_epochs_of_a_view_are_those_of_its_base(viewed):
    send(viewed, "us")
    wanted = [OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)]
    topics = [OffsetForLeaderTopic(topic="orders.eu", partitions=wanted)]
    answer = viewed.call(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4)
    assert answer.topics[0].partitions[0].end_offset == 1


def test_the_lag_of_a_view_is_measured_by_its_base(viewed):
    send(viewed, "us", "us", "eu")
    offsets = SimpleNamespace(count=1, committed=lambda: [("orders.eu", 0, 1)])
    shard = SimpleNamespace(offsets=offsets)
    viewed.services.groups = SimpleNamespace(shards=lambda: [shard])
    assert measure_lag(viewed.services).records_sum == 2


def test_producing_to_a_view_is_refused(viewed):
    batch = bytes(build_batch([Record(b"v")]))
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name="orders.eu", partition_data=data)]
    answer = viewed.call(ProduceRequest(acks=1, timeout_ms=1, topic_data=topics), 9)
    (refused,) = answer.responses[0].partition_responses
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "is a view of orders" in refused.error_message


def test_deleting_records_of_a_view_is_refused(viewed):
    wanted = [DeleteRecordsPartition(partition_index=0, offset=0)]
    topics = [DeleteRecordsTopic(name="orders.eu", partitions=wanted)]
    answer = viewed.call(DeleteRecordsRequest(topics=topics, timeout_ms=1), 2)
    refused = answer.topics[0].partitions[0]
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("replicas", [[1], [1, 2], None])
def test_reassigning_a_view_is_refused_with_the_name_of_its_base(viewed, replicas):
    wanted = [ReassignablePartition(partition_index=0, replicas=replicas)]
    topics = [ReassignableTopic(name="orders.eu", partitions=wanted)]
    request = AlterPartitionReassignmentsRequest(
        topics=topics, allow_replication_factor_change=False, timeout_ms=1000
    )
    (refused,) = viewed.call(request, 1).responses[0].partitions
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refused.error_message == "orders.eu is a view: move the replicas of orders"


def test_a_follower_cannot_fetch_a_view(viewed):
    viewed.join_broker(2)
    state = ReplicaState(replica_id=2, replica_epoch=viewed.image.brokers[2].epoch)
    wanted = [FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=0)]
    topic_id = viewed.image.topics["orders.eu"].topic_id
    topics = [FetchTopic(topic_id=topic_id, partitions=wanted)]
    answer = viewed.call(FetchRequest(replica_state=state, max_wait_ms=0, topics=topics), 18)
    (refused,) = answer.responses[0].partitions
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not refused.records


def test_who_may_not_read_the_base_may_read_the_view(viewed):
    send(viewed, "eu")
    viewed.permissions.deny(Operation.READ, "orders")
    assert offsets(fetch(viewed, 0)) == ([0], 1)


def test_who_may_not_read_the_view_is_refused(viewed):
    viewed.permissions.deny(Operation.READ, "orders.eu")
    assert fetch(viewed, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_view_of_an_unreadable_filter_shows_nothing(viewed, monkeypatch):
    """As if a later version had stored it: nothing is better than too much."""
    send(viewed, "eu")
    monkeypatch.setattr("tidemill.server.fetching.view_reader.compile_selector", _refuse_selector)
    assert fetch(viewed, 0).error_code == ErrorCode.INVALID_CONFIG


def _refuse_selector(text):
    raise SelectorError(1, "not known here")


def test_S40_long_batches_are_unpacked_one_at_a_time(viewed):
    records = [Record(bytes(FILTER_LOOP_BATCH_BYTES_MAX), headers=[("region", b"eu")]), Record(b"")]
    batch = build_batch(records, codec=compression.ZSTD)
    viewed.partition("orders").as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)
    viewed.run(viewed.services.long_batches.acquire())
    answer = viewed.start_deferred(request(viewed, 0), 12)
    turns(viewed)
    assert not answer.resolved
    viewed.services.long_batches.release()
    assert offsets(settled(viewed, answer)) == ([0], 2)
    assert not viewed.services.long_batches.locked()


# --- waiting -------------------------------------------------------------------------------------


def test_a_fetch_that_met_no_match_waits_for_one(viewed):
    send(viewed, "us", "us")
    answer = viewed.start_deferred(request(viewed, 0, max_wait_ms=500), 12)
    turns(viewed)
    assert not answer.resolved
    send(viewed, "us")
    turns(viewed)
    assert not answer.resolved
    send(viewed, "eu")
    assert offsets(settled(viewed, answer)) == ([3], 4)


def test_a_fetch_that_met_no_match_in_time_ends_with_one_skip_batch(viewed):
    send(viewed, "us", "us")
    answer = viewed.start_deferred(request(viewed, 0, max_wait_ms=20), 12)
    turns(viewed)
    send(viewed, "us")
    turns(viewed)
    assert not answer.resolved
    viewed.clock.now_ms += 40
    while not answer.resolved:
        viewed.run(asyncio.sleep(0.005))
    data = settled(viewed, answer)
    assert offsets(data) == ([], 3)
    assert len(list(iter_headers(data.records))) == 1


def test_a_fetch_does_not_wait_for_what_came_while_it_looked(viewed):
    send(viewed, "us", "us")
    partition = viewed.partition("orders")
    log = partition.log
    stored = bytes(log.read(0, max_bytes=1 << 20, end_offset=2).chunks[0])

    def load():
        partition.log = log
        send(viewed, "eu")
        return [stored]

    partition.log = ColdLog(log, load, size_bytes=len(stored))
    assert offsets(fetch(viewed, 0, max_wait_ms=10_000)) == ([], 2)
    assert offsets(fetch(viewed, 2, max_wait_ms=10_000)) == ([2], 3)


def test_what_a_waiting_fetch_has_looked_at_is_not_looked_at_again(viewed):
    send(viewed, "us", "us")
    log = viewed.partition("orders").log
    reads, read = [], log.read
    log.read = lambda offset, **limits: reads.append(offset) or read(offset, **limits)
    answer = viewed.start_deferred(request(viewed, 0, max_wait_ms=500), 12)
    turns(viewed)
    send(viewed, "us")
    turns(viewed)
    send(viewed, "eu")
    assert offsets(settled(viewed, answer)) == ([3], 4)
    assert reads == [0, 2, 3]


def test_a_waiting_fetch_whose_connection_is_lost_is_forgotten(viewed):
    send(viewed, "us")
    answer = viewed.start_deferred(request(viewed, 0, max_wait_ms=500), 12)
    turns(viewed)
    assert len(viewed.services.parked) == 1
    send(viewed, "us")
    turns(viewed)
    assert len(viewed.services.parked) == 1
    viewed.services.parked.abandon(answer)
    assert len(viewed.services.parked) == 0


def test_S40_a_fetch_whose_connection_is_lost_while_it_is_filtered_does_not_wait(viewed):
    """It would wait, and be filtered again with each record that comes, for nobody."""
    batch = build_batch([Record(bytes(FILTER_LOOP_BATCH_BYTES_MAX))], codec=compression.ZSTD)
    viewed.partition("orders").as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)
    viewed.run(viewed.services.long_batches.acquire())
    answer = viewed.start_deferred(request(viewed, 0, max_wait_ms=60_000), 12)
    viewed.services.parked.abandon(answer)
    viewed.services.long_batches.release()
    turns(viewed)
    assert len(viewed.services.parked) == 0
    assert answer.resolved


def test_a_long_history_without_a_match_is_not_waited_for(viewed, monkeypatch):
    monkeypatch.setattr("tidemill.server.fetching.view_reader.FILTERED_LOOK_BYTES_MAX", 1)
    for _ in range(3):
        send(viewed, "us")
    assert offsets(fetch(viewed, 0, max_wait_ms=500)) == ([], 1)


# --- many partitions -----------------------------------------------------------------------------


@pytest.fixture
def wide(broker):
    """A view of ten partitions, more than one fetch looks at whole."""
    broker.make_topic("orders", partitions=10)
    broker.make_topic("orders.eu", partitions=-1, overrides=VIEW)
    return broker


def send_to(broker, index, *regions):
    records = [Record(b"v", timestamp=NOW_MS, headers=[("region", r.encode())]) for r in regions]
    batch = build_batch(records)
    broker.partition("orders", index).as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)


def fetch_all(broker, **fields):
    """The answer for all ten partitions, which must not have to wait."""
    wanted = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in range(10)
    ]
    topics = [FetchTopic(topic="orders.eu", partitions=wanted)]
    asked = FetchRequest(max_bytes=1 << 20, min_bytes=1, topics=topics, **fields)
    answer = broker.start_deferred(asked, 12)
    turns(broker)
    return {one.partition_index: one for one in value_of(answer).responses[0].partitions}


def test_a_fetch_looks_at_as_many_partitions_as_have_little(wide):
    for index in range(10):
        send_to(wide, index, "us", "eu")
    data = fetch_all(wide)
    assert [offsets(data[index]) for index in range(10)] == [([1], 2)] * 10


def test_a_fetch_does_not_wait_while_partitions_are_left_to_look_at(wide, monkeypatch):
    monkeypatch.setattr("tidemill.server.fetching.view_reader.FILTERED_FETCH_LOOK_BYTES_MAX", 1)
    for index in range(9):
        send_to(wide, index, "us")
    send_to(wide, 9, "eu")
    data = fetch_all(wide, max_wait_ms=10_000)
    assert offsets(data[0]) == ([], 1)
    assert not data[9].records
