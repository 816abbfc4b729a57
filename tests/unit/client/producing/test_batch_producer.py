from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.fake_cluster import HANG_UP, SILENCE, FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.batch_producer import BatchProducer, BatchRefused, Delivered
from tidemill.client.producing.encoded_batch import EncodedBatch, compressed
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.hot.record_encode import encode
from tidemill.wire import compression
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import HEADER_BYTES, read_header
from tidemill.wire.generated.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.wire.produced_batch import BatchPolicy, validate_produced


def batch(*values: bytes, partition: int = 0, topic: str = "t", codec: int = 0) -> EncodedBatch:
    rows = [(delta, 0, None, value, []) for delta, value in enumerate(values)]
    buffer = bytearray(HEADER_BYTES) + encode(rows)
    place = TopicPartition(topic, partition)
    return EncodedBatch(place, compressed(buffer, codec), codec, len(values), 5, 5)


def numbered(count: int, **options) -> list[EncodedBatch]:
    return [batch(b"%d" % number, **options) for number in range(count)]


def producer(cluster: FakeCluster, **options) -> BatchProducer:
    return BatchProducer(ClusterClient(cluster.net, cluster.bootstrap), **options)


def strict(cluster: FakeCluster) -> None:
    """Let every broker check sequences as a leader does: it does not store a repetition."""
    known: dict[tuple[str, int, int], dict[int, int]] = {}
    for broker in cluster.brokers.values():
        broker.handlers[ApiKey.PRODUCE] = _checking(broker.handlers[ApiKey.PRODUCE], known)


def _checking(real: Callable, known: dict) -> Callable:
    def produce(request, version):
        refused = {}
        for topic in request.topic_data:
            kept = []
            for data in topic.partition_data:
                header = read_header(data.records)
                seen = known.setdefault((topic.name, data.index, header.producer_id), {})
                expected = max((s + n for s, n in seen.items()), default=header.base_sequence)
                if header.base_sequence in seen:
                    refused[data.index] = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                elif header.base_sequence != expected:
                    refused[data.index] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                else:
                    seen[header.base_sequence] = header.record_count
                    kept.append(data)
            topic.partition_data = kept
        response = real(request, version)
        for index, code in refused.items():
            answer = PartitionProduceResponse(index=index, error_code=code, base_offset=-1)
            response.responses[0].partition_responses.append(answer)
        return response

    return produce


def refusing(code: ErrorCode, partition: int = 0, **fields) -> ProduceResponse:
    answer = PartitionProduceResponse(index=partition, error_code=code, base_offset=-1, **fields)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])


def react(cluster: FakeCluster, reactions: dict[int, object], *, broker: int = 1) -> None:
    """The broker's n-th Produce request gets `reactions[n]` instead of an answer."""
    real = cluster.brokers[broker].handlers[ApiKey.PRODUCE]
    count = 0

    def produce(request, version):
        nonlocal count
        count += 1
        return reactions[count] if count in reactions else real(request, version)

    cluster.brokers[broker].handlers[ApiKey.PRODUCE] = produce


def sequences(cluster: FakeCluster) -> list[int]:
    return [
        read_header(data.records).base_sequence
        for request in cluster.asked(ApiKey.PRODUCE)
        for topic in request.topic_data
        for data in topic.partition_data
    ]


def test_batches_arrive_in_order_under_one_identity_and_are_counted():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        sending = producer(cluster)
        await sending.send(numbered(20))
        await sending.flush()
        headers = [read_header(stored) for stored in partition.batches]
        return partition.values(), headers, sending.take_delivered(), sending.take_delivered()

    values, headers, delivered, again = run_virtually(scenario())

    assert values == [b"%d" % number for number in range(20)]
    assert [header.base_sequence for header in headers] == list(range(20))
    assert len({header.producer_id for header in headers}) == 1
    assert delivered == {TopicPartition("t", 0): Delivered(20, sum(h.size_bytes for h in headers))}
    assert again == {}


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_what_is_sent_passes_the_leaders_check(codec):
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        sending = producer(cluster)
        await sending.send([batch(b"a" * 100, b"b", codec=codec)])
        await sending.flush()
        return partition.batches[0], partition.values()

    stored, values = run_virtually(scenario())

    header = validate_produced(memoryview(bytearray(stored)), BatchPolicy(), now_ms=5)
    assert header.codec == codec
    assert values == [b"a" * 100, b"b"]


def test_a_partition_has_one_batch_in_flight_until_the_broker_knows_its_producer():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        react(cluster, {1: SILENCE})
        sending = producer(cluster)
        await sending.send(numbered(5))
        await asyncio.sleep(1)
        before = len(cluster.asked(ApiKey.PRODUCE))
        return before

    assert run_virtually(scenario()) == 1


def test_a_known_producer_has_as_many_requests_in_flight_as_is_asked_for():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        react(cluster, dict.fromkeys(range(2, 20), SILENCE))
        sending = producer(cluster, in_flight_max=3)
        await sending.send(numbered(1))
        await sending.flush()
        await sending.send(numbered(9))
        await asyncio.sleep(1)
        return len(cluster.asked(ApiKey.PRODUCE))

    assert run_virtually(scenario()) == 1 + 3


def test_batches_of_several_partitions_share_a_request():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t", 3)
        sending = producer(cluster)
        await sending.send([batch(b"v", partition=number) for number in range(3)])
        await sending.flush()
        return len(cluster.asked(ApiKey.PRODUCE)), sending.take_delivered()

    requests, delivered = run_virtually(scenario())

    assert requests == 1
    assert {place.partition: got.records for place, got in delivered.items()} == {0: 1, 1: 1, 2: 1}


def test_a_request_does_not_grow_beyond_its_bound():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t", 3)
        sending = producer(cluster, request_bytes_max=1_000)
        await sending.send([batch(b"v" * 600, partition=number) for number in range(3)])
        await sending.flush()
        return [
            sum(len(t.partition_data) for t in r.topic_data) for r in cluster.asked(ApiKey.PRODUCE)
        ]

    assert run_virtually(scenario()) == [1, 1, 1]


@pytest.mark.parametrize("fault", [SILENCE, HANG_UP, refusing(ErrorCode.NOT_ENOUGH_REPLICAS)])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_fault_in_the_middle_neither_loses_nor_repeats_records(fault, at):
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        strict(cluster)
        react(cluster, {at: fault})
        sending = producer(cluster)
        await sending.send(numbered(12))
        await sending.flush()
        return partition.values()

    assert run_virtually(scenario()) == [b"%d" % number for number in range(12)]


def test_an_answer_that_was_lost_does_not_store_a_batch_twice():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        strict(cluster)
        handlers = cluster.brokers[1].handlers
        real = handlers[ApiKey.PRODUCE]
        calls = iter(range(100))

        def appends_and_hangs_up(request, version):
            answer = real(request, version)
            return HANG_UP if next(calls) in {2, 5} else answer

        handlers[ApiKey.PRODUCE] = appends_and_hangs_up
        sending = producer(cluster)
        await sending.send(numbered(12))
        await sending.flush()
        return partition.values(), sending.take_delivered()

    values, delivered = run_virtually(scenario())

    assert values == [b"%d" % number for number in range(12)]
    assert delivered[TopicPartition("t", 0)].records == 12


def test_batches_follow_their_leader():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        partition = cluster.add_topic("t").partitions[0]
        sending = producer(cluster)
        await sending.send(numbered(2))
        await sending.flush()
        partition.leader, partition.leader_epoch = 2, 1
        await sending.send(numbered(2))
        await sending.flush()
        return partition.values(), sequences(cluster)[-1]

    values, last_sequence = run_virtually(scenario())

    assert values == [b"0", b"1", b"0", b"1"]
    assert last_sequence == 3


def test_a_leader_hint_saves_asking_for_metadata():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        partition = cluster.add_topic("t").partitions[0]
        hint = LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        react(cluster, {1: refusing(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=hint)})
        sending = producer(cluster)
        await sending.send(numbered(1))
        partition.leader, partition.leader_epoch = 2, 1
        await sending.flush()
        return partition.values(), len(cluster.asked(ApiKey.METADATA))

    assert run_virtually(scenario()) == ([b"0"], 1)


def test_a_lasting_refusal_names_topic_partition_and_reason():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        refusal = refusing(ErrorCode.INVALID_RECORD, error_message="a record needs a key")
        react(cluster, {1: refusal})
        sending = producer(cluster)
        await sending.send(numbered(1))
        with pytest.raises(BatchRefused) as refused:
            await sending.flush()
        with pytest.raises(BatchRefused):
            await sending.send(numbered(1))
        return str(refused.value)

    text = run_virtually(scenario())

    assert text.startswith("cannot write to topic t, partition 0: INVALID_RECORD: a record needs")
    assert "one record" in text


def test_a_batch_not_delivered_in_time_reports_the_last_error():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        refusal = refusing(ErrorCode.NOT_ENOUGH_REPLICAS)
        react(cluster, dict.fromkeys(range(1, 1000), refusal))
        sending = producer(cluster, delivery_timeout_s=3)
        await sending.send(numbered(1))
        with pytest.raises(BatchRefused, match=r"within 3 s, at last: NOT_ENOUGH_REPLICAS"):
            await sending.flush()

    run_virtually(scenario())


def test_out_of_order_as_the_answer_to_the_oldest_batch_is_final():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        react(cluster, {2: refusing(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)})
        sending = producer(cluster)
        await sending.send(numbered(1))
        await sending.flush()
        await sending.send(numbered(1))
        with pytest.raises(BatchRefused, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
            await sending.flush()

    run_virtually(scenario())


def test_a_batch_that_is_too_large_is_sent_in_smaller_ones_under_the_same_numbers():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        strict(cluster)
        refuse_larger_than(cluster, 400)
        sending = producer(cluster)
        values = [b"%04d" % number * 25 for number in range(10)]
        await sending.send([batch(*values), batch(b"last")])
        await sending.flush()
        return partition.values() == [*values, b"last"], sending.batch_bytes_max

    is_equal, bytes_max = run_virtually(scenario())

    assert is_equal
    assert bytes_max < 1_200


def test_one_record_that_is_too_large_is_refused_with_its_size():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        refuse_larger_than(cluster, 400)
        sending = producer(cluster)
        await sending.send([batch(b"v" * 1_000)])
        with pytest.raises(BatchRefused, match=r"MESSAGE_TOO_LARGE.*a batch of 1070 bytes"):
            await sending.flush()

    run_virtually(scenario())


def refuse_larger_than(cluster: FakeCluster, bytes_max: int) -> None:
    handlers = cluster.brokers[1].handlers
    real = handlers[ApiKey.PRODUCE]

    def produce(request, version):
        records = request.topic_data[0].partition_data[0].records
        if len(records) > bytes_max:
            return refusing(ErrorCode.MESSAGE_TOO_LARGE)
        return real(request, version)

    handlers[ApiKey.PRODUCE] = produce


def test_sending_waits_while_the_buffer_is_full():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        sending = producer(cluster, buffer_bytes_max=500)
        for one in numbered(50):
            await sending.send([one])
        return len(partition.batches)

    assert run_virtually(scenario()) >= 40


@pytest.mark.parametrize("acks", [0, 1])
def test_without_all_replicas_there_is_no_identity_and_one_batch_in_flight(acks):
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        sending = producer(cluster, acks=acks)
        await sending.send(numbered(6))
        await sending.flush()
        await asyncio.sleep(1)
        return partition.values(), sequences(cluster), cluster.asked(ApiKey.INIT_PRODUCER_ID)

    values, numbers, asked = run_virtually(scenario())

    assert values == [b"%d" % number for number in range(6)]
    assert set(numbers) == {-1}
    assert asked == []


def test_a_given_identity_is_used():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        sending = producer(cluster, identity=ProducerIdentity(77, 3))
        await sending.send(numbered(1))
        await sending.flush()
        return read_header(partition.batches[0]), cluster.asked(ApiKey.INIT_PRODUCER_ID)

    header, asked = run_virtually(scenario())

    assert (header.producer_id, header.producer_epoch) == (77, 3)
    assert asked == []


def test_a_cluster_that_returns_gets_the_waiting_records():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        strict(cluster)
        react(cluster, dict.fromkeys(range(3, 9), HANG_UP))
        sending = producer(cluster)
        await sending.send(numbered(12))
        await sending.flush()
        return partition.values()

    assert run_virtually(scenario()) == [b"%d" % number for number in range(12)]
