"""Administration of groups: admin clients and `tidemill group` against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from tests.e2e.commands import run_tidemill
from tests.e2e.group_members import KINDS
from tests.e2e.group_watch import DEADLINE_S, GroupWatch
from tests.support.clients import Confluent, Message, kafka
from tests.support.topics import create_topic
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

TYPES = {
    "librdkafka-classic": ConsumerGroupType.CLASSIC,
    "librdkafka-consumer": ConsumerGroupType.CONSUMER,
}


@pytest.fixture(scope="module")
def admin(group_broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": group_broker.bootstrap})


@pytest.fixture
def read_topic(group_broker: BrokerProcess, topic: str) -> str:
    """Ten records in each of two partitions."""
    create_topic(group_broker.bootstrap, topic, 2)
    messages = [Message(b"%d" % n, partition=n % 2) for n in range(20)]
    Confluent().produce(group_broker.bootstrap, topic, messages)
    return topic


@pytest.fixture(params=TYPES)
def live(
    group_broker: BrokerProcess, read_topic: str, request: pytest.FixtureRequest
) -> Iterator[tuple[str, str]]:
    """Kind and name of a group with one member, which has read every record."""
    watch, group = GroupWatch(), f"{read_topic}-live"
    with KINDS[request.param].join("reader", watch, group_broker.bootstrap, group, [read_topic]):
        watch.wait("20 commits", lambda: sum(watch.committed.values()) == 20)
        yield request.param, group


@pytest.fixture(params=TYPES)
def idle(group_broker: BrokerProcess, read_topic: str, request: pytest.FixtureRequest) -> str:
    """Name of a group whose members have read every record and left."""
    watch, group = GroupWatch(), f"{read_topic}-idle"
    with KINDS[request.param].join("reader", watch, group_broker.bootstrap, group, [read_topic]):
        watch.wait("20 commits", lambda: sum(watch.committed.values()) == 20)
    return group


def tidemill(broker: BrokerProcess, *args: str) -> subprocess.CompletedProcess[str]:
    return run_tidemill(broker.bootstrap, "group", *args)


def facts(broker: BrokerProcess, *args: str) -> Any:
    ran = tidemill(broker, *args, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def offsets(broker: BrokerProcess, group: str) -> dict[int, int]:
    described = facts(broker, "describe", group)
    return {p["partition"]: p["committed_offset"] for p in described["partitions"]}


# --- librdkafka and kafka-python -----------------------------------------------------------------


def test_T44_groups_of_both_protocols_are_listed_and_described(admin, read_topic, live):
    kind, group = live

    listed = admin.list_consumer_groups(request_timeout=DEADLINE_S).result().valid
    described = admin.describe_consumer_groups([group], request_timeout=DEADLINE_S)[group].result()

    (entry,) = [one for one in listed if one.group_id == group]
    assert (entry.state, entry.type) == (ConsumerGroupState.STABLE, TYPES[kind])
    assert (described.state, described.type) == (ConsumerGroupState.STABLE, TYPES[kind])
    (member,) = described.members
    assert member.client_id == "reader"
    assigned = sorted((p.topic, p.partition) for p in member.assignment.topic_partitions)
    assert assigned == [(read_topic, 0), (read_topic, 1)]


def test_T44_a_group_that_does_not_exist_is_described_without_harm(admin):
    described = admin.describe_consumer_groups(["absent"], request_timeout=DEADLINE_S)

    assert described["absent"].result().state is ConsumerGroupState.DEAD


def test_T45_offsets_are_read_moved_and_deleted_with_the_group(admin, read_topic, idle):
    places = [ConfluentPartition(read_topic, 0, 3), ConfluentPartition(read_topic, 1, 4)]

    moved = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(idle, places)])
    moved[idle].result(DEADLINE_S)
    asked = [ConsumerGroupTopicPartitions(idle)]
    found = admin.list_consumer_group_offsets(asked)[idle].result(DEADLINE_S)
    admin.delete_consumer_groups([idle])[idle].result(DEADLINE_S)

    assert sorted((p.partition, p.offset) for p in found.topic_partitions) == [(0, 3), (1, 4)]
    left = admin.list_consumer_groups(request_timeout=DEADLINE_S).result().valid
    assert idle not in {one.group_id for one in left}


def test_kafka_pythons_admin_sees_moves_and_deletes_groups(group_broker, read_topic, idle):
    admin = kafka.KafkaAdminClient(bootstrap_servers=group_broker.bootstrap)
    place = kafka.TopicPartition(read_topic, 0)
    try:
        assert idle in {group["group_id"] for group in admin.list_groups()}
        admin.alter_group_offsets(idle, {place: kafka.OffsetAndMetadata(3, "", -1)})
        found = admin.list_group_offsets(idle)[idle]
        admin.delete_group_offsets(idle, [place])
        left = admin.list_group_offsets(idle)[idle]
        admin.delete_groups([idle])
        assert idle not in {group["group_id"] for group in admin.list_groups()}
    finally:
        admin.close()

    assert found[place].offset == 3
    assert set(left) == {kafka.TopicPartition(read_topic, 1)}


# --- our own command -----------------------------------------------------------------------------


def test_describe_shows_members_assignment_and_lag(group_broker, read_topic, live):
    kind, group = live

    described = facts(group_broker, "describe", group)
    listed = facts(group_broker, "list", "--state", "Stable")

    assert (described["type"], described["state"]) == (kind.removeprefix("librdkafka-"), "Stable")
    (member,) = described["members"]
    assert member["assignment"] == [{"topic": read_topic, "partitions": [0, 1]}]
    assert [(p["committed_offset"], p["high_watermark"]) for p in described["partitions"]] == [
        (10, 10)
    ] * 2
    assert described["lag"] == 0
    assert group in {one["group"] for one in listed}


def test_reset_is_refused_while_the_group_is_active(group_broker, live):
    _, group = live

    ran = tidemill(group_broker, "reset", group, "--all-topics", "--to-earliest")

    assert ran.returncode == 1
    assert ran.stderr.startswith(f"error: NON_EMPTY_GROUP: {group} is Stable with 1 members; stop")
    assert tidemill(group_broker, "delete", group).returncode == 1


def test_reset_moves_a_group_and_its_members_continue_there(
    group_broker, read_topic, idle, tmp_path
):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(facts(group_broker, "describe", idle)))

    planned = facts(group_broker, "reset", idle, "--all-topics", "--to-offset", "8", "--dry-run")
    assert [move["after"] for move in planned["moves"]] == [8, 8]
    assert offsets(group_broker, idle) == {0: 10, 1: 10}
    facts(group_broker, "reset", idle, "--all-topics", "--shift-by", "-4")
    facts(group_broker, "reset", idle, "--topic", f"{read_topic}:1", "--to-time", "-1d")
    assert offsets(group_broker, idle) == {0: 6, 1: 0}

    watch = GroupWatch()
    watch.offsets[read_topic, 0] = [5]
    with KINDS["librdkafka-classic"].join(
        "reader", watch, group_broker.bootstrap, idle, [read_topic]
    ):
        watch.wait("4 and 10 records", lambda: len(watch.values) == 14)
    facts(group_broker, "reset", idle, "--topic", read_topic, "--to-earliest")
    facts(group_broker, "reset", idle, "--from-file", str(saved))
    assert offsets(group_broker, idle) == {0: 10, 1: 10}
    assert tidemill(group_broker, "delete", idle).stdout == f"deleted {idle}\n"
    assert tidemill(group_broker, "describe", idle).returncode == 1


def test_T42_evict_removes_a_static_member_that_is_gone(group_broker, read_topic):
    watch, group = GroupWatch(), f"{read_topic}-static"
    kind = KINDS["librdkafka-classic"]
    where = (group_broker.bootstrap, group, [read_topic])
    with kind.join("gone", watch, *where, group_instance_id="left"):
        watch.wait_shares(gone=2)
    assert len(facts(group_broker, "describe", group)["members"]) == 1

    evicted = tidemill(group_broker, "evict", group, "--instance", "left")

    assert evicted.stdout == "evicted left\n"
    assert facts(group_broker, "describe", group)["state"] == "Empty"


def test_watch_shows_the_lag_as_it_grows_until_ctrl_c(group_broker, read_topic, idle):
    command = [
        *(*TIDEMILL, "group", "describe", idle, "--watch"),
        *("--json", "--bootstrap", group_broker.bootstrap),
    ]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["lag"] == 0
        Confluent().produce(group_broker.bootstrap, read_topic, [Message(b"x", partition=0)] * 5)
        while json.loads(watching.stdout.readline())["lag"] != 5:
            pass
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=DEADLINE_S)
    finally:
        watching.kill()
    assert (watching.returncode, err) == (130, "")
