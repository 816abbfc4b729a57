"""Members of consumer groups share the partitions as members join and leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.e2e.group_members import KINDS, Kind, Member
from tests.e2e.group_watch import GroupWatch
from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

BOTH_PROTOCOLS = ["librdkafka-classic", "librdkafka-consumer"]


class Group:
    """One group of one kind of members on some topics."""

    def __init__(self, broker: BrokerProcess, name: str, topics: list[str]) -> None:
        self.watch = GroupWatch()
        self.name = name
        self.topics = topics
        self._bootstrap = broker.bootstrap
        self._members: list[Member] = []

    def join(self, kind: Kind, name: str, **options: Any) -> Member:
        member = kind.join(name, self.watch, self._bootstrap, self.name, self.topics, **options)
        self._members.append(member)
        return member

    def close(self) -> None:
        for member in self._members:
            member.stop()
        for member in self._members:
            member.close()


@pytest.fixture
def group(group_broker: BrokerProcess, topic: str) -> Iterator[Group]:
    """A group named like its topic, which the test creates."""
    made = Group(group_broker, f"{topic}-readers", [topic])
    yield made
    made.close()
    assert made.watch.wrong == []


@pytest.fixture(params=KINDS.values(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(params=BOTH_PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def produce(bootstrap: str, topic: str, partitions: int, count: int, label: str) -> list[bytes]:
    values = [b"%s %s %d" % (topic.encode(), label.encode(), n) for n in range(count)]
    messages = [Message(value, partition=n % partitions) for n, value in enumerate(values)]
    Confluent().produce(bootstrap, topic, messages)
    return values


def test_F09_F57_members_share_partitions_as_they_come_and_go(group_broker, topic, group, kind):
    create_topic(group_broker.bootstrap, topic, 6)
    values = produce(group_broker.bootstrap, topic, 6, 60, "early")
    first = group.join(kind, "a")
    group.watch.wait_shares(a=6)
    group.join(kind, "b")
    group.watch.wait_shares(a=3, b=3)
    group.join(kind, "c")
    group.watch.wait_shares(a=2, b=2, c=2)
    values += produce(group_broker.bootstrap, topic, 6, 60, "together")
    group.watch.wait_values(values)
    first.close()
    group.watch.wait_shares(b=3, c=3)
    values += produce(group_broker.bootstrap, topic, 6, 60, "late")

    group.watch.wait_values(values)

    assert {log: sorted(set(read)) for log, read in group.watch.offsets.items()} == {
        (topic, partition): list(range(30)) for partition in range(6)
    }
    assert set(group.watch.processed_by) == {"a", "b", "c"}


def test_F05_F08_every_group_gets_every_record_of_all_its_topics(group_broker, topic, protocol):
    topics = [f"{topic}-{n}" for n in range(2)]
    values: list[bytes] = []
    for name in topics:
        create_topic(group_broker.bootstrap, name, 2)
        values += produce(group_broker.bootstrap, name, 2, 20, "x")
    groups = [Group(group_broker, f"{topic}-group-{n}", topics) for n in range(2)]
    try:
        for group in groups:
            for name in ("a", "b"):
                group.join(protocol, name)
        for group in groups:
            group.watch.wait_shares(a=2, b=2)
            group.watch.wait_values(values)
    finally:
        for group in groups:
            group.close()
    for group in groups:
        assert group.watch.wrong == []
        assert sorted(group.watch.values) == sorted(values)


@pytest.mark.parametrize(("strategy", "shares"), [("range", [2, 4]), ("roundrobin", [3, 3])])
def test_F58_F56_the_assignment_follows_the_chosen_strategy(group_broker, topic, strategy, shares):
    topics = [f"{topic}-{n}" for n in range(2)]
    for name in topics:
        create_topic(group_broker.bootstrap, name, 3)
    group = Group(group_broker, f"{topic}-readers", topics)
    try:
        for name in ("a", "b"):
            group.join(KINDS["librdkafka-classic"], name, partition_assignment_strategy=strategy)
        group.watch.wait(f"{shares}", lambda: sorted(group.watch.shares().values()) == shares)
    finally:
        group.close()


def test_F57_partitions_that_are_added_are_read(group_broker, topic, group, kind):
    create_topic(group_broker.bootstrap, topic, 2)
    for name in ("a", "b"):
        group.join(kind, name)
    group.watch.wait_shares(a=1, b=1)

    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(DEADLINE_S)

    group.watch.wait_shares(a=2, b=2)
    group.watch.wait_values(produce(group_broker.bootstrap, topic, 4, 20, "new"))


def test_T42_a_static_member_restarts_without_moving_anything(group_broker, topic, group, protocol):
    create_topic(group_broker.bootstrap, topic, 4)
    first = group.join(protocol, "a", group_instance_id="a")
    group.join(protocol, "b", group_instance_id="b")
    group.watch.wait_shares(a=2, b=2)
    before, changes_of_b = dict(group.watch.owner), group.watch.assignments["b"]

    first.close()
    group.join(protocol, "a", group_instance_id="a")

    group.watch.wait_shares(a=2, b=2)
    values = produce(group_broker.bootstrap, topic, 4, 20, "after")
    group.watch.wait_values(values)
    assert group.watch.owner == before
    assert group.watch.assignments["b"] == changes_of_b


def test_F129_twenty_members_share_sixty_partitions(group_broker, topic, group, protocol):
    create_topic(group_broker.bootstrap, topic, 60)
    values = produce(group_broker.bootstrap, topic, 60, 600, "x")
    names = [f"m{n:02}" for n in range(20)]

    for name in names:
        group.join(protocol, name)

    group.watch.wait_shares(**dict.fromkeys(names, 3))
    group.watch.wait_values(values)
