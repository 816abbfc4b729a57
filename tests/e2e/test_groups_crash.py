"""Members and brokers are killed: the group continues, and its commits are kept."""

from __future__ import annotations

from random import Random
from typing import Any

import confluent_kafka
import pytest

from tests.e2e.group_members import KINDS, Member
from tests.e2e.group_watch import DEADLINE_S, GroupWatch, Log
from tests.e2e.load import Load
from tests.e2e.member_process import MemberProcess
from tests.support.clients import Confluent, Message
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

SEED = 20261116
KILLS = 3
PARTITIONS = 4
SHORT_SESSION: dict[str, dict[str, Any]] = {
    "librdkafka-classic": {"session_timeout_ms": 2000, "heartbeat_interval_ms": 100},
    "librdkafka-consumer": {"group_protocol": "consumer"},  # the broker's setting is short
}


@pytest.mark.parametrize("protocol", SHORT_SESSION)
def test_F55_F57_a_killed_members_partitions_go_to_the_others(group_broker, topic, protocol):
    # Given two members that share a topic, and both read
    create_topic(group_broker.bootstrap, topic, PARTITIONS)
    watch, group, options = GroupWatch(), f"{topic}-readers", SHORT_SESSION[protocol]
    where = (group_broker.bootstrap, group)
    with KINDS[protocol].join("stays", watch, *where, [topic], **options):
        watch.wait_shares(stays=PARTITIONS)
        killed = MemberProcess("killed", watch, *where, topic, **options)
        try:
            watch.wait_shares(stays=PARTITIONS // 2)
            values = _produce(group_broker.bootstrap, topic, "before")
            watch.wait_values(values)
        finally:
            # When one is killed
            killed.kill()
        # Then the other gets all partitions, once the session has expired
        watch.wait_shares(stays=PARTITIONS)
        values = _produce(group_broker.bootstrap, topic, "after")
        watch.wait_values(values)

    assert watch.wrong == []
    assert watch.processed_by["killed"] > 0


def _produce(bootstrap: str, topic: str, label: str) -> list[bytes]:
    values = [b"%s-%d" % (label.encode(), n) for n in range(40)]
    messages = [Message(value, partition=n % PARTITIONS) for n, value in enumerate(values)]
    Confluent().produce(bootstrap, topic, messages)
    return values


class KilledBroker:
    """Two groups, one of each protocol, read what is produced while their broker is killed."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.watches = {name: GroupWatch() for name in SHORT_SESSION}
        self.logs: list[Log] = [("load", partition) for partition in range(PARTITIONS)]
        create_topic(broker.bootstrap, "load", PARTITIONS)
        self.members: list[Member] = [
            KINDS[protocol].join(f"m{n}", watch, broker.bootstrap, protocol, ["load"])
            for protocol, watch in self.watches.items()
            for n in range(2)
        ]
        for watch in self.watches.values():
            watch.wait_shares(m0=2, m1=2)

    def wait_commits(self, more: int) -> None:
        """Wait until each group has committed `more` further records."""
        for name, watch in self.watches.items():
            target = sum(watch.committed.values()) + more
            watch.wait(
                f"{name}: {target}", lambda w=watch, t=target: sum(w.committed.values()) >= t
            )

    def kill(self) -> None:
        """Kill the broker and start it again: every acknowledged commit is still there."""
        answered = {name: dict(watch.committed) for name, watch in self.watches.items()}
        self.broker.kill()
        self.broker.start()
        for name, offsets in answered.items():
            found = self._committed(name)
            assert {log: at for log, at in offsets.items() if found.get(log, -1) < at} == {}

    def _committed(self, group: str) -> dict[Log, int]:
        consumer = Confluent().consumer(self.broker.bootstrap, group_id=group)
        try:
            asked = [confluent_kafka.TopicPartition(*log) for log in self.logs]
            found = consumer.committed(asked, DEADLINE_S)
            return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}
        finally:
            consumer.close()

    def close(self) -> None:
        for member in self.members:
            member.stop()
        for member in self.members:
            member.close()


def test_F95_F57_groups_continue_and_commits_are_kept_when_the_broker_is_killed(
    new_broker,
):
    rng = Random(SEED)
    world = KilledBroker(
        new_broker("group.initial.rebalance.delay.ms=0", "group.consumer.heartbeat.interval.ms=100")
    )
    try:
        load = Load(world.broker.bootstrap, world.logs, seed=SEED).start()
        for _ in range(KILLS):
            world.wait_commits(rng.randint(50, 500))
            world.kill()
        world.wait_commits(200)
        load.finish()
        assert load.failures == []
        for watch in world.watches.values():
            watch.wait_values(one.value for one in load.acknowledged)
    finally:
        world.close()
    for watch in world.watches.values():
        assert watch.wrong == []
