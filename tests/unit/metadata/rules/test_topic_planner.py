from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.metadata.planner_at_once import PlannerAtOnce
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import AlterOp, TopicConfig
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.placement import Load
from tidemill.metadata.rules.topic_planner import (
    ConfigChange,
    PartitionsSpec,
    TopicSpec,
)

TOPIC_ID = TopicId(UUID(int=1))


def image(*names: str, live: int = 3) -> MetadataImage:
    draft = ImageDraft(MetadataImage())
    for number in range(live):
        draft.put_broker(BrokerImage(broker_id=number, epoch=1, host="h", port=1))
    for number, name in enumerate(names, start=100):
        draft.put_topic(
            TopicImage(
                name=name,
                topic_id=TopicId(UUID(int=number)),
                partitions=(new_partition((0, 1)), new_partition((1, 2))),
                overrides={"retention.ms": "5"},
                config=TopicConfig(retention_ms=5),
            )
        )
    return draft.finish().after


def planner(*names: str, live: int = 3, flags: tuple[str, ...] = ()) -> PlannerAtOnce:
    load = {number: Load() for number in range(live)}
    config = broker_config(flags=flags)
    return PlannerAtOnce(image(*names, live=live), load, config, TopicConfig())


def code_of(spec: TopicSpec, *names: str, flags: tuple[str, ...] = ()) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        planner(*names, flags=flags).plan_topic(spec, TOPIC_ID)
    return refused.value.code


def test_T21_minus_one_takes_the_brokers_defaults():
    plan = planner(flags=("num.partitions=5", "default.replication.factor=2"))
    topic = plan.plan_topic(TopicSpec(name="t"), TOPIC_ID)
    assert len(topic.partitions) == 5
    assert topic.replication_factor == 2
    assert topic.topic_id == TOPIC_ID


def test_a_topic_gets_the_requested_partitions_and_keys():
    spec = TopicSpec(name="t", partitions=6, replication_factor=3, overrides={"retention.ms": "9"})
    topic = planner().plan_topic(spec, TOPIC_ID)
    assert len(topic.partitions) == 6
    assert all(sorted(one.replicas) == [0, 1, 2] for one in topic.partitions)
    assert {one.leader for one in topic.partitions} == {0, 1, 2}
    assert topic.config.retention_ms == 9


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\x00", "x" * 250, "a\n"])
def test_T16_S8_illegal_names_are_refused(name):
    assert code_of(TopicSpec(name=name)) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_that_exists_is_not_made_again():
    assert code_of(TopicSpec(name="t"), "t") is ErrorCode.TOPIC_ALREADY_EXISTS


def test_T16_names_that_differ_in_dots_and_underscores_only_collide():
    assert code_of(TopicSpec(name="a.b"), "a_b") is ErrorCode.INVALID_TOPIC_EXCEPTION
    plan = planner()
    plan.plan_topic(TopicSpec(name="c_d"), TOPIC_ID)
    with pytest.raises(KafkaError) as refused:
        plan.plan_topic(TopicSpec(name="c.d"), TOPIC_ID)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (TopicSpec(name="t", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec(name="t", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec(name="t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec(name="t", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec(name="t", overrides={"nonsense": "1"}), ErrorCode.INVALID_CONFIG),
        (TopicSpec(name="t", partitions=1, assignments={0: [0]}), ErrorCode.INVALID_REQUEST),
        (TopicSpec(name="t", assignments={1: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec(name="t", assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec(name="t", assignments={0: [0, 0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec(name="t", assignments={0: [7]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            TopicSpec(name="t", assignments={0: [0, 1], 1: [0]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_an_impossible_topic_is_refused(spec, code):
    assert code_of(spec) is code


def test_a_client_may_choose_the_replicas():
    spec = TopicSpec(name="t", assignments={1: [0, 2], 0: [2, 1]})
    topic = planner().plan_topic(spec, TOPIC_ID)
    assert [one.replicas for one in topic.partitions] == [(2, 1), (0, 2)]


def test_S39_one_request_cannot_ask_for_100000_partitions():
    assert code_of(TopicSpec(name="t", partitions=100_000)) is ErrorCode.POLICY_VIOLATION
    plan = planner()
    plan.plan_topic(TopicSpec(name="a", partitions=9_000), TOPIC_ID)
    with pytest.raises(KafkaError) as refused:
        plan.plan_topic(TopicSpec(name="b", partitions=1_001), TOPIC_ID)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_S39_a_broker_holds_no_more_partitions_than_allowed():
    plan = planner(live=1, flags=("partitions.per.broker.max=5",))
    with pytest.raises(KafkaError) as refused:
        plan.plan_topic(TopicSpec(name="a", partitions=6), TOPIC_ID)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    # A refused topic uses no capacity.
    plan.plan_topic(TopicSpec(name="b", partitions=5), TOPIC_ID)


# --- more partitions ---


def test_partitions_are_added_after_the_existing_ones():
    topic = planner("t").plan_partitions(PartitionsSpec(name="t", count=4))
    assert topic.partitions[:2] == (new_partition((0, 1)), new_partition((1, 2)))
    assert [len(one.replicas) for one in topic.partitions] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (PartitionsSpec(name="t", count=2), ErrorCode.INVALID_PARTITIONS),
        (PartitionsSpec(name="t", count=1), ErrorCode.INVALID_PARTITIONS),
        (PartitionsSpec(name="t", count=100_001), ErrorCode.POLICY_VIOLATION),
        (PartitionsSpec(name="t", count=-1), ErrorCode.INVALID_PARTITIONS),
        (PartitionsSpec(name="u", count=9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionsSpec(name="t", count=2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (
            PartitionsSpec(name="t", count=4, assignments=[[0, 1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            PartitionsSpec(name="t", count=3, assignments=[[0]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_an_impossible_partition_count_is_refused(spec, code):
    with pytest.raises(KafkaError) as refused:
        planner("t").plan_partitions(spec)
    assert refused.value.code is code


def test_replicas_of_new_partitions_may_be_chosen():
    spec = PartitionsSpec(name="t", count=3, assignments=[[2, 0]])
    assert planner("t").plan_partitions(spec).partitions[2].replicas == (2, 0)


# --- other keys ---


def test_T57_keys_change_one_by_one_or_all_at_once():
    one = ConfigChange(name="t", changes=[("segment.ms", AlterOp.SET, "7")])
    assert planner("t").plan_config(one).overrides == {"retention.ms": "5", "segment.ms": "7"}
    changed = planner("t").plan_config(replace(one, replace_all=True))
    assert changed.overrides == {"segment.ms": "7"}
    assert changed.config == TopicConfig(segment_ms=7)


def test_a_key_of_an_unknown_topic_cannot_change():
    with pytest.raises(KafkaError) as refused:
        planner("t").plan_config(ConfigChange(name="u", changes=[]))
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_another_minimum_of_replicas_clears_the_elr():
    base = image("t")
    topic = base.topics["t"]
    waiting = replace(topic.partitions[0], isr=(0,), elr=(1,))
    topic = replace(topic, stored_min_isr=1, partitions=(waiting, topic.partitions[1]))
    base = replace(base, topics={"t": topic})
    plan = PlannerAtOnce(base, {}, broker_config(), TopicConfig())
    kept = plan.plan_config(ConfigChange(name="t", changes=[("flush.ms", AlterOp.SET, "1")]))
    assert kept.partitions[0].elr == (1,)
    change = ConfigChange(name="t", changes=[("min.insync.replicas", AlterOp.SET, "2")])
    assert plan.plan_config(change).partitions[0].elr == ()
