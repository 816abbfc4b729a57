from __future__ import annotations

import json

import pytest

from tests.support.fake_cluster import FakeCluster
from tests.unit.cli.invoke import tidemill
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.records import Record, build_batch


@pytest.fixture
def cluster() -> FakeCluster:
    """A topic `t`: five records in partition 0, one in partition 1."""
    fake = FakeCluster()
    topic = fake.add_topic("t", 2)
    records = [Record(b"v%d" % n, b"k%d" % n, timestamp=1000 + n) for n in range(5)]
    topic.partitions[0].append(bytes(build_batch(records)))
    topic.partitions[1].append(bytes(build_batch([Record(b"other", timestamp=1000)])))
    return fake


def test_no_follow_prints_what_is_there_and_ends(cluster):
    result = tidemill("consume", "t", "--no-follow", cluster=cluster)

    assert result.exit_code == 0
    assert sorted(result.stdout.splitlines()) == ["other", "v0", "v1", "v2", "v3", "v4"]


def test_no_follow_on_an_empty_topic_prints_nothing():
    fake = FakeCluster()
    fake.add_topic("t")

    assert tidemill("consume", "t", "--no-follow", cluster=fake).stdout == ""


def test_count_ends_a_reader_that_follows(cluster):
    result = tidemill("consume", "t", "--count", "2", "--partition", "0", cluster=cluster)

    assert result.stdout == "v0\nv1\n"


@pytest.mark.parametrize(
    ("start", "values"), [("3", ["v3", "v4"]), ("end", []), ("beginning", ["v0", "v1"])]
)
def test_reading_begins_at_the_position_of_from(cluster, start, values):
    result = tidemill(
        *("consume", "t", "--partition", "0", "--no-follow", "--count", "2", "--from", start),
        cluster=cluster,
    )

    assert result.stdout.splitlines() == values


def test_no_follow_stops_at_the_end_there_was_when_it_began(cluster):
    partition = cluster.topics["t"].partitions[0]
    real = cluster.brokers[1].handlers[ApiKey.FETCH]

    def grow(request, version):
        partition.append(bytes(build_batch([Record(b"late")])))
        return real(request, version)

    cluster.brokers[1].handlers[ApiKey.FETCH] = grow
    result = tidemill("consume", "t", "--partition", "0", "--no-follow", cluster=cluster)

    assert result.stdout.splitlines() == ["v0", "v1", "v2", "v3", "v4"]


def test_a_format_controls_the_printed_line(cluster):
    result = tidemill(
        *("consume", "t", "--partition", "0", "--count", "1", "--format", "%t %p %o %T %k=%v"),
        cluster=cluster,
    )

    assert result.stdout == "t 0 0 1000 k0=v0\n"


def test_json_prints_an_object_per_line(cluster):
    result = tidemill("consume", "t", "--partition", "0", "--no-follow", "--json", cluster=cluster)

    assert [json.loads(line)["value"] for line in result.stdout.splitlines()] == [
        "v0",
        "v1",
        "v2",
        "v3",
        "v4",
    ]


def test_S52_values_are_escaped_unless_raw_is_asked_for():
    fake = FakeCluster()
    hostile = Record(b"\x1b[2J\xff")
    fake.add_topic("t").partitions[0].append(bytes(build_batch([hostile])))

    shown = tidemill("consume", "t", "--no-follow", cluster=fake)
    raw = tidemill("consume", "t", "--no-follow", "--raw", cluster=fake)

    assert shown.stdout == "\\x1b[2J\\xff\n"
    assert raw.stdout_bytes == b"\x1b[2J\xff\n"


def test_an_unknown_topic_is_refused_and_not_created():
    fake = FakeCluster()

    result = tidemill("consume", "absent", cluster=fake)

    assert result.exit_code == 1
    assert "`tidemill topic list`" in result.stderr
    assert list(fake.topics) == []


@pytest.mark.parametrize(
    "flags",
    [["--from", "yesterday"], ["--format", "%x"], ["--raw", "--json"], ["--count", "-1"]],
    ids=" ".join,
)
def test_wrong_flags_are_wrong_use(cluster, flags):
    assert tidemill("consume", "t", *flags, cluster=cluster).exit_code == 2


def test_the_error_for_a_deleted_offset_advises_where_to_begin(cluster):
    cluster.topics["t"].partitions[0].log_start_offset = 3

    result = tidemill("consume", "t", "--partition", "0", "--from", "1", cluster=cluster)

    assert result.exit_code == 1
    assert "OFFSET_OUT_OF_RANGE" in result.stderr
    assert "--from beginning" in result.stderr
