"""The work of a sink's task against a real broker in this process, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random

import pyarrow as pa
import pytest

from tests.support.spark_topics import create_topic, records_of
from tidemill.client.network.errors import BrokerUnreachable
from tidemill.client.network.metadata_cache import TopicInfo
from tidemill.client.producing.batch_producer import BatchRefused
from tidemill.client.producing.partitioners import KeyPartitioner, RoundRobin
from tidemill.core.errors import UserError
from tidemill.core.rng import SeededRng
from tidemill.spark.sink.client import SinkClient
from tidemill.spark.sink.options import SinkOptions, sink_options
from tidemill.spark.sink.writer import SinkWriter
from tidemill.testing.embedded import RunningBroker, broker
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire import compression

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(auto_create_topics_enable=False, tidemill_flush="os") as started:
        yield started


@pytest.fixture(scope="module")
def refusing(running: RunningBroker) -> RunningBroker:
    """The broker with a topic of one partition, "refusals"."""
    create_topic(running.bootstrap, "refusals")
    return running


def options(running: RunningBroker, **given: str) -> SinkOptions:
    words = {name.replace("__", "."): text for name, text in given.items()}
    return sink_options({"kafka.bootstrap.servers": running.bootstrap} | words)


def write(running: RunningBroker, *chunks: pa.RecordBatch, **given: str) -> dict[str, int]:
    return write_all(running, iter(chunks), **given)


def write_all(
    running: RunningBroker, chunks: Iterator[pa.RecordBatch], **given: str
) -> dict[str, int]:
    asked = options(running, **given)
    client = SinkClient(asked)
    try:
        cluster = client.connections.cluster
        clock = ManualClock(wall_ms=NOW_MS)
        writer = SinkWriter(cluster, client.producer, asked, clock=clock, rng=SeededRng(1))
        delivered = client.connections.run_once(writer.write(chunks))
    finally:
        client.close()
    return {str(place): got.records for place, got in delivered.items()}


def chunk(**columns) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_every_column_of_a_row_reaches_the_record(running):
    create_topic(running.bootstrap, "all-columns", 3)
    rows = chunk(
        key=binary(b"k", None, b""),
        value=binary(b"v", b"", None),
        headers=pa.array([[("a", b"1"), ("a", None)], None, []], HEADERS),
        topic=pa.array(["all-columns"] * 3),
        partition=pa.array([2, 2, 0], pa.int32()),
        timestamp=pa.array(
            [datetime(2024, 1, 1, tzinfo=UTC), None, datetime(2024, 1, 2, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
        ),
    )

    assert write(running, rows) == {"all-columns-0": 1, "all-columns-2": 2}

    third, first, second = records_of(running.bootstrap, "all-columns", 3)
    assert (first.partition, first.key, first.value) == (2, b"k", b"v")
    assert first.headers == (("a", b"1"), ("a", None))
    assert first.timestamp_ms == 1_704_067_200_000
    assert (second.partition, second.key, second.value, second.headers) == (2, None, b"", ())
    assert second.timestamp_ms == NOW_MS
    assert (third.partition, third.key, third.value) == (0, b"", None)
    assert third.timestamp_ms == 1_704_153_600_000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_text_and_columns_with_wide_offsets_are_written_as_their_bytes(running, kind):
    topic = f"kind-{kind}".replace("_", "-")
    create_topic(running.bootstrap, topic)
    texts = ["grün", "", None] if kind != pa.large_binary() else [b"\xff\x00", b"", None]
    write(running, chunk(value=pa.array(texts, kind), key=pa.array(texts, kind)), topic=topic)
    expected = [text.encode() if isinstance(text, str) else text for text in texts]
    records = records_of(running.bootstrap, topic)
    assert [record.value for record in records] == expected
    assert [record.key for record in records] == expected


@pytest.mark.parametrize("codec", compression.CODEC_NAMES.values())
def test_many_rows_arrive_in_order_under_every_codec(running, codec):
    topic = f"codec-{codec}"
    create_topic(running.bootstrap, topic, 4)
    values = [b"%d-" % number * 9 for number in range(5_000)]
    keys = [b"%d" % (number % 50) for number in range(5_000)]
    rows = chunk(key=binary(*keys), value=binary(*values))
    settings = {"kafka__compression__type": codec, "kafka__batch__size": "16384"}

    counts = write(running, rows.slice(0, 1_777), rows.slice(1_777), topic=topic, **settings)

    partitioner = KeyPartitioner(RoundRobin())
    expected = [
        (partition, key, value)
        for partition in range(4)
        for key, value in zip(keys, values, strict=True)
        if partitioner.partition(key, 4) == partition
    ]
    records = records_of(running.bootstrap, topic, 4)
    assert [(record.partition, record.key, record.value) for record in records] == expected
    assert sum(counts.values()) == 5_000


def test_rows_without_a_key_fill_one_partition_after_the_other(running):
    create_topic(running.bootstrap, "keyless", 3)
    rows = chunk(value=binary(*[b"x" * 1000] * 60))
    counts = write(running, rows, topic="keyless", kafka__batch__size="10000")
    assert counts == {"keyless-0": 20, "keyless-1": 20, "keyless-2": 20}


def test_rows_of_several_topics_go_to_their_own(running):
    for topic in ("red", "blue"):
        create_topic(running.bootstrap, topic)
    topics = ["red", "blue", "red", "blue", "red"]
    values = binary(*[b"%d" % number for number in range(5)])
    counts = write(running, chunk(value=values, topic=pa.array(topics)))
    assert counts == {"red-0": 3, "blue-0": 2}
    assert [r.value for r in records_of(running.bootstrap, "red")] == [b"0", b"2", b"4"]
    assert [r.value for r in records_of(running.bootstrap, "blue")] == [b"1", b"3"]


def test_the_topic_option_overrides_the_column(running):
    create_topic(running.bootstrap, "option")
    rows = chunk(value=binary(b"v"), topic=pa.array(["elsewhere"]))
    assert write(running, rows, topic="option") == {"option-0": 1}


def test_a_task_without_rows_writes_nothing(running):
    assert write(running, topic="nowhere") == {}
    assert write(running, chunk(value=binary()), topic="nowhere") == {}


def test_columns_that_only_the_source_has_are_left_out(running):
    create_topic(running.bootstrap, "copied")
    rows = chunk(value=binary(b"v"), offset=pa.array([7]), timestampType=pa.array([0], pa.int32()))
    assert write(running, rows, topic="copied") == {"copied-0": 1}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": pa.array([None], pa.string())}, "a row has no topic"),
        ({"topic": pa.array(["not a topic"])}, "'not a topic', which is not a topic name"),
        (
            {"topic": pa.array(["refusals"]), "partition": pa.array([3], pa.int32())},
            "partition 3 of topic refusals, which has the partitions 0 to 0",
        ),
        (
            {"topic": pa.array(["refusals"]), "partition": pa.array([-1], pa.int32())},
            "a row asks for partition -1",
        ),
        (
            {"topic": pa.array(["refusals"]), "headers": pa.array([[(None, b"x")]], HEADERS)},
            "has a header without a key",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_refused_with_a_sentence(refusing, columns, sentence):
    with pytest.raises(UserError) as refused:
        write(refusing, chunk(value=binary(b"v"), **columns))
    assert sentence in str(refused.value)


@pytest.mark.slow
def test_a_missing_topic_is_named(running):
    with pytest.raises(UserError, match=r"cannot write to topic missing: UNKNOWN_TOPIC"):
        write(running, chunk(value=binary(b"v")), topic="missing")


def test_a_record_beyond_the_request_size_is_refused_with_its_size(running):
    create_topic(running.bootstrap, "too-large")
    rows = chunk(value=binary(b"small", b"x" * 5_000))
    with pytest.raises(UserError, match=r"topic too-large: a row makes a record of 5009 bytes"):
        write(running, rows, topic="too-large", kafka__max__request__size="2000")


def test_a_record_that_the_topic_does_not_take_is_refused_with_its_size(running):
    create_topic(running.bootstrap, "small-messages", max_message_bytes="1000")
    rows = chunk(value=binary(Random(1).randbytes(5_000)))
    with pytest.raises(BatchRefused) as refused:
        write(running, rows, topic="small-messages")
    assert str(refused.value).startswith("cannot write to topic small-messages, partition 0: ")
    assert "MESSAGE_TOO_LARGE" in str(refused.value)
    assert "5070 bytes with one record" in str(refused.value)


def test_batches_shrink_to_what_the_topic_takes(running):
    create_topic(running.bootstrap, "small-batches", max_message_bytes="2000")
    values = [b"%04d" % number * 50 for number in range(100)]
    assert write(running, chunk(value=binary(*values)), topic="small-batches") == {
        "small-batches-0": 100
    }
    assert [r.value for r in records_of(running.bootstrap, "small-batches")] == values


def test_a_timestamp_that_the_topic_does_not_take_is_refused_by_the_brokers_reason(running):
    create_topic(running.bootstrap, "times")
    far = pa.array([datetime(2500, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    with pytest.raises(BatchRefused, match=r"partition 0: INVALID_TIMESTAMP: .*record 0"):
        write(running, chunk(value=binary(b"v"), timestamp=far), topic="times")


def test_open_batches_do_not_hold_more_than_half_of_the_buffer(running):
    create_topic(running.bootstrap, "wide", 50)
    keys = binary(*[b"%d" % number for number in range(500)])
    rows = chunk(key=keys, value=binary(*[b"x" * 1000] * 500))
    counts = write(running, rows, rows, topic="wide", kafka__buffer__memory="65536")
    assert sum(counts.values()) == 1000


def test_a_client_serves_one_task_after_the_other_under_one_identity(running):
    create_topic(running.bootstrap, "tasks")
    asked = options(running, topic="tasks")
    client = SinkClient(asked)
    counts = []
    for number in range(3):
        writer = SinkWriter(
            client.connections.cluster,
            client.producer,
            asked,
            clock=ManualClock(wall_ms=NOW_MS),
            rng=SeededRng(1),
        )
        rows = iter([chunk(value=binary(b"%d" % number))])
        delivered = client.connections.run_once(writer.write(rows))
        counts.append([got.records for got in delivered.values()])
    client.close()
    assert counts == [[1], [1], [1]]
    assert [r.value for r in records_of(running.bootstrap, "tasks")] == [b"0", b"1", b"2"]


def test_a_broker_that_restarts_in_the_middle_costs_nothing(tmp_path):
    first = RunningBroker(str(tmp_path), {})
    first.start()
    second = RunningBroker(str(tmp_path), {"listeners": first.bootstrap})
    create_topic(first.bootstrap, "restarted", 2)
    values = [b"%d" % number * 10 for number in range(2_000)]

    def rows_with_a_restart() -> Iterator[pa.RecordBatch]:
        for at in range(0, 2_000, 100):
            if at == 500:
                first.stop()
                second.start()
            yield chunk(value=binary(*values[at : at + 100]))

    try:
        rows = rows_with_a_restart()
        counts = write_all(first, rows, topic="restarted", kafka__batch__size="2000")
        records = records_of(first.bootstrap, "restarted", 2)
    finally:
        second.stop()
    assert sum(counts.values()) == 2_000
    assert sorted(record.value for record in records) == sorted(values)


def test_a_task_that_begins_while_the_broker_is_away_asks_again(running):
    create_topic(running.bootstrap, "away")
    asked = options(running, topic="away")
    client = SinkClient(asked)
    cluster = client.connections.cluster
    real, attempts = cluster.topic, []

    async def topic(name: str, *, auto_create: bool) -> TopicInfo:
        attempts.append(name)
        if len(attempts) < 3:
            raise BrokerUnreachable("cannot connect")
        return await real(name, auto_create=auto_create)

    cluster.topic = topic
    clock = ManualClock(wall_ms=NOW_MS)
    writer = SinkWriter(cluster, client.producer, asked, clock=clock, rng=SeededRng(1))
    delivered = client.connections.run_once(writer.write(iter([chunk(value=binary(b"v"))])))
    client.close()
    assert sum(got.records for got in delivered.values()) == 1
    assert attempts == ["away"] * 3


def test_a_broker_that_stays_away_is_named_after_the_delivery_timeout(running):
    rows = chunk(value=binary(b"v"))
    asked = {"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__delivery__timeout__ms": "100"}
    with pytest.raises(BrokerUnreachable, match=r"topic t: cannot connect to 127\.0\.0\.1:1"):
        write(running, rows, topic="t", **asked)
