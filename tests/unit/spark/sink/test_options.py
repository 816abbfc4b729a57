from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.sink.options import sink_options
from tidemill.wire import compression

REQUIRED = {"kafka.bootstrap.servers": "one:9092"}


def options(**more: str):
    return sink_options(REQUIRED | {name.replace("__", "."): text for name, text in more.items()})


def test_the_brokers_are_all_that_must_be_given():
    checked = options()
    assert checked.bootstrap == (("one", 9092),)
    assert (checked.topic, checked.acks, checked.codec) == (None, -1, compression.LZ4)


def test_producer_settings_are_understood_in_any_case():
    checked = options(
        KAFKA__ACKS="1",
        kafka__compression__type="ZSTD",
        kafka__batch__size="16384",
        kafka__linger__ms="5",
        kafka__request__timeout__ms="1000",
        kafka__delivery__timeout__ms="2000",
        kafka__max__request__size="2048",
        kafka__buffer__memory="65536",
        kafka__client__id="me",
        kafka__max__in__flight__requests__per__connection="1",
        topic="t",
    )
    assert (checked.acks, checked.codec, checked.batch_bytes) == (1, compression.ZSTD, 16384)
    assert (checked.linger_ms, checked.request_timeout_ms) == (5, 1000)
    assert (checked.delivery_timeout_ms, checked.request_bytes_max) == (2000, 2048)
    assert (checked.buffer_bytes_max, checked.client_id) == (65536, "me")
    assert (checked.in_flight_max, checked.topic) == (1, "t")


def test_options_that_spark_adds_to_a_stream_are_accepted():
    assert options(checkpointLocation="/x", queryName="q") == options()


def test_exactly_once_is_named_after_the_checkpoint_unless_a_name_is_given():
    places = ("/x/y", "file:/x/y", "file:///x/y", "/x/z", "hdfs://one/x/y")
    names = [
        options(delivery="exactly_once", checkpointLocation=place).transactional_id
        for place in places
    ]
    assert names[0] == names[1] == names[2]
    assert len(set(names)) == 3
    named = options(delivery="Exactly_Once", kafka__transactional__id="mine")
    assert named.transactional_id == "mine"


def test_exactly_once_needs_the_acknowledgement_of_all_replicas():
    with pytest.raises(UserError, match="acks=all"):
        options(delivery="exactly_once", checkpointLocation="/x", kafka__acks="1")


def test_settings_that_are_always_true_are_accepted():
    checked = options(kafka__enable__idempotence="true", kafka__security__protocol="PLAINTEXT")
    assert checked == options()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("kafka.bootstrap.servers", "nonsense", "kafka.bootstrap.servers"),
        ("topic", "a topic", "not a topic name"),
        ("kafka.acks", "2", "use one of all, -1, 1, 0"),
        ("kafka.compression.type", "rar", "use one of none, gzip, snappy, lz4, zstd"),
        ("kafka.batch.size", "0", "whole number from 1 to"),
        ("kafka.batch.size", "many", "whole number from 1 to"),
        ("kafka.enable.idempotence", "false", "use kafka.acks=1"),
        ("kafka.security.protocol", "SSL", "only PLAINTEXT"),
        ("kafka.max.in.flight.requests.per.connection", "6", "from 1 to 5"),
        ("delivery", "exactly_once", "needs the option checkpointLocation"),
        ("delivery", "perhaps", "use one of at_least_once, exactly_once"),
        ("kafka.transactional.id", "mine", "needs delivery=exactly_once"),
        ("kafka.transactional.id", "", "it is empty"),
        ("kafka.transaction.timeout.ms", "1000000", "from 1000 to 900000"),
        ("kafka.key.serializer", "x", "cast it to binary or string"),
        ("kafka.partitioner.class", "x", "a column `partition`"),
        ("kafka.retries", "3", "kafka.delivery.timeout.ms"),
        ("path", "/x", "not by a path"),
        ("subscribe", "t", "option subscribe is not known to the sink"),
        ("kafka.batch.sise", "1", "option kafka.batch.sise is not known to the sink"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(name, text, sentence):
    with pytest.raises(UserError) as refused:
        sink_options(REQUIRED | {name: text})
    assert sentence in str(refused.value)


def test_without_brokers_nothing_can_be_written():
    with pytest.raises(UserError, match=r"kafka\.bootstrap\.servers is required"):
        sink_options({"topic": "t"})
