from __future__ import annotations

import json

from tests.support.fake_cluster import FakeCluster
from tests.unit.cli.invoke import tidemill
from tidemill.wire.records import Record, build_batch


def test_create_creates_the_topic_and_reports_it():
    cluster = FakeCluster()

    result = tidemill(
        *("topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=1000"),
        *("--config", "cleanup.policy=delete"),
        cluster=cluster,
    )

    assert result.stdout == "created orders: 3 partitions, replication 1\n"
    assert cluster.topics["orders"].configs == {
        "retention.ms": "1000",
        "cleanup.policy": "delete",
    }


def test_create_can_answer_in_json():
    result = tidemill("topic", "create", "t", "--json", cluster=FakeCluster())

    facts = json.loads(result.stdout)
    assert (facts["name"], facts["partitions"], facts["replication"]) == ("t", 4, 1)


def test_creating_a_topic_twice_is_refused_with_advice():
    cluster = FakeCluster()
    cluster.add_topic("t")

    result = tidemill("topic", "create", "t", "--partitions", "1", cluster=cluster)

    assert result.exit_code == 1
    assert result.stderr == (
        "error: TOPIC_ALREADY_EXISTS: no; "
        "choose another name, or change it with `tidemill topic alter`\n"
    )


def test_a_config_without_a_value_is_wrong_use():
    result = tidemill("topic", "create", "t", "--config", "retention", cluster=FakeCluster())

    assert result.exit_code == 2
    assert "--config" in result.stderr


def test_list_shows_topics_as_plain_columns():
    cluster = FakeCluster()
    cluster.add_topic("b", 12)
    cluster.add_topic("a", 1)

    result = tidemill("topic", "list", cluster=cluster)

    assert result.stdout.splitlines() == [
        "TOPIC  PARTITIONS  REPLICATION",
        "a               1            1",
        "b              12            1",
    ]


def test_list_can_answer_in_json():
    cluster = FakeCluster()
    cluster.add_topic("a", 2)

    result = tidemill("topic", "list", "--json", cluster=cluster)

    assert json.loads(result.stdout) == [
        {
            "name": "a",
            "topic_id": "00000000-0000-0000-0000-000000000001",
            "partitions": 2,
            "replication": 1,
            "internal": False,
        }
    ]


def test_describe_shows_leaders_offsets_and_what_is_set():
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 2)
    topic.configs = {"retention.ms": "1000"}
    topic.partitions[1].append(bytes(build_batch([Record(b"a"), Record(b"b")])))

    result = tidemill("topic", "describe", "t", cluster=cluster)

    assert result.stdout.splitlines() == [
        "t  id 00000000-0000-0000-0000-000000000001",
        "  retention.ms=1000",
        "PARTITION  LEADER  EPOCH  REPLICAS  IN SYNC  START  END",
        "        0       1      0  1         1            0    0",
        "        1       1      0  1         1            0    2",
    ]


def test_describe_without_a_name_describes_all():
    cluster = FakeCluster()
    cluster.add_topic("a")
    cluster.add_topic("b")

    result = tidemill("topic", "describe", "--json", cluster=cluster)

    assert [facts["name"] for facts in json.loads(result.stdout)] == ["a", "b"]


def test_describing_what_does_not_exist_points_at_the_list():
    result = tidemill("topic", "describe", "absent", cluster=FakeCluster())

    assert result.exit_code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in result.stderr
    assert "`tidemill topic list`" in result.stderr


def test_alter_sets_and_unsets_configs_and_adds_partitions():
    cluster = FakeCluster()
    topic = cluster.add_topic("t", 1)
    topic.configs = {"old": "1"}

    result = tidemill(
        *("topic", "alter", "t", "--config", "new=2", "--delete-config", "old"),
        *("--partitions", "3"),
        cluster=cluster,
    )

    assert result.stdout == "altered t\n"
    assert (topic.configs, len(topic.partitions)) == ({"new": "2"}, 3)


def test_alter_without_a_change_is_wrong_use():
    result = tidemill("topic", "alter", "t", cluster=FakeCluster())

    assert result.exit_code == 2
    assert "--config" in result.stderr


def test_fewer_partitions_are_refused_with_the_reason():
    cluster = FakeCluster()
    cluster.add_topic("t", 3)

    result = tidemill("topic", "alter", "t", "--partitions", "2", cluster=cluster)

    assert result.exit_code == 1
    assert "partitions can be added, not removed" in result.stderr


def test_delete_takes_several_and_reports_each():
    cluster = FakeCluster()
    cluster.add_topic("a")
    cluster.add_topic("b")

    result = tidemill("topic", "delete", "a", "absent", "b", cluster=cluster)

    assert result.exit_code == 1
    assert result.stdout == "deleted a\ndeleted b\n"
    assert "UNKNOWN_TOPIC_OR_PARTITION: not deleted: absent: no such topic" in result.stderr
    assert list(cluster.topics) == []
