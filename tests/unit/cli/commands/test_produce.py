from __future__ import annotations

import re

import pytest

from tests.support.fake_cluster import FakeCluster, FakeTopic
from tests.unit.cli.invoke import tidemill
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import read_header
from tidemill.wire.records import Record, iter_records


def records(topic: FakeTopic) -> list[Record]:
    return [r for p in topic.partitions for batch in p.batches for r in iter_records(batch)]


def test_each_line_becomes_a_record_and_the_count_goes_to_standard_error():
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 1)

    result = tidemill("produce", "t", cluster=cluster, stdin="one\ntwo\n\nthree")

    assert [record.value for record in records(topic)] == [b"one", b"two", b"", b"three"]
    assert result.stdout == ""
    assert re.fullmatch(r"sent 4 records to t in \d+\.\d s \([\d,]+/s\)\n", result.stderr)


def test_nothing_to_send_is_no_error():
    result = tidemill("produce", "t", cluster=FakeCluster(), stdin="")

    assert result.exit_code == 0
    assert result.stderr.startswith("sent 0 records")


def test_keys_are_split_off_at_the_first_separator():
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 1)

    tidemill("produce", "t", "--key-separator", ":", cluster=cluster, stdin="k:a:b\nno key\n")

    assert [(r.key, r.value) for r in records(topic)] == [(b"k", b"a:b"), (None, b"no key")]


def test_headers_partition_and_codec_are_as_asked():
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 3)

    tidemill(
        *("produce", "t", "--header", "a=1", "--header", "b=x=y", "--partition", "2"),
        *("--compression", "gzip"),
        cluster=cluster,
        stdin="v\n",
    )

    [record] = iter_records(topic.partitions[2].batches[0])
    assert record.headers == [("a", b"1"), ("b", b"x=y")]
    assert read_header(topic.partitions[2].batches[0]).codec == 1


@pytest.mark.parametrize(("flag", "acks"), [("0", 0), ("1", 1), ("all", -1), (None, -1)])
def test_acks_are_as_asked_and_all_by_default(flag, acks):
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 1)

    flags = ("--acks", flag) if flag is not None else ()
    tidemill("produce", "t", *flags, cluster=cluster, stdin="v\n")

    assert [request.acks for request in cluster.asked(ApiKey.PRODUCE)] == [acks]
    assert len(records(topic)) == 1


def test_idempotent_records_carry_a_producer_id_and_sequences():
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 1)

    tidemill("produce", "t", "--idempotent", cluster=cluster, stdin="v\n")

    header = read_header(topic.partitions[0].batches[0])
    assert (header.producer_id, header.base_sequence) == (1001, 0)


def test_idempotent_without_acks_all_is_wrong_use():
    result = tidemill("produce", "t", "--idempotent", "--acks", "1", cluster=FakeCluster())

    assert result.exit_code == 2


def test_an_empty_key_separator_is_wrong_use():
    result = tidemill("produce", "t", "--key-separator", "", cluster=FakeCluster())

    assert result.exit_code == 2


def test_a_partition_that_does_not_exist_ends_with_the_count_and_the_reason():
    cluster = FakeCluster()
    cluster.add_topic("t", 1)

    result = tidemill("produce", "t", "--partition", "5", cluster=cluster, stdin="v\n")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("sent 0 records")
    assert "UNKNOWN_TOPIC_OR_PARTITION: t-5" in result.stderr.splitlines()[1]


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        (("--delay", "10m"), [("tidemill.delay-ms", b"600000")]),
        (
            ("--delay", "1s", "--id", "ann-7", "--header", "a=1"),
            [("a", b"1"), ("tidemill.delay-ms", b"1000"), ("tidemill.message-id", b"ann-7")],
        ),
        (
            ("--deliver-at", "2026-12-24T18:00:00Z"),
            [("tidemill.deliver-at", b"1798135200000")],
        ),
        (
            ("--schedule", "0 9 * * 1", "--id", "weekly"),
            [("tidemill.schedule", b"0 9 * * 1"), ("tidemill.message-id", b"weekly")],
        ),
    ],
)
def test_records_may_be_delivered_later(options, headers):
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 1)
    tidemill("produce", "t", *options, cluster=cluster, stdin="v\n")
    [record] = records(topic)
    assert record.headers == headers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--delay", "1s", "--deliver-at", "2026-12-24"), "exclude each other"),
        (("--schedule", "0 9 * * 1"), "--schedule needs --id"),
        (("--id", "ann-7"), "--id needs --delay"),
        (("--delay", "soon"), "--delay: 'soon': expected a length of time"),
        (("--deliver-at", "soon"), "--deliver-at soon: expected a time"),
        (("--delay", "1s", "--id", ""), "--id: an id has 1 to 255 bytes"),
    ],
)
def test_a_wrong_delay_is_refused_before_anything_is_sent(options, said):
    cluster = FakeCluster()
    result = tidemill("produce", "t", *options, cluster=cluster, stdin="v\n")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not cluster.requests
