"""H3: without a lease a broker refuses what only an owner may do, and never names itself."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import NODE_ID, NOW_MS
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.wire.records import Record, build_batch

REFUSED = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
VERSION = 16


@pytest.fixture
def cut_off(broker):
    """A broker that leads a partition with one record, and lost the store."""
    broker.make_topic("orders")
    broker.append("orders", NOW_MS)
    broker.store.suspend(broker.session)
    assert not broker.cluster.may_act
    return broker


def _fetch_request(broker, offset=0, **fields):
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    wanted.current_leader_epoch = broker.partition("orders").leader_epoch
    topic = FetchTopic(topic_id=broker.image.topics["orders"].topic_id, partitions=[wanted])
    return FetchRequest(max_bytes=1 << 20, topics=[topic], **fields)


def _produce(broker, acks):
    records = memoryview(build_batch([Record(b"v", timestamp=NOW_MS)]))
    data = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="orders", partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    return broker.call(request, 12).responses[0].partition_responses[0]


@pytest.mark.parametrize("acks", [1, -1])
def test_I15_nothing_is_appended(cut_off, acks):
    entry = _produce(cut_off, acks)
    assert entry.error_code == REFUSED
    assert entry.current_leader.leader_id == -1
    assert cut_off.partition("orders").log.log_end_offset == 1


def test_I8_consumers_read_nothing(cut_off):
    response = cut_off.call(_fetch_request(cut_off), VERSION)
    data = response.responses[0].partitions[0]
    assert (data.error_code, data.current_leader.leader_id) == (REFUSED, -1)
    assert response.node_endpoints == []


def test_I8_a_consumers_fetch_that_waits_is_refused_when_it_is_answered(broker):
    broker.make_topic("orders")
    heard = []
    request = _fetch_request(broker, max_wait_ms=1000, min_bytes=1)
    broker.start_deferred(request, VERSION).then(heard.append)
    broker.append("orders", NOW_MS)
    broker.store.suspend(broker.session)
    broker.run(_turn())
    assert heard[0].responses[0].partitions[0].error_code == REFUSED


async def _turn():
    return None


def test_no_offsets_are_listed(cut_off):
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name="orders", partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=-1, topics=topics)
    assert cut_off.call(request, 7).topics[0].partitions[0].error_code == REFUSED


def test_no_end_of_an_epoch_is_told(cut_off):
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topics = [OffsetForLeaderTopic(topic="orders", partitions=[wanted])]
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
    assert cut_off.call(request, 4).topics[0].partitions[0].error_code == REFUSED


def test_no_records_are_deleted(cut_off):
    wanted = DeleteRecordsPartition(partition_index=0, offset=1)
    topics = [DeleteRecordsTopic(name="orders", partitions=[wanted])]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    assert cut_off.call(request, 2).topics[0].partitions[0].error_code == REFUSED
    assert cut_off.partition("orders").log.log_start_offset == 0


def test_followers_are_still_served(broker):
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [NODE_ID, 2]})
    broker.append("orders", NOW_MS)
    broker.store.suspend(broker.session)
    epoch = broker.image.brokers[2].epoch
    request = _fetch_request(broker, replica_state=ReplicaState(replica_id=2, replica_epoch=epoch))
    data = broker.call(request, VERSION).responses[0].partitions[0]
    assert data.error_code == ErrorCode.NONE
    assert len(data.records) > 0


def test_a_group_has_no_coordinator_here(broker):
    broker.make_topic(OFFSETS_TOPIC, 1)
    broker.groups.read("g", lambda _shard, _now: None, lambda _code: None)
    broker.store.suspend(broker.session)
    with pytest.raises(KafkaError) as caught:
        broker.groups.read("g", lambda _shard, _now: None, lambda _code: None)
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


def test_everything_goes_on_when_the_lease_is_back(cut_off):
    cut_off.store.resume(cut_off.session)
    assert _produce(cut_off, 1).error_code == ErrorCode.NONE


# --- followers' fetches --------------------------------------------------------------------------


@pytest.fixture
def replicated(broker):
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [NODE_ID, 2]})
    return broker


def _fetch_as_follower(broker, offset, **fields):
    epoch = broker.image.brokers[2].epoch
    state = ReplicaState(replica_id=2, replica_epoch=epoch)
    return _fetch_request(broker, offset, replica_state=state, **fields)


def test_H7_a_followers_fetch_that_is_read_again_acknowledges_nothing_again(replicated):
    """Its sender may have restarted and lost its tail while the fetch was parked."""
    broker = replicated
    broker.append("orders", NOW_MS)
    heard = []
    request = _fetch_as_follower(broker, 1, max_wait_ms=1000, min_bytes=1)
    broker.call(_fetch_as_follower(broker, 1), VERSION)
    broker.start_deferred(request, VERSION).then(heard.append)
    partition = broker.partition("orders")
    assert partition.high_watermark == 1
    assert heard == []
    partition.follower_restarted(2)
    broker.append("orders", NOW_MS)
    broker.run(_turn())
    assert len(heard) == 1
    assert partition.led.followers[2].log_end_offset == -1


def test_I15_a_fetch_of_an_earlier_life_of_a_follower_is_refused(replicated):
    broker = replicated
    broker.append("orders", NOW_MS)
    epoch = broker.image.brokers[2].epoch
    request = _fetch_request(
        broker, 1, replica_state=ReplicaState(replica_id=2, replica_epoch=epoch - 1)
    )
    assert broker.call(request, VERSION).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert broker.partition("orders").high_watermark == 0


def test_a_follower_that_names_no_leader_epoch_acknowledges_nothing(replicated):
    broker = replicated
    broker.append("orders", NOW_MS)
    request = _fetch_as_follower(broker, 1)
    request.topics[0].partitions[0].current_leader_epoch = -1
    data = broker.call(request, VERSION).responses[0].partitions[0]
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert broker.partition("orders").high_watermark == 0
