from __future__ import annotations

import pytest

from tidemill.client.consuming.consumer import READ_COMMITTED
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.source_options import (
    SOURCE_OPTIONS,
    Subscription,
    parse_source_options,
)
from tidemill.spark.options.start_positions import PlaceKind

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}

OFFICIAL = {
    "kafka.bootstrap.servers": "h:1,h:2",
    "startingOffsets": '{"t": {"0": 23}}',
    "startingTimestamp": "1700000000000",
    "startingOffsetsByTimestamp": '{"t": {"0": 1}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": '{"t": {"0": 50}}',
    "endingTimestamp": "1700000000000",
    "endingOffsetsByTimestamp": '{"t": {"0": 1}}',
    "failOnDataLoss": "false",
    "maxOffsetsPerTrigger": "10",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "5m",
    "minPartitions": "4",
    "maxRecordsPerPartition": "100",
    "groupIdPrefix": "mine",
    "kafka.group.id": "g",
    "includeHeaders": "true",
    "kafkaConsumer.pollTimeoutMs": "1000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "partition.metadata.cache.ttl.ms": "-1",
}
"""Every option of Spark's Kafka source except the subscription."""

REFUSED = {
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.key.deserializer": "cast",
    "kafka.value.deserializer": "cast",
    "kafka.key.serializer": "sink",
    "kafka.value.serializer": "sink",
    "kafka.enable.auto.commit": "commitOffsets",
    "kafka.interceptor.classes": "JVM",
    "kafka.partitioner.class": "partition column",
    "kafka.max.poll.records": "no such setting",
    "kafka.sasl.mechanism": "no such setting",
    "topic": "subscribe",
}


@pytest.mark.parametrize("option", sorted(OFFICIAL))
def test_F135_an_option_of_the_kafka_source_is_understood(option):
    assert parse_source_options({**BASE, option: OFFICIAL[option]})
    assert option in SOURCE_OPTIONS


@pytest.mark.parametrize("option", sorted(REFUSED))
def test_F135_an_option_that_cannot_be_supported_is_refused_with_a_reason(option):
    with pytest.raises(UserError, match=REFUSED[option]):
        parse_source_options({**BASE, option: "x"})


def test_spark_rule_11_an_unknown_option_is_refused():
    with pytest.raises(UserError, match=r"unknown option startingoffset;.*startingOffsets"):
        parse_source_options({**BASE, "startingOffset": "earliest"})


def test_names_are_understood_in_any_case():
    options = parse_source_options({"KAFKA.bootstrap.SERVERS": "h:1", "SubScribe": "t"})
    assert options.bootstrap == (Endpoint("h", 1),)


@pytest.mark.parametrize(
    ("given", "subscription"),
    [
        ({"subscribe": "b, a,b"}, Subscription(topics=("a", "b"))),
        ({"subscribePattern": "log.*"}, Subscription(pattern="log.*")),
        (
            {"assign": '{"t": [1, 0]}'},
            Subscription(partitions=(TopicPartition("t", 0), TopicPartition("t", 1))),
        ),
    ],
)
def test_a_subscription_has_three_forms(given, subscription):
    options = parse_source_options({"kafka.bootstrap.servers": "h:1", **given})
    assert options.subscription == subscription


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"subscribe": "t", "assign": '{"t": [0]}'},
        {"subscribe": " , "},
        {"subscribe": "_v"},
        {"subscribePattern": "("},
        {"assign": "t"},
        {"assign": "{}"},
        {"assign": '{"t": ["x"]}'},
    ],
)
def test_an_invalid_subscription_is_refused(given):
    with pytest.raises(UserError):
        parse_source_options({"kafka.bootstrap.servers": "h:1", **given})


def test_the_address_is_required_and_the_lost_options_of_a_table_are_explained():
    with pytest.raises(UserError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_source_options({"subscribe": "t"})
    with pytest.raises(UserError, match="CREATE TABLE"):
        parse_source_options({})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.bootstrap.servers", "h"),
        ("failOnDataLoss", "maybe"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxBytesPerTrigger", "10x"),
        ("maxTriggerDelay", "soon"),
        ("startingOffsetsByTimestampStrategy", "guess"),
        ("kafka.isolation.level", "serializable"),
        ("kafka.security.protocol", "SASL_SSL"),
        ("kafka.group.id", " "),
        ("columns", "value,colour"),
        ("columns", "value,value"),
        ("endingOffsets", '{"t": {"0": -2}}'),
        ("startingOffsets", "group"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(option, value):
    with pytest.raises(UserError, match=option.split(".")[-1]):
        parse_source_options({**BASE, option: value})


def test_one_time_overrides_times_and_those_override_offsets():
    given = {**BASE, "startingOffsets": "earliest"}
    given["startingOffsetsByTimestamp"] = '{"t": {"0": 1}}'
    assert parse_source_options(given).starting.option == "startingOffsetsByTimestamp"
    given["startingTimestamp"] = "5"
    assert parse_source_options(given).starting.for_all.kind is PlaceKind.TIME


def test_our_own_options_are_understood():
    options = parse_source_options(
        {
            **BASE,
            "startingOffsets": "group",
            "kafka.group.id": "g",
            "maxBytesPerTrigger": "64m",
            "columns": "value, Headers",
            "pushdown": "true",
            "commitOffsets": "false",
            "kafka.isolation.level": "read_committed",
        }
    )
    assert options.trigger_bytes_max == 64 * 1024 * 1024
    assert options.columns == ("value", "headers")
    assert options.include_headers
    assert options.pushdown
    assert not options.commit_offsets
    assert options.isolation_level == READ_COMMITTED
