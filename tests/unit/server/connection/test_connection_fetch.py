"""Parked fetches on a connection: what they hold, and when they release it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.memory_peer import MemoryTransport, settle
from tests.unit.server.cold_log import ColdLog
from tidemill.core.errors import DiskBusy, ErrorCode, KafkaError
from tidemill.core.limits import PARKED_PARTITIONS_MAX
from tidemill.server.connection.connection import Connection
from tidemill.server.connection.listener_resources import ClientDeadlines, ListenerResources
from tidemill.server.handlers import HANDLERS
from tidemill.server.request.dispatch import Dispatcher
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.headers import encode_request
from tidemill.wire.primitives import Reader
from tidemill.wire.records import Record, build_batch

VERSION = 11


class Reading:
    """A client of a broker whose logs are in memory."""

    def __init__(self, broker):
        self.broker = broker
        services = broker.services
        self.resources = ListenerResources(
            services,
            Dispatcher(HANDLERS),
            services.supervisor,
            connections_max=10,
            deadlines=ClientDeadlines(),
            failed=lambda part, error: None,
        )
        self.transport = MemoryTransport()
        self.connection = Connection(self.resources)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    def send(self, api_key, request, version):
        chunks = encode_request(
            request, spec=API_SPECS[api_key], version=version, correlation_id=1, client_id="c"
        )
        data = b"".join(chunks)
        space = self.connection.get_buffer(-1)
        space[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def fetch(self, *, min_bytes=1, max_wait_ms=30_000, partitions=(0,), offset=0):
        wanted = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index in partitions
        ]
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[FetchTopic(topic="t", partitions=wanted)],
        )
        self.send(ApiKey.FETCH, request, VERSION)

    def answer(self):
        received = bytes(self.transport.received)
        if not received:
            return None
        reader = Reader(received, pos=8)
        return FetchResponse.read(reader, VERSION)


@pytest.fixture
def reading(broker):
    broker.make_topic("t", 4)

    async def make():
        return Reading(broker)

    return broker.run(make())


def inside(reading, work):
    """Run `work` on the broker's loop and let it settle."""

    async def run():
        work()
        await settle()

    reading.broker.run(run())


def watchers(reading):
    return sum(len(one.consumer_watchers) for one in reading.broker.replicas)


def test_a_parked_fetch_is_answered_when_data_comes(reading):
    inside(reading, reading.fetch)
    assert reading.answer() is None
    inside(reading, lambda: reading.broker.append("t", 1000))
    assert len(reading.answer().responses[0].partitions[0].records) > 0
    assert watchers(reading) == 0
    assert len(reading.broker.services.parked) == 0


def test_S40_a_lost_connection_unregisters_its_parked_fetches_at_once(reading):
    inside(reading, lambda: reading.fetch(partitions=range(4)))
    assert watchers(reading) == 4
    inside(reading, reading.transport.abort)
    assert watchers(reading) == 0
    assert reading.broker.services.parked.parked_partitions == 0


def test_stopping_answers_a_parked_fetch_with_the_data_so_far(reading):
    inside(reading, reading.fetch)
    inside(reading, reading.broker.services.parked.stop)
    assert reading.answer().responses[0].partitions[0].error_code == 0
    assert watchers(reading) == 0


def test_S40_T11_a_fetch_that_finds_no_room_to_wait_is_answered_and_throttled(reading):
    ready = reading.broker.services.parked
    ready.parked_partitions = PARKED_PARTITIONS_MAX
    inside(reading, reading.fetch)
    assert reading.answer().throttle_time_ms == 1000
    assert watchers(reading) == 0
    inside(reading, reading.fetch)
    assert not reading.transport.reading


def test_S40_without_memory_a_small_batch_is_read_and_a_large_one_waits(reading):
    pool = reading.broker.services.response_memory
    reading.broker.append("t", 1000)
    pool.take(pool.limit_bytes)
    inside(reading, reading.fetch)
    assert len(reading.answer().responses[0].partitions[0].records) > 0


def test_S40_a_large_batch_is_read_when_memory_comes_back(reading):
    pool = reading.broker.services.response_memory
    large = build_batch([Record(b"v" * 100_000, timestamp=1)])
    reading.broker.partition("t").as_leader.append(memoryview(large), acks=1, now_ms=1)
    pool.take(pool.limit_bytes)
    inside(reading, reading.fetch)
    assert reading.answer() is None
    inside(reading, lambda: pool.give(pool.limit_bytes))
    assert len(reading.answer().responses[0].partitions[0].records) > 100_000
    assert watchers(reading) == 0


def test_S40_without_memory_a_fetch_that_does_not_wait_is_answered_with_nothing(reading):
    pool = reading.broker.services.response_memory
    large = build_batch([Record(b"v" * 100_000, timestamp=1)])
    reading.broker.partition("t").as_leader.append(memoryview(large), acks=1, now_ms=1)
    pool.take(pool.limit_bytes)
    inside(reading, lambda: reading.fetch(max_wait_ms=0))
    assert reading.answer().responses[0].partitions[0].records == b""


@pytest.fixture
def cold(reading, monkeypatch):
    """A partition that must be read from disk; the test chooses the result of the read."""

    def with_load(load):
        reading.broker.append("t", 1000)
        partition = reading.broker.partition("t")
        partition.log = ColdLog(partition.log, load, size_bytes=50_000)

        async def run(operation):
            await asyncio.sleep(0)
            seen.append(reading.broker.services.response_memory.used_bytes)
            return operation()

        seen = []
        monkeypatch.setattr(reading.broker.disk, "run", run)
        return seen

    return with_load


def test_S40_memory_is_accounted_for_while_the_disk_is_read(reading, cold):
    used = cold(lambda: [b"batch bytes"])
    inside(reading, reading.fetch)
    assert bytes(reading.answer().responses[0].partitions[0].records) == b"batch bytes"
    assert used == [50_000]
    assert reading.broker.services.response_memory.used_bytes == 0


def test_damage_on_the_disk_is_an_error_code_and_does_not_stop_the_broker(reading, cold):
    def damaged():
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)

    cold(damaged)
    inside(reading, reading.fetch)
    assert reading.answer().responses[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert reading.broker.services.response_memory.used_bytes == 0


def test_S40_a_cold_fetch_while_too_many_wait_for_the_disk_is_told_to_come_later(reading, cold):
    def busy():
        raise DiskBusy("too many reads wait for the disk")

    cold(busy)
    inside(reading, reading.fetch)
    answer = reading.answer()
    assert answer.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answer.throttle_time_ms == 1000
    assert reading.broker.services.response_memory.used_bytes == 0


def test_an_acknowledgement_for_a_lost_connection_is_harmless(reading):
    broker = reading.broker
    broker.join_broker(2)
    broker.make_topic("slow", -1, assignments={0: [1, 2]})
    batch = bytes(build_batch([Record(b"v", timestamp=1)]))
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[TopicProduceData(name="slow", partition_data=[data])],
    )
    inside(reading, lambda: reading.send(ApiKey.PRODUCE, request, 8))
    assert not reading.transport.received
    inside(reading, reading.transport.abort)
    partition = broker.partition("slow")
    inside(
        reading,
        lambda: partition.follower_fetched(2, fetch_offset=1, flushed_offset=1, now=1.0),
    )
    assert partition.high_watermark == 1
    assert not reading.transport.received
