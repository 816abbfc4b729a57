"""Effects of topic keys on stock clients: flushing, clock, codec, size, segments, retention."""

from __future__ import annotations

from time import monotonic, time

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.clients import (
    CLIENTS,
    DEADLINE_S,
    AioKafka,
    Confluent,
    KafkaPython,
    Message,
    Sending,
    aiokafka,
    kafka,
)
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

NOVEMBER_2023_MS = 1_700_000_000_000
ONE_HOUR_MS = 3_600_000

TOO_LARGE = {
    Confluent: confluent_kafka.KafkaException,
    KafkaPython: kafka.errors.MessageSizeTooLargeError,
    AioKafka: aiokafka.errors.MessageSizeTooLargeError,
}


def _stored_bytes(broker: BrokerProcess, topic: str) -> int:
    logs = broker.data_dir.glob(f"**/{topic}-0/*.log")
    return sum(path.stat().st_size for path in logs)


@pytest.mark.parametrize("flush", ["os", "group"])
def test_F27_F128_both_ways_of_flushing_store_and_serve(shared_broker, topic, client, flush):
    create_topic(shared_broker.bootstrap, topic, tidemill_flush=flush)
    messages = [Message(b"%d" % n) for n in range(500)]

    places = client.produce(shared_broker.bootstrap, topic, messages, Sending(batch_bytes_max=1000))

    assert places == [(0, n) for n in range(500)]
    records = client.consume(shared_broker.bootstrap, topic, 500)
    assert [record.value for record in records] == [message.value for message in messages]


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_T24_the_brokers_clock_stamps_the_records_if_the_topic_is_configured_so(
    shared_broker, topic, client, codec
):
    create_topic(shared_broker.bootstrap, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time() * 1000)

    client.produce(
        shared_broker.bootstrap,
        topic,
        [Message(b"v", timestamp_ms=NOVEMBER_2023_MS + n) for n in range(5)],
        Sending(codec=codec),
    )

    for reader in CLIENTS:
        records = reader.consume(shared_broker.bootstrap, topic, 5)
        times = {record.timestamp_ms for record in records}
        assert all(before_ms <= stamped <= before_ms + ONE_HOUR_MS for stamped in times)
    assert client.offsets_for_times(shared_broker.bootstrap, topic, [NOVEMBER_2023_MS]) == [0]


@pytest.mark.parametrize(
    ("stored", "sent"), [("lz4", "gzip"), ("zstd", "none"), ("uncompressed", "gzip")]
)
def test_T25_F31_the_broker_recompresses_where_the_topic_names_a_codec(
    shared_broker, topic, client, stored, sent
):
    create_topic(shared_broker.bootstrap, topic, compression_type=stored)
    messages = [
        Message(b"compress me " * 100, b"%d" % n, (("h", b"%d" % n),), NOVEMBER_2023_MS + n)
        for n in range(50)
    ]

    client.produce(shared_broker.bootstrap, topic, messages, Sending(codec=sent, idempotent=True))

    assert (_stored_bytes(shared_broker, topic) < 10_000) == (stored != "uncompressed")
    for reader in CLIENTS:
        records = reader.consume(shared_broker.bootstrap, topic, 50)
        read = [Message(r.value, r.key, r.headers, r.timestamp_ms) for r in records]
        assert read == messages, reader.name


def test_T26_a_batch_above_the_topics_limit_is_refused_and_nothing_is_kept(
    shared_broker, topic, client
):
    create_topic(shared_broker.bootstrap, topic, max_message_bytes="10000")

    with pytest.raises(TOO_LARGE[type(client)]) as raised:
        client.produce(shared_broker.bootstrap, topic, [Message(bytes(20_000))])

    if isinstance(client, Confluent):
        code = raised.value.args[0].code()
        assert code == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    assert client.produce(shared_broker.bootstrap, topic, [Message(bytes(5000))]) == [(0, 0)]


def test_T9_a_refused_request_without_an_answer_stores_nothing_and_affects_no_other_client(
    shared_broker, topic, client
):
    create_topic(shared_broker.bootstrap, topic, max_message_bytes="10000")
    how = Sending(acks="0")

    # With acks=0 the client gets no error: the broker closes the connection.
    client.produce(shared_broker.bootstrap, topic, [Message(bytes(20_000))], how)
    client.produce(shared_broker.bootstrap, topic, [Message(b"fits")], how)

    (record,) = client.consume(shared_broker.bootstrap, topic, 1)
    assert record.value == b"fits"


def test_T26_a_topic_may_take_larger_batches_than_the_default(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic, max_message_bytes="5000000")
    how = Sending(batch_bytes_max=4_500_000)

    client.produce(shared_broker.bootstrap, topic, [Message(bytes(4_000_000))], how)

    (record,) = client.consume(shared_broker.bootstrap, topic, 1)
    assert record.value == bytes(4_000_000)


def test_T26_a_changed_limit_holds_for_the_next_batch(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(bytes(20_000))])
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    entry = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (altered,) = admin.incremental_alter_configs([changed]).values()
    altered.result(DEADLINE_S)

    with pytest.raises(confluent_kafka.KafkaException):
        Confluent().produce(shared_broker.bootstrap, topic, [Message(bytes(20_000))])


def test_F23_F24_records_are_found_over_many_segments(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic, segment_bytes="20000")
    messages = [Message(b"%0900d" % n, timestamp_ms=NOVEMBER_2023_MS + n) for n in range(200)]
    client.produce(shared_broker.bootstrap, topic, messages, Sending(batch_bytes_max=3000))

    segments = list(shared_broker.data_dir.glob(f"**/{topic}-0/*.log"))
    assert len(segments) > 5
    for start in (0, 77, 199):
        records = client.consume(shared_broker.bootstrap, topic, 200 - start, {0: start})
        assert [r.value for r in records] == [m.value for m in messages[start:]]
    times = [NOVEMBER_2023_MS + 133, NOVEMBER_2023_MS + 200]
    assert client.offsets_for_times(shared_broker.bootstrap, topic, times) == [133, None]


def test_F25_old_segments_are_deleted_and_the_log_begins_later(new_broker, topic):
    broker = new_broker("log.retention.check.interval.ms=50")
    create_topic(broker.bootstrap, topic, segment_bytes="20000", retention_bytes="50000")
    messages = [Message(b"%0900d" % n) for n in range(200)]
    Confluent().produce(broker.bootstrap, topic, messages, Sending(batch_bytes_max=3000))

    consumer = Confluent().consumer(broker.bootstrap, auto_offset_reset="earliest")
    try:
        partition = confluent_kafka.TopicPartition(topic, 0)
        deadline = monotonic() + DEADLINE_S
        low = 0
        while low < 100 and monotonic() < deadline:
            low, high = consumer.get_watermark_offsets(partition, DEADLINE_S)
        assert (100 <= low < 200, high) == (True, 200)
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        records = Confluent().read(consumer, 200 - low)
    finally:
        consumer.close()
    assert [record.value for record in records] == [m.value for m in messages[low:]]
