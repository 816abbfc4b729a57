from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.fake_cluster import HANG_UP, SILENCE, FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError, ConnectionClosed, RequestTimedOut
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire import compression
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import read_header
from tidemill.wire.generated.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.wire.records import iter_records


class FixedClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


def producer(cluster: FakeCluster, **options) -> Producer:
    return Producer(ClusterClient(cluster.net, cluster.bootstrap), FixedClock(), **options)


def refusing(code: ErrorCode, partition: int = 0, **fields) -> ProduceResponse:
    answer = PartitionProduceResponse(index=partition, error_code=code, base_offset=-1, **fields)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])


def first_do(cluster: FakeCluster, broker: int, *reactions) -> None:
    """The broker's first Produce requests get these reactions instead of answers."""
    real = cluster.brokers[broker].handlers[ApiKey.PRODUCE]
    script: Iterator = iter(reactions)

    def produce(request, version):
        reaction = next(script, None)
        return real(request, version) if reaction is None else reaction

    cluster.brokers[broker].handlers[ApiKey.PRODUCE] = produce


def sequences(cluster: FakeCluster) -> list[tuple[int, int]]:
    return [
        (header.producer_id, header.base_sequence)
        for request in cluster.asked(ApiKey.PRODUCE)
        for topic in request.topic_data
        for data in topic.partition_data
        for header in [read_header(data.records)]
    ]


def test_records_reach_their_partition_in_order_and_learn_their_offsets():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t")
        async with producer(cluster) as sending:
            deliveries = [await sending.send("t", b"%d" % n) for n in range(5)]
            offsets = [await delivery.offset() for delivery in deliveries]
        return offsets, topic.partitions[0].values(), sending.records_acked

    offsets, values, acked = run_virtually(scenario())

    assert offsets == [0, 1, 2, 3, 4]
    assert values == [b"0", b"1", b"2", b"3", b"4"]
    assert acked == 5


def test_what_was_given_to_send_is_what_is_stored():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t")
        async with producer(cluster, codec=compression.ZSTD) as sending:
            await sending.send("t", b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=42)
            await sending.send("t", None)
        batch = topic.partitions[0].batches[0]
        return list(iter_records(batch)), read_header(batch).codec

    records, codec = run_virtually(scenario())

    assert (records[0].key, records[0].value) == (b"k", b"v")
    assert (records[0].headers, records[0].timestamp) == ([("h", b"1")], 42)
    assert (records[1].value, records[1].timestamp) == (None, FixedClock().wall_ms())
    assert codec == compression.ZSTD


def test_records_sent_together_share_a_batch():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t")
        async with producer(cluster) as sending:
            for n in range(100):
                await sending.send("t", b"%d" % n)
        return len(topic.partitions[0].batches)

    assert run_virtually(scenario()) == 1


def test_a_full_batch_is_followed_by_the_next_in_order():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        async with producer(cluster, batch_bytes_max=500) as sending:
            for n in range(50):
                await sending.send("t", b"%d" % n * 10)
        return len(partition.batches), partition.values()

    batches, values = run_virtually(scenario())

    assert batches > 3
    assert values == [b"%d" % n * 10 for n in range(50)]


def test_a_lone_record_leaves_after_the_linger_time():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with producer(cluster, linger_s=2) as sending:
            delivery = await sending.send("t", b"v")
            before = asyncio.get_running_loop().time()
            await delivery.offset()
            return asyncio.get_running_loop().time() - before

    assert run_virtually(scenario()) == pytest.approx(2, abs=0.01)


def test_send_waits_while_the_buffer_is_full():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        most = 0
        async with producer(cluster, buffer_bytes_max=2_000, batch_bytes_max=500) as sending:
            for _ in range(100):
                await sending.send("t", b"x" * 100)
                most = max(most, sending._accumulator.buffered_bytes)
        return most, len(partition.values())

    most, stored = run_virtually(scenario())

    assert most < 2_200
    assert stored == 100


def test_records_go_to_the_leaders_of_their_partitions():
    async def scenario():
        cluster = FakeCluster(brokers=3)
        topic = cluster.add_topic("t", 3)
        async with producer(cluster) as sending:
            for n in range(9):
                await sending.send("t", b"%d" % n, partition=n % 3)
        return [partition.values() for partition in topic.partitions]

    assert run_virtually(scenario()) == [
        [b"0", b"3", b"6"],
        [b"1", b"4", b"7"],
        [b"2", b"5", b"8"],
    ]


def test_T15_asking_for_an_unknown_topic_creates_it():
    async def scenario():
        cluster = FakeCluster()
        async with producer(cluster) as sending:
            await sending.send("fresh", b"v", partition=2)
        return cluster.topics["fresh"].partitions[2].values()

    assert run_virtually(scenario()) == [b"v"]


def test_a_partition_that_does_not_exist_is_refused_at_once():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t", 2)
        async with producer(cluster) as sending:
            with pytest.raises(KafkaError, match="t-2"):
                await sending.send("t", b"v", partition=2)

    run_virtually(scenario())


def test_T9_acks_0_waits_for_no_answer():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t")
        async with producer(cluster, acks=0) as sending:
            offset = await (await sending.send("t", b"v")).offset()
        await asyncio.sleep(0)
        return offset, topic.partitions[0].values()

    assert run_virtually(scenario()) == (-1, [b"v"])


@pytest.mark.parametrize("reaction", [HANG_UP, SILENCE], ids=["hang up", "no answer"])
def test_T29_a_retry_carries_the_same_sequence_and_order_is_kept(reaction):
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        first_do(cluster, 1, reaction)
        async with producer(
            cluster, idempotent=True, batch_bytes_max=60, delivery_timeout_s=120
        ) as sending:
            for n in range(3):
                await sending.send("t", b"%d" % n * 20)
        return sequences(cluster), [value[:1] for value in partition.values()]

    sent, values = run_virtually(scenario())

    assert sent == [(1001, 0), (1001, 0), (1001, 1), (1001, 2)]
    assert values == [b"0", b"1", b"2"]


def test_a_record_sent_while_a_batch_is_in_flight_goes_into_the_next_one():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        first_do(cluster, 1, SILENCE)
        async with producer(cluster, delivery_timeout_s=120) as sending:
            await sending.send("t", b"in flight")
            await asyncio.sleep(1)
            await sending.send("t", b"meanwhile")
        return partition.values(), len(partition.batches)

    assert run_virtually(scenario()) == ([b"in flight", b"meanwhile"], 2)


def test_a_batch_in_flight_is_not_sent_to_a_new_leader_as_well():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        topic = cluster.add_topic("t", 2)
        first_do(cluster, 1, SILENCE)
        async with producer(cluster, delivery_timeout_s=120) as sending:
            await sending.send("t", b"a", partition=0)
            await asyncio.sleep(1)
            for partition, leader in zip(topic.partitions, (2, 1), strict=True):
                partition.leader, partition.leader_epoch = leader, 1
            await sending.send("t", b"b", partition=1)
            await asyncio.sleep(5)
            early = topic.partitions[0].values()
        return early, topic.partitions[0].values(), topic.partitions[1].values()

    assert run_virtually(scenario()) == ([], [b"a"], [b"b"])


def test_T29_each_partition_has_its_own_sequence():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t", 2)
        async with producer(cluster, idempotent=True) as sending:
            for count in (2, 3):
                for _ in range(count):
                    await sending.send("t", b"v", partition=0)
                await sending.send("t", b"v", partition=1)
                await sending.flush()
        return sequences(cluster)

    assert run_virtually(scenario()) == [(1001, 0), (1001, 0), (1001, 2), (1001, 1)]


def test_T29_a_duplicate_that_the_broker_recognises_counts_as_delivered():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        first_do(cluster, 1, HANG_UP, refusing(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
        async with producer(cluster, idempotent=True) as sending:
            await sending.send("t", b"v")
        return sending.records_acked

    assert run_virtually(scenario()) == 1


def test_T29_after_a_final_failure_sequences_restart_under_a_new_identity():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        first_do(cluster, 1, None, refusing(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
        async with producer(cluster, idempotent=True) as sending:
            await sending.send("t", b"a")
            await sending.flush()
            await sending.send("t", b"b")
            with pytest.raises(KafkaError, match="OUT_OF_ORDER"):
                await sending.flush()
            await sending.send("t", b"c")
        return sequences(cluster)

    assert run_virtually(scenario()) == [(1001, 0), (1001, 1), (1002, 0)]


def test_T28_a_leader_hint_is_followed_without_a_metadata_round():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        partition = cluster.add_topic("t").partitions[0]
        hint = LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
        first_do(cluster, 1, refusing(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=hint))
        async with producer(cluster) as sending:
            await sending.send("t", b"v")
            asked_before = len(cluster.asked(ApiKey.METADATA))
            partition.leader, partition.leader_epoch = 2, 7
        return partition.values(), len(cluster.asked(ApiKey.METADATA)) - asked_before

    assert run_virtually(scenario()) == ([b"v"], 0)


def test_a_moved_leader_is_found_by_asking_again():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        partition = cluster.add_topic("t").partitions[0]
        async with producer(cluster) as sending:
            await (await sending.send("t", b"a")).offset()
            partition.leader, partition.leader_epoch = 2, 1
            await (await sending.send("t", b"b")).offset()
        return partition.values()

    assert run_virtually(scenario()) == [b"a", b"b"]


def test_a_refusal_that_cannot_pass_fails_the_record_and_the_flush():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        first_do(cluster, 1, refusing(ErrorCode.MESSAGE_TOO_LARGE, error_message="1 MB"))
        async with producer(cluster) as sending:
            delivery = await sending.send("t", b"v")
            with pytest.raises(KafkaError, match=r"MESSAGE_TOO_LARGE: t-0: 1 MB"):
                await sending.flush()
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await delivery.offset()
            await sending.send("t", b"next")
        return sending.records_acked, sending.records_failed

    assert run_virtually(scenario()) == (1, 1)


def test_delivery_is_given_up_at_its_deadline_with_the_last_reason():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        cluster.brokers[1].handlers[ApiKey.PRODUCE] = lambda request, version: SILENCE
        async with producer(cluster, delivery_timeout_s=45) as sending:
            await sending.send("t", b"v")
            with pytest.raises(RequestTimedOut):
                await sending.flush()
        return asyncio.get_running_loop().time(), sending.records_failed

    now, failed = run_virtually(scenario())

    assert 45 <= now < 70
    assert failed == 1


def test_leaving_by_an_exception_does_not_wait_for_deliveries():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        cluster.brokers[1].handlers[ApiKey.PRODUCE] = lambda request, version: SILENCE
        deliveries = []

        async def leave_early():
            async with producer(cluster) as sending:
                deliveries.append(await sending.send("t", b"v"))
                await asyncio.sleep(1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave_early()
        with pytest.raises(ConnectionClosed):
            await deliveries[0].offset()
        return asyncio.get_running_loop().time()

    assert run_virtually(scenario()) < 2


def test_a_bug_in_the_sending_loop_is_not_silent():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with producer(cluster) as sending:
            sending._sender._codec = 99
            delivery = await sending.send("t", b"v")
            with pytest.raises(ClientError, match="the sending loop ended"):
                await delivery.offset()
            with pytest.raises(ConnectionClosed, match="does not run"):
                await sending.send("t", b"w")
            with pytest.raises(ClientError):
                await sending.flush()

    run_virtually(scenario())


def test_an_idempotent_producer_insists_on_acks_all():
    async def scenario():
        with pytest.raises(ValueError, match="acks=all"):
            producer(FakeCluster(), idempotent=True, acks=1)

    run_virtually(scenario())


def test_a_batch_that_times_out_without_a_leader_does_not_stop_other_partitions():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        topic = cluster.add_topic("t", partitions=2)
        sending = producer(cluster, idempotent=True, delivery_timeout_s=1.0)

        async def lose_one():
            await (await sending.send("t", b"warm", partition=1)).offset()
            topic.partitions[0].leader = -1
            sending._cluster.metadata.forget_leader("t", 0)
            refresh = sending._cluster.refresh

            async def refresh_slowly(topics):
                await asyncio.sleep(2)
                return await refresh(topics)

            sending._cluster.refresh = refresh_slowly
            await sending.send("t", b"lost", partition=0)
            await (await sending.send("t", b"healthy", partition=1)).offset()

        with pytest.raises(KafkaError, match="t-0"):
            async with sending:
                await lose_one()
        return topic.partitions[1].values()

    assert run_virtually(scenario()) == [b"warm", b"healthy"]
