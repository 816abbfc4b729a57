"""The driver's side of a stream against a real broker, called as Spark calls it; no JVM needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.queries import put
from tests.support.clients import Confluent, Message, Sending
from tests.support.topics import create_topic
from tidemill.client.network.epoch_lookup import epoch_ends
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.spark.bridge.blocking_client import RetryLimits, client_for
from tidemill.spark.options.offset_json import PartitionOffsets
from tidemill.spark.options.source_options import parse_source_options
from tidemill.spark.source import planning
from tidemill.spark.source.data_loss import DataLoss
from tidemill.spark.source.planning import OffsetRange
from tidemill.spark.source.positions import SubscribedPartitions, resolve_subscription
from tidemill.spark.source.range_reading import address_of
from tidemill.spark.source.schema import source_schema
from tidemill.spark.stream import end_watch, topic_watch
from tidemill.spark.stream.stream_reader import StreamReader

Offset = dict[str, object]

NOON_MS = 1_715_947_200_000


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


@pytest.fixture
def no_patience(monkeypatch) -> None:
    """Signs of loss count at once."""
    monkeypatch.setattr(topic_watch, "PATIENCE_S", 0.0)
    monkeypatch.setattr(end_watch, "PATIENCE_S", 0.0)


def put_sized(bootstrap: str, topic: str, count: int, value_bytes: int) -> None:
    """Records of one size, not compressed."""
    messages = [Message(bytes(value_bytes), partition=0) for _ in range(count)]
    Confluent().produce(bootstrap, topic, messages, Sending(codec="none"))


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


@pytest.mark.parametrize(
    "asked", ["latest", "earliest", "-2", '{"TOPIC": {"0": -1}}', '{"TOPIC": {"0": 3}}']
)
def test_a_start_that_an_earlier_query_left_does_not_override_what_is_asked_for(
    reader, bootstrap, topic, asked
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    reader(kafka_group_id=f"g-{topic}").initialOffset()
    put(bootstrap, topic, range(5, 8))
    asked = asked.replace("TOPIC", topic)
    with_group = reader(kafka_group_id=f"g-{topic}", startingOffsets=asked).initialOffset()
    assert with_group[topic] == reader(startingOffsets=asked).initialOffset()[topic]


def test_a_start_that_an_earlier_query_left_does_not_override_a_time(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    reader(kafka_group_id=f"g-{topic}").initialOffset()
    put(bootstrap, topic, range(5))
    options = {"startingTimestamp": "99999999999999", "kafka_group_id": f"g-{topic}"}
    late = reader(startingOffsetsByTimestampStrategy="latest", **options)
    assert late.initialOffset()[topic] == {"0": 5}


def test_a_group_forgets_the_start_of_a_query_whose_first_batch_is_logged(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    crashed = reader(kafka_group_id=f"g-{topic}")
    start = crashed.initialOffset()
    put(bootstrap, topic, range(5))
    crashed.partitions(start, wait_for_end(crashed, start))
    put(bootstrap, topic, range(5, 9))
    assert reader(kafka_group_id=f"g-{topic}").initialOffset()[topic] == {"0": 9}


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


def test_a_backlog_is_read_in_the_order_of_its_times(reader, bootstrap, topic):
    # Given two partitions an hour apart, with a record every minute
    create_topic(bootstrap, topic, 2)
    for partition, hour in ((0, 0), (1, 1)):
        times = [NOON_MS + (hour * 60 + minute) * 60_000 for minute in range(60)]
        messages = [Message(b"v", partition=partition, timestamp_ms=time) for time in times]
        Confluent().produce(bootstrap, topic, messages)
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="40", alignTimestamps="true")

    # Then the later one waits for the earlier one
    ends = [stream.initialOffset()]
    while len(ends) < 4:
        ends.append(wait_for_end(stream, ends[-1]))
    assert [end[topic] for end in ends[1:]] == [
        {"0": 40, "1": 0},
        {"0": 60, "1": 20},
        {"0": 60, "1": 60},
    ]


def test_max_bytes_bound_a_batch_of_a_few_large_records(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put_sized(bootstrap, topic, 200, value_bytes=50_000)
    stream = reader(startingOffsets="earliest", maxBytesPerTrigger="500k")
    end = next_end(stream, stream.initialOffset())
    assert 5 <= end[topic]["0"] <= 12


def test_a_range_of_a_few_large_records_is_cut_into_tasks(reader, bootstrap, topic, monkeypatch):
    monkeypatch.setattr(planning, "TASK_BYTES_MAX", 1 * MIB)
    monkeypatch.setattr(planning, "TASK_BYTES_MIN", 1 * MIB)
    create_topic(bootstrap, topic)
    put_sized(bootstrap, topic, 80, value_bytes=50_000)
    stream = reader(startingOffsets="earliest")
    start = stream.initialOffset()
    assert 3 <= len(stream.partitions(start, next_end(stream, start))) <= 5


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


def test_available_now_fails_if_the_log_ends_before_what_was_read(
    reader, bootstrap, topic, no_patience
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    ahead: Offset = {topic: {"0": 9}}
    strict, lossy = reader(), reader(failOnDataLoss="false")
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="ends at 5, before 9"):
        next_end(strict, ahead)
    lossy.prepareForTriggerAvailableNow()
    assert next_end(lossy, ahead) == ahead


def test_available_now_waits_for_an_end_that_comes_back(reader, bootstrap, topic):
    # Given a leader that knew 5 records when the run began, of the 9 that were read before
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    # When it has learnt of the rest, the run ends without loss, and without what came later
    put(bootstrap, topic, range(5, 12))
    ahead: Offset = {topic: {"0": 9}}
    assert next_end(stream, ahead) == ahead


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


def test_a_topic_that_is_missing_for_a_moment_is_not_read_again(
    reader, bootstrap, topic, monkeypatch
):
    # Given a query over two topics
    other = f"{topic}-other"
    create_topic(bootstrap, topic)
    create_topic(bootstrap, other)
    put(bootstrap, topic, range(5))
    stream = reader(
        subscribe=f"{topic},{other}", startingOffsets="earliest", failOnDataLoss="false"
    )
    end = next_end(stream, stream.initialOffset())

    # When a broker does not know one of them while the other has news
    put(bootstrap, other, range(3))
    with monkeypatch.context() as patch:
        patch.setattr(topic_watch, "resolve_subscription", without(topic))
        stream_in_doubt = reader(subscribe=f"{topic},{other}", failOnDataLoss="false")
        between = wait_for_end(stream_in_doubt, end)
    assert (between[topic], between[other]) == ({"0": 5}, {"0": 3})
    assert between["_v"]["ids"] == end["_v"]["ids"]

    # Then the query goes on in it where it was
    put(bootstrap, topic, range(5, 8))
    after = wait_for_end(stream, between)
    assert ranges_of(stream, between, after) == [(0, 5, 8)]


def without(topic: str):
    """Subscriptions as a broker resolves them that does not know the topic."""

    async def resolve(cluster, subscription) -> SubscribedPartitions:
        found = await resolve_subscription(cluster, subscription)
        left = tuple(p for p in found.partitions if p.topic != topic)
        ids = {name: each for name, each in found.topic_ids.items() if name != topic}
        return SubscribedPartitions(left, ids, (topic,))

    return resolve


def test_a_new_leader_that_lacks_what_was_read_is_data_loss(reader, bootstrap, topic, monkeypatch):
    # Given a batch that was read under a leader epoch that the offset keeps
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(9))
    stream = reader(startingOffsets="earliest")
    end = next_end(stream, stream.initialOffset())
    epochs = end["_v"]["epochs"]
    assert epochs == {topic: {"0": epochs[topic]["0"]}}

    # When the leader of a later epoch says that the log was cut off at 6
    asked: list[dict[TopicPartition, int]] = []
    old = end | {"_v": end["_v"] | {"epochs": {topic: {"0": -1}}}}

    async def cut_at_6(cluster, wanted) -> PartitionOffsets:
        asked.append(dict(wanted))
        assert await epoch_ends(cluster, wanted) == dict.fromkeys(wanted, -1)
        return dict.fromkeys(wanted, 6)

    monkeypatch.setattr(end_watch, "epoch_ends", cut_at_6)
    with pytest.raises(DataLoss, match="was cut off at 6"):
        next_end(reader(), old)
    assert asked == [{TopicPartition(topic, 0): -1}]

    # Then a query that goes on in spite of it reads what took the place of the lost records
    lossy = reader(failOnDataLoss="false")
    after = next_end(lossy, old)
    assert ranges_of(lossy, old, after) == [(0, 6, 9)]
    assert after["_v"]["epochs"] == epochs


def test_the_leader_knows_where_its_own_epoch_ends(reader, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(9))
    stream = reader(startingOffsets="earliest")
    end = next_end(stream, stream.initialOffset())
    epoch = end["_v"]["epochs"][topic]["0"]
    partition = TopicPartition(topic, 0)
    address = address_of(
        parse_source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
    )
    found = client_for(address).run(lambda c: epoch_ends(c, {partition: epoch}), RetryLimits(1000))
    assert found == {partition: 9}


def test_a_deleted_topic_fails_the_query(reader, bootstrap, topic, delete, no_patience):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    stream = reader(startingOffsets="earliest")
    end = next_end(stream, stream.initialOffset())
    delete(bootstrap, topic)
    with pytest.raises(DataLoss, match="no longer exists"):
        next_end(reader(), end)


def test_a_query_that_goes_on_without_a_deleted_topic_forgets_it(
    reader, bootstrap, topic, delete, no_patience
):
    other = f"{topic}-other"
    create_topic(bootstrap, topic)
    create_topic(bootstrap, other)
    put(bootstrap, topic, range(5))
    options = {"subscribe": f"{topic},{other}", "failOnDataLoss": "false"}
    stream = reader(startingOffsets="earliest", **options)
    end = next_end(stream, stream.initialOffset())
    delete(bootstrap, topic)
    put(bootstrap, other, range(3))
    after = wait_for_end(reader(**options), end)
    assert after.keys() == {"_v", other}
    assert after["_v"]["ids"].keys() == after["_v"]["epochs"].keys() == {other}


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
