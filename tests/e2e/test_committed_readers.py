"""Stock clients that read committed records see no aborted and no undecided ones (T34, I21)."""

from __future__ import annotations

import asyncio
from itertools import islice

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing.embedded import RunningBroker, broker
from tidemill.wire.records import Record, build_batch

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

TOPIC = "orders"
LONG_S = 60.0
NOW_MS = 1_700_000_000_000
ZSTD, LZ4 = 4, 3
COMMITTED = [(1, b"b1"), (5, b"a3")]
UNCOMMITTED = [(0, b"a1"), (1, b"b1"), (2, b"a2"), (5, b"a3"), (7, b"open")]
ENDS = {"read_committed": 7, "read_uncommitted": 8}


async def _write(running: RunningBroker) -> None:
    """Producer 1 aborts a1 and a2 and commits a3, 2 commits b1, 3 is still open."""
    partition = running.broker.replicas.find(TOPIC, 0)
    assert partition is not None

    def write(producer_id: int, sequence: int, value: bytes, codec: int = 0) -> None:
        batch = build_batch(
            [Record(value, timestamp=NOW_MS)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
            codec=codec,
        )
        partition.as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)

    def end(producer_id: int, *, commit: bool) -> None:
        partition.as_leader.append_marker(
            producer_id, 0, is_commit=commit, coordinator_epoch=0, now_ms=NOW_MS
        )

    write(1, 0, b"a1")
    write(2, 0, b"b1", LZ4)
    write(1, 1, b"a2", ZSTD)
    end(1, commit=False)
    end(2, commit=True)
    write(1, 2, b"a3")
    end(1, commit=True)
    write(3, 0, b"open")


@pytest.fixture(scope="module")
def orders():
    with broker(num_partitions=1) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        # Unlike a topic that a question for metadata makes, it has its log when this is answered.
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(LONG_S)
        asyncio.run_coroutine_threadsafe(_write(running), running._loop).result(LONG_S)
        yield running


@pytest.mark.parametrize(
    ("isolation", "wanted"), [("read_committed", COMMITTED), ("read_uncommitted", UNCOMMITTED)]
)
def test_librdkafka_and_kafka_python_read_what_their_isolation_level_allows(
    orders, isolation, wanted
):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": orders.bootstrap,
            "group.id": isolation,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found = []
    while not (message := consumer.poll(LONG_S)).error():
        found.append((message.offset(), message.value()))
    assert message.offset() == ENDS[isolation]
    consumer.close()
    assert found == wanted
    other = kafka.KafkaConsumer(
        bootstrap_servers=orders.bootstrap, isolation_level=isolation, group_id=None
    )
    other.assign([kafka.TopicPartition(TOPIC, 0)])
    other.seek_to_beginning()
    assert [(one.offset, one.value) for one in islice(other, len(wanted))] == wanted
    other.close()


async def _read_with_aiokafka(bootstrap: str) -> tuple[list[tuple[int, bytes]], int]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed"
    )
    await consumer.start()
    place = aiokafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    await consumer.seek_to_beginning(place)
    found = []
    while len(found) < len(COMMITTED):
        message = await asyncio.wait_for(consumer.getone(), LONG_S)
        found.append((message.offset, message.value))
    ends = await consumer.end_offsets([place])
    await consumer.stop()
    return found, ends[place]


def test_aiokafka_reads_committed_records_only(orders, run):
    found, end = run(_read_with_aiokafka(orders.bootstrap))
    assert (found, end) == (COMMITTED, ENDS["read_committed"])
