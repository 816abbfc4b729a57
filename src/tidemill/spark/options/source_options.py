"""The options of the source: those of Spark's Kafka source under the same names, and our own.

An unknown option is refused when the source is loaded: a mistyped option must not silently have no
effect. Spark passes names in lower case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from tidemill.client.consuming.consumer import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.spark.options.offset_json import PRIVATE_KEY
from tidemill.spark.options.option_values import (
    OptionReader,
    parse_bootstrap,
    parse_count,
    parse_duration_ms,
    parse_flag,
    parse_number,
    parse_size_bytes,
    parse_word,
)
from tidemill.spark.options.start_positions import (
    PlaceKind,
    Places,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)

__all__ = [
    "COLUMNS",
    "SOURCE_OPTIONS",
    "SourceOptions",
    "Subscription",
    "parse_source_options",
]


COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS_COLUMN: Final = "headers"

SOURCE_OPTIONS: Final = (
    *("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy",),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition", "alignTimestamps"),
    *("groupIdPrefix", "kafka.group.id", "commitOffsets"),
    *("includeHeaders", "columns", "pushdown"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("partition.metadata.cache.ttl.ms",),
    *("kafka.isolation.level", "kafka.client.id", "kafka.client.rack"),
    *("kafka.request.timeout.ms",),
    *("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes", "kafka.security.protocol"),
)

_REFUSED: Final = {
    "kafka.auto.offset.reset": "the query keeps its own offsets: use startingOffsets",
    "kafka.key.deserializer": "keys are always bytes: cast the column",
    "kafka.value.deserializer": "values are always bytes: cast the column",
    "kafka.key.serializer": "this is an option of the sink, and its keys are always bytes",
    "kafka.value.serializer": "this is an option of the sink, and its values are always bytes",
    "kafka.enable.auto.commit": "progress is committed after each batch: see commitOffsets",
    "kafka.interceptor.classes": "there is no JVM consumer that could load classes",
    "kafka.partitioner.class": "there is no JVM producer that could load classes: the sink takes "
    "a partition column",
    "topic": "this is an option of the sink: a source has subscribe, subscribePattern or assign",
}
_REFUSED_KAFKA: Final = (
    "the source has a client of its own, which has no such setting: leave it out"
)
_FETCH_BYTES_MAX: Final = 8 * MIB


@final
@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read: topics by name, topics by pattern, or single partitions; one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options with defaults; the meaning of `None` differs between batch and stream."""

    bootstrap: tuple[Endpoint, ...]
    subscription: Subscription
    starting: Places | None = None
    ending: Places | None = None
    fail_on_data_loss: bool = True
    trigger_offsets_max: int | None = None
    trigger_offsets_min: int | None = None
    trigger_delay_max_ms: int = 15 * 60_000
    trigger_bytes_max: int | None = None
    align_timestamps: bool = False
    """A batch that `trigger_offsets_max` limits ends at one time in all partitions."""
    partitions_min: int | None = None
    partition_records_max: int | None = None
    group_id: str | None = None
    group_id_prefix: str = "spark-kafka-source"
    commit_offsets: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    pushdown: bool = False
    poll_timeout_ms: int = 120_000
    offset_retries: int | None = None
    """Attempts of the driver before it gives up; None: until the poll timeout."""
    offset_retry_interval_ms: int | None = None
    metadata_ttl_ms: int = 1_000
    isolation_level: int = READ_UNCOMMITTED
    client_id: str = "tidemill-spark"
    client_rack: str = ""
    """Executors read from replicas in this rack where the cluster lets them."""
    request_timeout_ms: int = 30_000
    fetch_bytes_max: int = _FETCH_BYTES_MAX
    partition_bytes_max: int = _FETCH_BYTES_MAX


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check all options. UserError names the option and what is wrong with it."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    columns = _columns(given.get("columns"))
    read = OptionReader(given).read
    return SourceOptions(
        bootstrap=_bootstrap(given),
        subscription=_subscription(given),
        starting=_starting(given),
        ending=_ending(given),
        fail_on_data_loss=read("failOnDataLoss", parse_flag, True),
        trigger_offsets_max=read("maxOffsetsPerTrigger", parse_count, None),
        trigger_offsets_min=read("minOffsetsPerTrigger", parse_count, None),
        trigger_delay_max_ms=read("maxTriggerDelay", parse_duration_ms, 15 * 60_000),
        trigger_bytes_max=read("maxBytesPerTrigger", parse_size_bytes, None),
        align_timestamps=read("alignTimestamps", parse_flag, False),
        partitions_min=read("minPartitions", parse_count, None),
        partition_records_max=read("maxRecordsPerPartition", parse_count, None),
        group_id=read("kafka.group.id", parse_word, None),
        group_id_prefix=read("groupIdPrefix", parse_word, "spark-kafka-source"),
        commit_offsets=read("commitOffsets", parse_flag, True),
        include_headers=read("includeHeaders", parse_flag, False)
        or (columns is not None and HEADERS_COLUMN in columns),
        columns=columns,
        pushdown=read("pushdown", parse_flag, False),
        poll_timeout_ms=read("kafkaConsumer.pollTimeoutMs", parse_count, 120_000),
        offset_retries=read("fetchOffset.numRetries", parse_count, None),
        offset_retry_interval_ms=read("fetchOffset.retryIntervalMs", parse_count, None),
        metadata_ttl_ms=max(0, read("partition.metadata.cache.ttl.ms", parse_number, 1_000)),
        isolation_level=read("kafka.isolation.level", _isolation_level, READ_UNCOMMITTED),
        client_id=read("kafka.client.id", parse_word, "tidemill-spark"),
        client_rack=read("kafka.client.rack", parse_word, ""),
        request_timeout_ms=read("kafka.request.timeout.ms", parse_count, 30_000),
        fetch_bytes_max=read("kafka.fetch.max.bytes", parse_size_bytes, _FETCH_BYTES_MAX),
        partition_bytes_max=read(
            "kafka.max.partition.fetch.bytes", parse_size_bytes, _FETCH_BYTES_MAX
        ),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in SOURCE_OPTIONS}
    for name in sorted(given):
        if name in _REFUSED:
            raise UserError(f"option {name} is not supported: {_REFUSED[name]}")
        if name in known:
            continue
        if name.startswith("kafka."):
            raise UserError(f"option {name} is not supported: {_REFUSED_KAFKA}")
        raise UserError(f"unknown option {name}; the options are {', '.join(SOURCE_OPTIONS)}")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise UserError(
            f"kafka.security.protocol={protocol} is not supported: only PLAINTEXT is, so far"
        )


# --- groups of options ---------------------------------------------------------------------------


def _bootstrap(given: Mapping[str, str]) -> tuple[Endpoint, ...]:
    option = "kafka.bootstrap.servers"
    if option not in given:
        hint = (
            ""
            if given
            else (
                " (a table that was made with a list of columns does not keep its options: leave "
                "the list out of CREATE TABLE, or use SELECT ... WITH (...))"
            )
        )
        raise UserError(f"option {option} is missing: HOST:PORT of a broker or more{hint}")
    return parse_bootstrap(given[option], option)


def _subscription(given: Mapping[str, str]) -> Subscription:
    names = [name for name in ("subscribe", "subscribepattern", "assign") if name in given]
    if len(names) != 1:
        raise UserError("exactly one of subscribe, subscribePattern and assign must be given")
    value = given[names[0]]
    if names[0] == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in value.split(",") if topic.strip()}))
        if not topics or PRIVATE_KEY in topics:
            raise UserError(f"subscribe={value}: expected names of topics, with commas between")
        return Subscription(topics=topics)
    if names[0] == "subscribepattern":
        try:
            re.compile(value)
        except re.error as error:
            raise UserError(f"subscribePattern={value}: {error}") from None
        return Subscription(pattern=value)
    return Subscription(partitions=_assigned(value))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    wrong = UserError(f'assign={text}: expected JSON like {{"topic": [0, 1]}}')
    try:
        topics = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(topics, dict) or not topics or PRIVATE_KEY in topics:
        raise wrong
    partitions: set[TopicPartition] = set()
    for topic, indexes in topics.items():
        if not isinstance(indexes, list) or not all(isinstance(index, int) for index in indexes):
            raise wrong
        partitions |= {TopicPartition(topic, index) for index in indexes}
    return tuple(sorted(partitions))


def _starting(given: Mapping[str, str]) -> Places | None:
    """One time for all overrides times per partition, and those override offsets, as in Spark."""
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in {"error", "latest"}:
        raise UserError(f"startingOffsetsByTimestampStrategy={strategy}: expected error or latest")
    late = strategy == "latest"
    places: Places | None = None
    if "startingtimestamp" in given:
        places = parse_timestamp(
            given["startingtimestamp"], "startingTimestamp", late_is_latest=late
        )
    elif "startingoffsetsbytimestamp" in given:
        option = "startingOffsetsByTimestamp"
        places = parse_timestamps(given[option.lower()], option, late_is_latest=late)
    elif "startingoffsets" in given:
        places = parse_offsets(given["startingoffsets"], "startingOffsets")
    if places is not None and places.for_all is not None:
        is_group = places.for_all.kind is PlaceKind.GROUP
        if is_group and "kafka.group.id" not in given:
            raise UserError("startingOffsets=group needs the group's name in kafka.group.id")
    return places


def _ending(given: Mapping[str, str]) -> Places | None:
    if "endingtimestamp" in given:
        return parse_timestamp(given["endingtimestamp"], "endingTimestamp", late_is_latest=True)
    if "endingoffsetsbytimestamp" in given:
        option = "endingOffsetsByTimestamp"
        return parse_timestamps(given[option.lower()], option, late_is_latest=True)
    if "endingoffsets" not in given:
        return None
    places = parse_offsets(given["endingoffsets"], "endingOffsets", ending=True)
    for partition, place in places.by_partition.items():
        if place.kind is PlaceKind.EARLIEST:
            raise UserError(f"endingOffsets: -2 (earliest) is no end for {partition}")
    return places


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    by_lower = {name.lower(): name for name in (*COLUMNS, HEADERS_COLUMN)}
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in by_lower:
            raise UserError(f"columns={text}: there is no {name}, only {', '.join(by_lower)}")
    if not names or len(set(names)) != len(names):
        raise UserError(f"columns={text}: name each wanted column once")
    return tuple(by_lower[name] for name in names)


def _isolation_level(text: str, option: str) -> int:
    levels = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
    level = levels.get(text.lower())
    if level is None:
        raise UserError(f"{option}={text}: expected read_uncommitted or read_committed")
    return level
