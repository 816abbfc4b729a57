"""Each key on the list of dynamic broker keys changes what the broker does, without a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.upkeep import CUT, Upkeep
from tests.unit.server.config_requests import BROKER, SET, alter
from tests.unit.server.handlers.topics.coordinator_effects import COORDINATOR_EFFECTS
from tests.unit.server.handlers.topics.dynamic_effects import Effects
from tests.unit.server.one_broker import NODE_ID, NOW_MS
from tidemill.core.byte_rate import ByteRate
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import options_of
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.rules.cluster_upkeep import ClusterUpkeep
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.server.connection.listener_resources import ClientDeadlines, ListenerResources
from tidemill.server.request.dispatch import Dispatcher
from tidemill.testing.sim.loop import SimLoop
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic

EFFECTS = Effects()
changes = EFFECTS.of


def dynamic_keys():
    return [option.key for option in options_of(BrokerConfig).values() if option.dynamic]


def all_effects():
    return {**EFFECTS, **COORDINATOR_EFFECTS}


@pytest.mark.parametrize("key", dynamic_keys())
def test_T56_a_dynamic_key_takes_effect_while_the_broker_runs(broker, key):
    def change(value):
        answer = alter(broker, (key, SET, str(value)), kind=BROKER, name="")
        assert answer.error_code == ErrorCode.NONE, answer.error_message

    all_effects()[key](broker, change)


def test_no_other_key_is_tested_as_dynamic():
    assert set(all_effects()) == set(dynamic_keys())


# --- topics ------------------------------------------------------------------------------------


def made(broker, name, partitions=-1):
    (result,) = broker.run(
        broker.cluster.create_topics([TopicSpec(name=name, partitions=partitions)])
    )
    return result


@changes("num.partitions")
def _(broker, change):
    change(7)
    assert len(made(broker, "t").topic.partitions) == 7


@changes("default.replication.factor")
def _(broker, change):
    change(2)
    assert made(broker, "t").code is ErrorCode.INVALID_REPLICATION_FACTOR


@changes("partitions.per.broker.max")
def _(broker, change):
    change(2)
    assert made(broker, "t", 2).code is ErrorCode.NONE
    assert made(broker, "u", 1).code is ErrorCode.POLICY_VIOLATION


@changes("auto.create.topics.enable")
def _(broker, change):
    change("false")
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True
    )
    (topic,) = broker.call(request, 9).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.image.topic("t") is None


# --- replicas ----------------------------------------------------------------------------------


@changes("tidemill.broker.draining")
def _(broker, change):
    change("true")
    assert made(broker, "t").code is ErrorCode.INVALID_REPLICATION_FACTOR


def unbalanced(*, alive=(0, 1), joined=False):
    """Broker 0 leads a partition that 1 should lead, and holds all of another topic."""
    one = PartitionImage(leader=0, leader_epoch=1, replicas=(1, 0), isr=(0, 1))
    sole = PartitionImage(leader=0, leader_epoch=1, replicas=(0,), isr=(0,))
    topic = TopicImage(
        name="t",
        topic_id=TopicId(UUID(int=1)),
        partitions=(one, sole, sole, sole),
        config=TopicConfig(),
    )
    brokers = {i: BrokerImage(broker_id=i, epoch=1, host="h", port=1) for i in (0, 1, 2)}
    return MetadataImage(
        brokers={i: brokers[i] for i in alive},
        members={i: MemberImage(broker_id=i, epoch=1) for i in alive}
        | {1: replace(_MEMBER, awaits_share=joined)},
        topics={"t": topic},
    )


_MEMBER = MemberImage(broker_id=1, epoch=1)


def planned(broker, image, *, after_s):
    """What the controller does by itself after some time in office."""
    upkeep, config = ClusterUpkeep(), broker.cluster.live.current
    upkeep.took_office(image, config, 0.0)
    return finished(upkeep.plan(image, config, after_s))


@changes("auto.leader.rebalance.enable")
def _(broker, change):
    assert planned(broker, unbalanced(), after_s=60).elections == [TopicPartition("t", 0)]
    change("false")
    assert planned(broker, unbalanced(), after_s=60).elections == []


@changes("leader.imbalance.check.interval.seconds")
def _(broker, change):
    assert not planned(broker, unbalanced(), after_s=7).elections
    change(7)
    assert planned(broker, unbalanced(), after_s=7).elections


@changes("auto.rebalance")
def _(broker, change):
    assert not planned(broker, unbalanced(), after_s=60).moves
    assert planned(broker, unbalanced(joined=True), after_s=0).moves
    change("always")
    assert planned(broker, unbalanced(), after_s=60).moves
    change("off")
    assert not planned(broker, unbalanced(joined=True), after_s=60).moves


@changes("replica.lag.time.max.ms")
def _(broker, change):
    assert broker.replicas.broker_epochs.lag_s_max == 10.0
    change(25_000)
    assert broker.replicas.broker_epochs.lag_s_max == 25.0


@changes("replica.remake.delay.ms")
def _(broker, change):
    image = unbalanced(alive=(0, 2))
    assert not planned(broker, image, after_s=7).moves
    change(7_000)
    assert planned(broker, image, after_s=7).moves == {TopicPartition("t", 0): (2, 0)}


# --- defaults of topics ------------------------------------------------------------------------


def check_default(key, value, of_partition):
    """A default of topics reaches the partitions of topics that do not set their own."""

    @changes(key)
    def _(broker, change):
        broker.make_topic("t")
        before = of_partition(broker.partition("t"))
        change(value)
        assert of_partition(broker.partition("t")) != before
        assert str(of_partition(broker.partition("t"))) == str(value)


check_default("log.retention.ms", 5, lambda one: one.log.config.retention_ms)
check_default("log.retention.bytes", 5, lambda one: one.log.config.retention_bytes)
check_default("log.segment.bytes", 2048, lambda one: one.log.config.segment_bytes)
check_default("log.roll.ms", 5, lambda one: one.log.config.segment_ms)
check_default("log.flush.interval.ms", 5, lambda one: one.log.config.flush_ms)
check_default("log.flush.interval.messages", 5, lambda one: one.log.config.flush_messages)
check_default("message.max.bytes", 2048, lambda one: one.settings.policy.max_message_bytes)
check_default(
    "tidemill.flush", "os", lambda one: "group" if one.settings.flush_before_ack else "os"
)


def test_the_value_that_a_topic_sets_wins_over_a_dynamic_default(broker):
    broker.make_topic("t", overrides={"retention.ms": "60000"})
    alter(broker, ("log.retention.ms", SET, "5"), kind=BROKER, name="")
    assert broker.partition("t").log.config.retention_ms == 60_000


def test_a_topic_that_is_created_later_has_the_dynamic_default(broker):
    alter(broker, ("log.retention.ms", SET, "5"), kind=BROKER, name="")
    broker.make_topic("t")
    assert broker.partition("t").log.config.retention_ms == 5


# --- connections and fetches -------------------------------------------------------------------


def admitted(broker, addresses):
    """Whether each of these addresses, in turn, gets a connection."""
    admission = broker.resources.admission
    return [admission.admit(object(), address) for address in addresses]


def listen(broker):
    broker.resources = ListenerResources(
        broker.services,
        Dispatcher(()),
        broker.services.supervisor,
        connections_max=1_000_000,
        deadlines=ClientDeadlines(),
        failed=lambda part, error: None,
    )


@changes("max.connections")
def _(broker, change):
    listen(broker)
    change(2)
    assert admitted(broker, "abc") == [True, True, False]
    change(3)
    assert admitted(broker, "cd") == [True, False]


@changes("max.connections.per.ip")
def _(broker, change):
    listen(broker)
    change(2)
    assert admitted(broker, "aaab") == [True, True, False, True]


@changes("max.connection.creation.rate.per.ip")
def _(broker, change):
    listen(broker)
    change(2)
    assert admitted(broker, "aaab") == [True, True, False, True]
    change(1)
    assert admitted(broker, "aa") == [True, False]


@changes("replica.selector.class")
def _(broker, change):
    broker.join_broker(2, rack="near")
    topic = broker.make_topic("t", -1, assignments={0: [NODE_ID, 2]})
    broker.partition("t").follower_fetched(2, fetch_offset=0, flushed_offset=0, now=0.0)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        rack_id="near",
        topics=[FetchTopic(topic="t", topic_id=topic.topic_id, partitions=[wanted])],
    )

    def sent_to():
        return broker.call(request, 12).responses[0].partitions[0].preferred_read_replica

    assert sent_to() == -1
    change("rack")
    assert sent_to() == 2


@changes("fetch.max.bytes")
def _(broker, change):
    topic = broker.make_topic("t")
    for _ in range(50):
        broker.append("t", NOW_MS)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_bytes=1 << 20,
        min_bytes=1,
        topics=[FetchTopic(topic="t", topic_id=topic.topic_id, partitions=[wanted])],
    )

    def fetched_bytes():
        return len(broker.call(request, 12).responses[0].partitions[0].records)

    assert fetched_bytes() > 2048
    change(1024)
    assert fetched_bytes() <= 1024


# --- background work ---------------------------------------------------------------------------


@changes("log.cleaner.backoff.ms")
def _(broker, _change):
    async def work():
        upkeep = Upkeep(broker.cluster.live)
        running = asyncio.create_task(upkeep.cleaner.run())
        await asyncio.sleep(1)
        assert upkeep.telemetry.cleanings == 1
        upkeep.dirty(50)
        await asyncio.sleep(1)
        assert upkeep.telemetry.cleanings == 1
        upkeep.set("log.cleaner.backoff.ms", 10)
        await asyncio.sleep(1)
        assert upkeep.telemetry.cleanings == 2
        running.cancel()

    SimLoop().run(work())


@changes("log.cleaner.io.max.bytes.per.second")
def _(broker, _change):
    async def work():
        upkeep = Upkeep(broker.cluster.live)
        assert (await upkeep.clean())[1] < 1
        upkeep.dirty(50)
        upkeep.set("log.cleaner.io.max.bytes.per.second", 1024)
        assert (await upkeep.clean())[1] > 1

    SimLoop().run(work())


@changes("log.cleaner.dedupe.buffer.size")
def _(broker, _change):
    async def work():
        upkeep = Upkeep(broker.cluster.live, key_count=2_100)
        assert (await upkeep.clean())[0] == 1
        upkeep.dirty(2_100)
        upkeep.dirty(2_100)
        upkeep.set("log.cleaner.dedupe.buffer.size", 64 * 1024)
        assert (await upkeep.clean())[0] > 1

    SimLoop().run(work())


@changes("log.retention.check.interval.ms")
def _(broker, _change):
    async def work():
        upkeep = Upkeep(broker.cluster.live)
        running = asyncio.create_task(upkeep.housekeeping.run_retention())
        await asyncio.sleep(10)
        assert upkeep.disk.exists(CUT)
        upkeep.set("log.retention.check.interval.ms", 10_001)
        await asyncio.sleep(1)
        assert not upkeep.disk.exists(CUT)
        running.cancel()

    SimLoop().run(work())


@changes("tidemill.disk.reserve.bytes")
def _(broker, _change):
    async def work():
        upkeep = Upkeep(broker.cluster.live)
        running = asyncio.create_task(upkeep.room_watch.run())
        await asyncio.sleep(2)
        assert not upkeep.room.is_refusing
        upkeep.set("tidemill.disk.reserve.bytes", 1 << 60)
        upkeep.disk.set_capacity(upkeep.used_bytes() * 100 // 91)
        await asyncio.sleep(2)
        assert upkeep.room.is_refusing
        upkeep.set("tidemill.disk.reserve.bytes", 0)
        await asyncio.sleep(2)
        assert not upkeep.room.is_refusing
        running.cancel()

    SimLoop().run(work())


# --- replication -------------------------------------------------------------------------------


@changes("leader.replication.throttled.rate")
def _(broker, change):
    rate = broker.services.catch_up_rate
    assert rate.take(2_048, now=0.0) == 0
    change(2_048)
    assert rate.take(2_048, now=0.0) == 1.0


@changes("follower.replication.throttled.rate")
def _(broker, change):
    # As the data plane makes it: the configuration is read again for every answer.
    rate = ByteRate(lambda: broker.cluster.live.current.follower_replication_throttled_rate)
    assert rate.take(2_048, now=0.0) == 0
    change(2_048)
    assert rate.take(2_048, now=0.0) == 1.0
