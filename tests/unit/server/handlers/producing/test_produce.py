"""Produce: one batch per partition is checked, appended, and answered as acks demands."""

from __future__ import annotations

import gc
from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import DiskFull, ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import EARLY_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorizer import Operation
from tidemill.wire import compression
from tidemill.wire.batch import read_header
from tidemill.wire.generated.produce import (
    NodeEndpoint,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

VERSIONS = range(3, 14)


def _batch(count=1, codec=0, **producer):
    records = [Record(b"value", timestamp=NOW_MS) for _ in range(count)]
    return build_batch(records, codec=codec, **producer)


def _request(broker, version, batch, *, acks=1, name="orders", index=0):
    known = broker.image.topic(name)
    by_id = version >= 13
    topic = TopicProduceData(
        name="" if by_id else name,
        topic_id=(known.topic_id if known else UUID(int=9)) if by_id else UUID(int=0),
        partition_data=[PartitionProduceData(index=index, records=batch)],
    )
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def _produce(broker, version=12, batch=None, **fields):
    request = _request(broker, version, _batch() if batch is None else batch, **fields)
    return broker.call(request, version).responses[0].partition_responses[0]


@pytest.fixture
def orders(broker):
    broker.make_topic("orders", 2)
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_F04_offsets_rise_batch_by_batch(orders, version):
    assert _produce(orders, version, _batch(3)).base_offset == 0
    assert _produce(orders, version, _batch(2)).base_offset == 3
    assert orders.partition("orders").log.log_end_offset == 5


def test_F21_the_stored_batch_carries_base_offset_and_leader_epoch(orders):
    _produce(orders)
    _produce(orders, batch=_batch(2))
    log = orders.partition("orders").log
    found = log.read(1, max_bytes=10_000, end_offset=3)
    stored = memoryview(bytes(b"".join(found.chunks)))
    header = read_header(stored)
    assert header.base_offset == 1
    assert header.partition_leader_epoch == orders.partition("orders").leader_epoch


def test_I34_a_batch_for_a_topic_is_not_appended_to_the_one_that_had_its_name_before(orders):
    """The image has the new topic already, and this partition does not follow it yet."""
    former = orders.partition("orders")
    former.topic_id = UUID(int=9)
    assert _produce(orders, 13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert former.log.log_end_offset == 0


@pytest.mark.parametrize("acks", [2, -2, 7])
def test_T9_other_acks_than_minus_one_zero_and_one_are_refused(orders, acks):
    assert _produce(orders, acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_T9_acks_0_has_no_answer(orders):
    answer, _ = orders.start(_request(orders, 12, _batch(), acks=0), 12)
    assert answer is None
    assert orders.partition("orders").log.log_end_offset == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_or_partition_is_named(orders, version):
    missing = _produce(orders, version, name="missing")
    expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing.error_code == expected
    assert _produce(orders, version, index=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _produce(orders, version, index=-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_T16_an_illegal_name_is_refused(orders):
    assert _produce(orders, name="a/b").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", VERSIONS)
def test_T23_zstd_needs_version_7(orders, version):
    answer = _produce(orders, version, _batch(codec=compression.ZSTD))
    expected = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else ErrorCode.NONE
    assert answer.error_code == expected


def test_T25_an_error_has_words_for_it_from_version_8(orders):
    batch = _batch()
    batch[-1] ^= 0xFF
    answer = _produce(orders, 8, batch)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert answer.error_message
    assert orders.partition("orders").log.log_end_offset == 0


@pytest.mark.parametrize("version", [7, 8, 13])
def test_T25_keyless_records_on_a_compacted_topic_are_named_from_version_8(broker, version):
    broker.make_topic("orders", overrides={"cleanup.policy": "compact"})
    batch = build_batch([Record(b"v", key, timestamp=NOW_MS) for key in (b"a", None, b"b", None)])
    answer = _produce(broker, version, batch)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    named = [
        (error.batch_index, bool(error.batch_index_error_message)) for error in answer.record_errors
    ]
    assert named == ([(1, True), (3, True)] if version >= 8 else [])
    assert bool(answer.error_message) == (version >= 8)
    assert broker.partition("orders").log.log_end_offset == 0


def test_T26_a_batch_larger_than_the_topic_allows_is_refused(broker):
    broker.make_topic("orders", overrides={"max.message.bytes": "100"})
    assert _produce(broker, batch=_batch(50)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_T26_a_batch_larger_than_a_segment_is_refused(broker):
    overrides = {"segment.bytes": "1048576", "max.message.bytes": "3000000"}
    broker.make_topic("orders", overrides=overrides)
    batch = build_batch([Record(b"x" * 2_000_000, timestamp=NOW_MS)])
    assert _produce(broker, batch=batch).error_code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_T27_an_error_has_no_offset(orders):
    answer = _produce(orders, index=9)
    assert (answer.base_offset, answer.log_append_time_ms) == (-1, -1)


@pytest.mark.parametrize("version", [10, 12, 13])
def test_T28_a_broker_that_does_not_lead_names_the_leader(broker, version):
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [2]})
    request = _request(broker, version, _batch())
    response = broker.call(request, version)
    entry = response.responses[0].partition_responses[0]
    assert entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert entry.current_leader.leader_id == 2
    assert [(e.node_id, e.host) for e in response.node_endpoints] == [(2, "other.example")]


def test_T28_no_leader_is_named_without_an_error(orders):
    response = orders.call(_request(orders, 12, _batch()), 12)
    assert response.node_endpoints == []
    assert response.responses[0].partition_responses[0].current_leader is None


@pytest.mark.parametrize("version", VERSIONS)
def test_T29_F40_a_retry_gets_the_original_offset(orders, version):
    batch = _batch(3, producer_id=5, producer_epoch=0, base_sequence=0)
    first = _produce(orders, version, bytearray(batch))
    again = _produce(orders, version, bytearray(batch))
    assert (first.base_offset, again.base_offset) == (0, 0)
    assert again.error_code == ErrorCode.NONE
    assert orders.partition("orders").log.log_end_offset == 3


def test_T29_a_gap_in_the_sequence_is_refused(orders):
    _produce(orders, batch=_batch(producer_id=5, producer_epoch=0, base_sequence=0))
    gap = _produce(orders, batch=_batch(producer_id=5, producer_epoch=0, base_sequence=7))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_topic_that_may_not_be_written_to_is_refused(orders):
    orders.permissions.deny(Operation.WRITE, "orders")
    assert _produce(orders).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_several_partitions_succeed_and_fail_each_for_itself(orders):
    good = PartitionProduceData(index=0, records=_batch())
    bad = PartitionProduceData(index=9, records=_batch())
    also_good = PartitionProduceData(index=1, records=_batch())
    topic = TopicProduceData(name="orders", partition_data=[good, bad, also_good])
    answer = orders.call(ProduceRequest(acks=1, topic_data=[topic]), 9)
    codes = [entry.error_code for entry in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]


def test_F38_acks_all_waits_for_the_followers(broker):
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [1, 2]}, overrides={"tidemill.flush": "os"})
    heard = []
    waiting = broker.start_deferred(_request(broker, 12, _batch(), acks=-1), 12)
    assert isinstance(waiting, Deferred)
    waiting.then(heard.append)
    assert heard == []
    broker.partition("orders").follower_fetched(
        2, fetch_offset=1, flushed_offset=-1, now=broker.clock.monotonic()
    )
    assert heard[0].responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_S11_refusals_of_many_partitions_look_for_their_leaders_once(broker, monkeypatch):
    named = []
    make = NodeEndpoint.__init__

    def counted(endpoint, **fields):
        named.append(fields["node_id"])
        make(endpoint, **fields)

    monkeypatch.setattr(NodeEndpoint, "__init__", counted)
    broker.join_broker(2)
    count = 50
    replicas = {index: [2, 1] for index in range(count)}
    broker.make_topic("orders", -1, assignments=replicas, overrides={"tidemill.flush": "os"})
    for index in range(count):
        partition = broker.partition("orders", index)
        partition.become_leader(replace(partition.image, leader=1), now=0.0)
    data = [PartitionProduceData(index=index, records=_batch()) for index in range(count)]
    topic = TopicProduceData(name="orders", partition_data=data)
    heard = []
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    broker.start_deferred(request, 12).then(heard.append)
    for index in range(count):
        broker.partition("orders", index).as_leader.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    codes = {entry.error_code for entry in heard[0].responses[0].partition_responses}
    assert codes == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert named == [2]


def test_an_acknowledged_request_leaves_nothing_to_the_garbage_collector(broker):
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [1, 2]}, overrides={"tidemill.flush": "os"})
    heard = []
    gc.collect()
    gc.disable()
    try:
        broker.start_deferred(_request(broker, 12, _batch(), acks=-1), 12).then(heard.append)
        broker.partition("orders").follower_fetched(
            2, fetch_offset=1, flushed_offset=-1, now=broker.clock.monotonic()
        )
        heard.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_R12_a_full_disk_is_refused_and_told_to_the_operator_once(orders, monkeypatch, caplog):
    def no_room(*_args, **_kwargs):
        raise DiskFull("/data: no space left")

    monkeypatch.setattr(orders.partition("orders").log, "append", no_room)
    for _ in range(3):
        assert _produce(orders).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [record.getMessage() for record in caplog.records] == [
        'producers are refused: "/data: no space left"'
    ]


def test_R12_records_at_the_reserve_are_refused_as_on_a_full_disk_without_a_line_per_minute(
    orders, caplog
):
    room = orders.partition("orders").room
    room.end_look(0, total_bytes=1 << 30, free_bytes=100, reserve_bytes=200)
    entry = _produce(orders)
    assert entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left for records" in entry.error_message
    assert caplog.records == []
    room.end_look(0, total_bytes=1 << 30, free_bytes=1 << 29, reserve_bytes=200)
    assert _produce(orders).base_offset == 0


def test_topics_of_the_brokers_own_state_are_not_open_to_producers(broker):
    broker.make_topic("__consumer_offsets", 1)
    entry = _produce(broker, name="__consumer_offsets")
    assert entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert broker.partition("__consumer_offsets").log.log_end_offset == 0


def test_an_internal_topic_is_refused_by_permission_first(broker):
    broker.make_topic("__consumer_offsets", 1)
    broker.permissions.deny(Operation.WRITE)
    entry = _produce(broker, name="__consumer_offsets")
    assert entry.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("is_known", [True, False])
def test_I1_no_batch_overtakes_one_that_came_before_its_partition_was_here(broker, is_known):
    def send(sequence):
        batch = _batch(producer_id=5, producer_epoch=0, base_sequence=sequence)
        entry = _produce(broker, batch=batch, acks=-1)
        return ErrorCode(entry.error_code), entry.base_offset

    broker.logs.withheld = True
    if is_known:
        broker.make_topic("orders")
    code, _ = send(0)
    assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    broker.logs.withheld = False
    if is_known:
        broker.replicas.open_made([TopicPartition("orders", 0)])
    else:
        broker.make_topic("orders")
    assert send(1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert send(0) == (ErrorCode.NONE, 0)
    assert send(1) == (ErrorCode.NONE, 1)


def test_I1_nor_one_that_named_its_topic_by_an_id_that_was_not_known_here(broker):
    first, second = (
        _batch(producer_id=5, producer_epoch=0, base_sequence=sequence) for sequence in (0, 1)
    )
    early = broker.replicas.pending_logs.refusals
    assert _produce(broker, 13, bytearray(first)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert len(early) == 1
    broker.logs.withheld = True
    topic_id = broker.make_topic("orders").topic_id
    early.add((topic_id, 0), memoryview(first), ErrorCode.UNKNOWN_TOPIC_ID, NOW_MS)
    broker.logs.withheld = False
    broker.replicas.open_made([TopicPartition("orders", 0)])
    assert _produce(broker, 13, second).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert _produce(broker, 13, first).error_code == ErrorCode.NONE


def test_I36_what_came_too_early_is_bounded(broker):
    for count in range(EARLY_PARTITIONS_MAX + 1):
        batch = _batch(producer_id=5, producer_epoch=0, base_sequence=0)
        assert _produce(broker, batch=batch, name=f"t{count}").error_code
    assert len(broker.replicas.pending_logs.refusals) == EARLY_PARTITIONS_MAX


def test_I36_a_name_that_no_topic_can_have_is_not_kept(broker):
    batch = _batch(producer_id=5, producer_epoch=0, base_sequence=0)
    assert _produce(broker, batch=batch, name="t" * 10_000).error_code
    assert not broker.replicas.pending_logs.refusals
