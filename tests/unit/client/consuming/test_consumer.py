from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_cluster import HANG_UP, FakeCluster, FakePartition
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.consuming.consumer import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AtOffset,
    AtTime,
    Consumer,
)
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire import compression
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.fetch import AbortedTransaction
from tidemill.wire.records import Record, build_batch


def store(partition: FakePartition, *values: bytes, time: int = 100, codec: int = 0) -> None:
    """One batch; its records are a millisecond apart."""
    records = [Record(value, timestamp=time + n) for n, value in enumerate(values)]
    partition.append(bytes(build_batch(records, codec=codec)))


def consumer(cluster: FakeCluster, **options) -> Consumer:
    return Consumer(ClusterClient(cluster.net, cluster.bootstrap), **options)


async def read(reading: Consumer, count: int) -> list[tuple[int, int, bytes | None]]:
    """Poll until `count` records have arrived: (partition, offset, value)."""
    got: list[tuple[int, int, bytes | None]] = []
    while len(got) < count:
        for fetched in await reading.poll(1):
            got += [(fetched.partition, r.offset, r.value) for r in fetched.records]
    return got


def test_all_partitions_of_a_topic_are_read_from_their_beginning():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        topic = cluster.add_topic("t", 3)
        for index, partition in enumerate(topic.partitions):
            store(partition, b"%d-a" % index, b"%d-b" % index)
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        return sorted(await read(reading, 6))

    assert run_virtually(scenario()) == [
        (0, 0, b"0-a"),
        (0, 1, b"0-b"),
        (1, 0, b"1-a"),
        (1, 1, b"1-b"),
        (2, 0, b"2-a"),
        (2, 1, b"2-b"),
    ]


@pytest.mark.parametrize(
    ("start", "first"),
    [(AtOffset(3), 3), (AtTime(102), 2), (AtTime(0), 0), (AtTime(999), 6), (LATEST, 6)],
    ids=["offset", "time", "before all", "after all", "end"],
)
def test_reading_begins_at_the_given_position(start, first):
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"0", b"1", b"2", b"3", b"4", b"5")
        reading = consumer(cluster)
        await reading.assign("t", start)
        store(partition, b"late")
        return (await read(reading, 1))[0][1]

    assert run_virtually(scenario()) == first


def test_T31_records_before_the_position_are_left_out_of_their_batch():
    async def scenario():
        cluster = FakeCluster()
        store(cluster.add_topic("t").partitions[0], b"0", b"1", b"2", codec=compression.LZ4)
        reading = consumer(cluster)
        await reading.assign("t", AtOffset(1))
        return await read(reading, 2)

    assert run_virtually(scenario()) == [(0, 1, b"1"), (0, 2, b"2")]


def test_T31_a_batch_that_was_cut_off_is_fetched_again():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"whole")
        store(partition, b"cut")
        real = cluster.brokers[1].handlers[ApiKey.FETCH]

        def cut_first(request, version):
            response = real(request, version)
            if request.topics[0].partitions[0].fetch_offset == 0:
                data = response.responses[0].partitions[0]
                data.records = data.records[:-5]
            return response

        cluster.brokers[1].handlers[ApiKey.FETCH] = cut_first
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        return [value for _, _, value in await read(reading, 2)]

    assert run_virtually(scenario()) == [b"whole", b"cut"]


def test_batches_that_were_read_already_do_not_move_the_position_back():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"old")
        store(partition, b"new")
        partition.read = lambda offset: partition.batches[0]
        reading = consumer(cluster)
        await reading.assign("t", AtOffset(1))
        return await reading.poll(1), list(reading.positions.values())

    assert run_virtually(scenario()) == ([], [1])


def test_a_partition_without_a_leader_is_waited_for():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t", 2)
        topic.partitions[1].leader = -1
        store(topic.partitions[1], b"v")
        reading = consumer(cluster)

        def elect():
            topic.partitions[1].leader, topic.partitions[1].leader_epoch = 1, 1

        asyncio.get_running_loop().call_later(1, elect)
        await reading.assign("t", EARLIEST)
        return await read(reading, 1)

    assert run_virtually(scenario()) == [(1, 0, b"v")]


def test_control_batches_are_passed_over():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"a")
        marker = build_batch([Record(b"\0\0", b"\0\0\0\1")], producer_id=1, control=True)
        partition.append(bytes(marker))
        store(partition, b"b")
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        return await read(reading, 2)

    assert run_virtually(scenario()) == [(0, 0, b"a"), (0, 2, b"b")]


def test_a_damaged_batch_is_not_handed_out():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"value")
        partition.batches[0] = partition.batches[0][:-3] + b"###"
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        with pytest.raises(KafkaError) as refusal:
            await read(reading, 1)
        return refusal.value.code

    assert run_virtually(scenario()) is ErrorCode.CORRUPT_MESSAGE


def test_polling_an_idle_topic_ends_after_its_time():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        return await reading.poll(0.5)

    assert run_virtually(scenario()) == []


def test_a_lost_connection_is_reopened_and_no_record_is_missed_or_repeated():
    async def scenario():
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"a")
        real = cluster.brokers[1].handlers[ApiKey.FETCH]
        script = iter([None, HANG_UP, HANG_UP])

        def sometimes_hang_up(request, version):
            return next(script, None) or real(request, version)

        cluster.brokers[1].handlers[ApiKey.FETCH] = sometimes_hang_up
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        got = await read(reading, 1)
        store(partition, b"b")
        return got + await read(reading, 1)

    assert run_virtually(scenario()) == [(0, 0, b"a"), (0, 1, b"b")]


def test_a_moved_leader_is_followed():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        partition = cluster.add_topic("t").partitions[0]
        store(partition, b"a")
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        got = await read(reading, 1)
        partition.leader, partition.leader_epoch = 2, 1
        store(partition, b"b")
        return got + await read(reading, 1)

    assert run_virtually(scenario()) == [(0, 0, b"a"), (0, 1, b"b")]


def test_data_beside_a_refusing_partition_is_not_lost():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        topic = cluster.add_topic("t", 2)
        for partition in topic.partitions:
            partition.leader = 1
        store(topic.partitions[0], b"good")
        store(topic.partitions[1], b"moved")
        reading = consumer(cluster)
        await reading.assign("t", EARLIEST)
        topic.partitions[1].leader, topic.partitions[1].leader_epoch = 2, 1
        return sorted(await read(reading, 2))

    assert run_virtually(scenario()) == [(0, 0, b"good"), (1, 0, b"moved")]


def test_a_broker_that_stays_unreachable_is_given_up():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        reading = consumer(cluster, retry_s=10)
        await reading.assign("t", EARLIEST)
        cluster.brokers[1].transports[0].break_off()
        cluster.net.servers.clear()
        with pytest.raises(ClientError):
            await read(reading, 1)
        return asyncio.get_running_loop().time()

    assert 10 <= run_virtually(scenario()) < 15


def test_T32_an_offset_out_of_range_is_an_error_at_once():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        reading = consumer(cluster)
        await reading.assign("t", AtOffset(5))
        with pytest.raises(KafkaError, match=r"OFFSET_OUT_OF_RANGE: t-0 at offset 5"):
            await reading.poll(1)

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("topic", "partitions"), [("absent", None), ("t", [7])], ids=["topic", "partition"]
)
def test_an_unknown_topic_or_partition_cannot_be_assigned(topic, partitions):
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        with pytest.raises(KafkaError) as refusal:
            await consumer(cluster).assign(topic, EARLIEST, partitions)
        return refusal.value.code

    assert run_virtually(scenario()) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_reading_does_not_create_topics():
    async def scenario():
        cluster = FakeCluster()
        with pytest.raises(KafkaError):
            await consumer(cluster).assign("absent", EARLIEST)
        return list(cluster.topics)

    assert run_virtually(scenario()) == []


def test_T34_a_reader_of_committed_records_sees_no_aborted_ones():
    async def scenario(level: int):
        cluster = FakeCluster()
        partition = cluster.add_topic("t").partitions[0]
        for value, control in ((b"aborted", False), (b"", True), (b"kept", False)):
            record = Record(value, b"\0\0\0\0" if control else None, timestamp=1)
            part = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            payload = build_batch([record], transactional=True, control=control, **part)
            partition.append(bytes(payload))
        fetch = cluster.brokers[1].handlers[ApiKey.FETCH]

        def listing(request, version):
            answer = fetch(request, version)
            if request.isolation_level == READ_COMMITTED:
                aborted = AbortedTransaction(producer_id=7, first_offset=0)
                answer.responses[0].partitions[0].aborted_transactions = [aborted]
            return answer

        cluster.brokers[1].handlers[ApiKey.FETCH] = listing
        reading = consumer(cluster, isolation_level=level)
        await reading.assign("t", EARLIEST)
        return [record.value for fetched in await reading.poll(1) for record in fetched.records]

    assert run_virtually(scenario(READ_UNCOMMITTED)) == [b"aborted", b"kept"]
    assert run_virtually(scenario(READ_COMMITTED)) == [b"kept"]
