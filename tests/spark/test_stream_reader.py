"""The driver's side of a stream against a real broker, called as Spark calls it; no JVM needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.queries import put
from tests.support.clients import Confluent, Message, create_topic
from tidemill.core.errors import UserError
from tidemill.spark.options.source_options import parse_source_options
from tidemill.spark.source.data_loss import DataLoss
from tidemill.spark.source.planning import OffsetRange
from tidemill.spark.source.schema import source_schema
from tidemill.spark.source.stream_reader import StreamReader

Offset = dict[str, object]


@pytest.fixture
def bootstrap(running) -> str:
    return running.bootstrap


@pytest.fixture
def reader(bootstrap: str, topic: str) -> Iterator[Callable[..., StreamReader]]:
    """Readers of the test's topic, as many as there are processes in the story."""
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        given |= {name.replace("_", "."): value for name, value in options.items()}
        parsed = parse_source_options(given)
        made.append(StreamReader(parsed, source_schema(parsed)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def next_end(reader: StreamReader, start: Offset) -> Offset:
    """The end of the next batch; the offset travels through JSON, as it does through Spark."""
    limit = reader.getDefaultReadLimit()
    return json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), limit)))


def wait_for_end(reader: StreamReader, start: Offset) -> Offset:
    """Asks as Spark does until there is something new."""
    while (end := next_end(reader, start)) == start:
        pass
    return end


def ranges_of(reader: StreamReader, start: Offset, end: Offset) -> list[tuple[int, int, int]]:
    tasks = reader.partitions(start, end)
    found: list[OffsetRange] = [piece for task in tasks for piece in task.value]
    return sorted((piece.partition.partition, piece.start, piece.stop) for piece in found)


def test_spark_rule_1_latest_is_resolved_once_though_asked_for_twice(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader()
    first = stream.initialOffset()
    put(bootstrap, topic, range(5, 8))
    assert stream.initialOffset() == first
    assert ranges_of(stream, first, next_end(stream, first)) == [(0, 5, 8)]


def test_spark_rule_1_a_crash_in_the_first_batch_does_not_move_its_beginning(
    reader, bootstrap, topic
):
    # Given a query at latest whose first batch was logged as 5..8
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    crashed = reader()
    start = crashed.initialOffset()
    put(bootstrap, topic, range(5, 8))
    logged = next_end(crashed, start)

    # When more has come before a new process plans that batch again
    put(bootstrap, topic, range(8, 20))
    restarted = reader()
    start_again = restarted.initialOffset()
    assert start_again != start

    # Then it is the same batch, and the next one follows it without a gap
    assert ranges_of(restarted, start_again, logged) == [(0, 5, 8)]
    following = wait_for_end(restarted, logged)
    assert ranges_of(restarted, logged, following) == [(0, 8, 20)]


def test_spark_rule_1_a_crash_before_the_first_batch_was_logged_is_remembered_by_the_group(
    reader, bootstrap, topic
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    start = reader(kafka_group_id=f"g-{topic}").initialOffset()
    put(bootstrap, topic, range(5, 8))
    assert reader(kafka_group_id=f"g-{topic}").initialOffset() == start


def test_spark_rule_1_a_group_that_has_got_on_does_not_hold_back_a_new_query_at_latest(
    reader, bootstrap, topic
):
    create_topic(bootstrap, topic)
    first = reader(kafka_group_id=f"g-{topic}")
    start = first.initialOffset()
    put(bootstrap, topic, range(5))
    first.commit(wait_for_end(first, start))
    put(bootstrap, topic, range(5, 9))
    fresh = reader(kafka_group_id=f"g-{topic}").initialOffset()
    assert fresh[topic] == {"0": 9}


def test_a_query_goes_on_where_a_group_has_come_to(reader, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    put(bootstrap, topic, range(5))
    put(bootstrap, topic, range(5, 9), partition=1)
    one = reader(kafka_group_id=f"g-{topic}", startingOffsets="earliest")
    one.commit({topic: {"0": 3}})
    taken_over = reader(kafka_group_id=f"g-{topic}", startingOffsets="group").initialOffset()
    assert taken_over[topic] == {"0": 3, "1": 0}


def test_spark_rule_2_an_offset_of_the_kafka_source_is_a_place_to_go_on(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader()
    end = next_end(stream, {topic: {"0": 2}})
    assert end[topic] == {"0": 5}
    assert ranges_of(stream, {topic: {"0": 2}}, end) == [(0, 2, 5)]


def test_spark_rule_2_nothing_new_is_the_same_offset_to_the_letter(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader(startingOffsets="earliest")
    end = next_end(stream, stream.initialOffset())
    assert json.dumps(next_end(stream, end)) == json.dumps(end)


def test_spark_rule_3_an_idle_query_asks_the_broker_less_than_ten_times_a_second(
    reader, running, bootstrap, topic
):
    create_topic(bootstrap, topic, 2)
    put(bootstrap, topic, range(5))
    stream = reader(startingOffsets="earliest")
    end = next_end(stream, stream.initialOffset())
    next_end(stream, end)
    before = _requests(running)
    calls = 10
    for _ in range(calls):
        assert next_end(stream, end) == end
        stream.reportLatestOffset()
    seconds = calls * 0.2  # each call waits that long
    assert _requests(running) - before <= 10 * seconds


def _requests(running) -> int:
    counters = running.broker.telemetry.apis.values()
    return sum(counter.requests for counter in counters)


def test_spark_rule_3_what_comes_while_it_waits_is_reported(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    stream = reader()
    start = stream.initialOffset()
    assert next_end(stream, start) == start
    put(bootstrap, topic, range(3))
    assert wait_for_end(stream, start)[topic] == {"0": 3}
    assert stream.reportLatestOffset() == {topic: {"0": 3}}


def test_max_offsets_are_shared_out_and_once_ignores_them(reader, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    put(bootstrap, topic, range(90), partition=0)
    put(bootstrap, topic, range(10), partition=1)
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="20")
    start = stream.initialOffset()
    assert next_end(stream, start)[topic] == {"0": 18, "1": 2}
    assert stream.latestOffset(start, ReadAllAvailable())[topic] == {"0": 90, "1": 10}


def test_max_bytes_bound_a_batch_by_what_the_log_weighs(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, (10**999 + i for i in range(3000)))
    stream = reader(startingOffsets="earliest", maxBytesPerTrigger="300k")
    end = next_end(stream, stream.initialOffset())
    assert 200 <= end[topic]["0"] <= 400


def test_min_offsets_wait_for_more_until_the_delay_is_over(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    patient = reader(startingOffsets="earliest", minOffsetsPerTrigger="8")
    start = patient.initialOffset()
    assert next_end(patient, start) == start
    put(bootstrap, topic, range(5, 9))
    assert wait_for_end(patient, start)[topic] == {"0": 9}
    hasty = reader(startingOffsets="earliest", minOffsetsPerTrigger="100", maxTriggerDelay="1ms")
    assert next_end(hasty, hasty.initialOffset())[topic] == {"0": 9}


def test_available_now_ends_where_the_topic_ended(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="3", minOffsetsPerTrigger="9")
    stream.prepareForTriggerAvailableNow()
    put(bootstrap, topic, range(5, 9))
    ends = [stream.initialOffset()]
    while (end := next_end(stream, ends[-1])) != ends[-1]:
        ends.append(end)
    assert [end[topic]["0"] for end in ends] == [0, 3, 5]


def test_a_recreated_topic_fails_the_query_or_is_read_from_its_beginning(
    reader, bootstrap, topic, recreate
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(50))
    stream = reader(startingOffsets="earliest")
    start = stream.initialOffset()
    end = next_end(stream, start)
    recreate(bootstrap, topic)
    put(bootstrap, topic, range(100, 103))
    with pytest.raises(DataLoss, match="created again"):
        next_end(reader(), end)
    lossy = reader(failOnDataLoss="false")
    after = wait_for_end(lossy, end)
    assert ranges_of(lossy, end, after) == [(0, 0, 3)]


def test_a_deleted_topic_fails_the_query(reader, bootstrap, topic, delete):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader(startingOffsets="earliest")
    end = next_end(stream, stream.initialOffset())
    delete(bootstrap, topic)
    with pytest.raises(DataLoss, match="no longer exists"):
        next_end(reader(), end)


def test_partitions_that_are_added_are_read_from_their_beginning(
    reader, bootstrap, topic, add_partitions
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader(partition_metadata_cache_ttl_ms="0")
    start = stream.initialOffset()
    add_partitions(bootstrap, topic, 3)
    put(bootstrap, topic, range(7), partition=2)
    end = wait_for_end(stream, start)
    while end[topic].get("2") != 7:
        end = wait_for_end(stream, start)
    assert ranges_of(stream, start, end) == [(2, 0, 7)]


def test_a_log_that_ends_before_what_was_read_moves_nothing_back(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader()
    ahead: Offset = {topic: {"0": 9}}
    assert next_end(stream, ahead) == ahead


def test_a_stream_has_no_end(reader):
    with pytest.raises(UserError, match="endingOffsets is for batches"):
        reader(endingOffsets="latest")


def test_a_backlog_is_read_in_the_order_of_time(reader, bootstrap, topic):
    """Spark's watermark is that of the newest partition: the others would come too late."""
    create_topic(bootstrap, topic, 2)
    hours_ms = (1_700_000_000_000, 1_700_003_600_000)
    Confluent().produce(
        bootstrap,
        topic,
        [
            Message(b"x", partition=partition, timestamp_ms=hour_ms + n * 10_000)
            for n in range(300)
            for partition, hour_ms in enumerate(hours_ms)
        ],
    )
    made = reader(startingOffsets="earliest", maxOffsetsPerTrigger="100", alignTimestamps="true")
    end, found = made.initialOffset(), []
    for _ in range(6):
        end = next_end(made, end)
        found.append(end[topic])

    assert found == [
        *({"0": 100, "1": 0}, {"0": 200, "1": 0}, {"0": 300, "1": 0}),
        *({"0": 300, "1": 100}, {"0": 300, "1": 200}, {"0": 300, "1": 300}),
    ]
