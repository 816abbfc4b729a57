"""A rolling change of a group's protocol with stock clients: nothing is lost, nothing shared."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from tests.e2e.group_members import KINDS, Kind, Member
from tests.e2e.group_watch import GroupWatch
from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.topics import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 4
CLASSIC, CONSUMER = KINDS["librdkafka-classic"], KINDS["librdkafka-consumer"]


def group_type(bootstrap: str, group: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups(request_timeout=DEADLINE_S).result().valid
    return next(one.type for one in listed if one.group_id == group)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_consumers_change_to_the_new_protocol_and_back(group_broker, topic, strategy):
    bootstrap, group = group_broker.bootstrap, f"{topic}-g"
    create_topic(bootstrap, topic, PARTITIONS)
    watch = GroupWatch()
    values: list[bytes] = []
    members: dict[str, Member] = {}

    def join(kind: Kind, name: str) -> None:
        options = {"partition_assignment_strategy": strategy} if kind is CLASSIC else {}
        members[name] = kind.join(name, watch, bootstrap, group, [topic], **options)

    def send(what: str) -> None:
        sent = [b"%s %d" % (what.encode(), n) for n in range(40)]
        messages = [Message(value, partition=n % PARTITIONS) for n, value in enumerate(sent)]
        Confluent().produce(bootstrap, topic, messages)
        values.extend(sent)

    def replace(old: str, kind: Kind, new: str, other: str) -> None:
        """One consumer restarts with the other protocol while records keep coming."""
        send(f"before {new}")
        members.pop(old).close()
        send(f"without {old}")
        join(kind, new)
        watch.wait_shares(**{other: 2, new: 2})
        send(f"with {new}")
        watch.wait_values(values)

    try:
        join(CLASSIC, "a")
        join(CLASSIC, "b")
        watch.wait_shares(a=2, b=2)
        replace("a", CONSUMER, "c", other="b")
        assert group_type(bootstrap, group) is ConsumerGroupType.CONSUMER
        replace("b", CONSUMER, "d", other="c")
        replace("c", CLASSIC, "e", other="d")
        assert group_type(bootstrap, group) is ConsumerGroupType.CONSUMER
        replace("d", CLASSIC, "f", other="e")
        assert group_type(bootstrap, group) is ConsumerGroupType.CLASSIC
    finally:
        for member in members.values():
            member.close()

    assert watch.wrong == []
    assert set(watch.values) == set(values)
    assert {log: sorted(set(read)) for log, read in watch.offsets.items()} == {
        (topic, number): list(range(len(values) // PARTITIONS)) for number in range(PARTITIONS)
    }


@pytest.mark.parametrize("name", sorted(set(KINDS) - {CONSUMER.name}))
def test_every_classic_client_shares_a_group_with_a_new_one(group_broker, topic, name):
    create_topic(group_broker.bootstrap, topic, PARTITIONS)
    watch = GroupWatch()
    joined = watch, group_broker.bootstrap, f"{topic}-g", [topic]
    with KINDS[name].join("old", *joined):
        watch.wait_shares(old=4)
        with CONSUMER.join("new", *joined):
            watch.wait_shares(old=2, new=2)
        watch.wait_shares(old=4)
    assert watch.wrong == []
