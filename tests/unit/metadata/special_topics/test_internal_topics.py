"""Internal topics: made with their coordinator's settings, and kept on them."""

from __future__ import annotations

import pytest

from tests.unit.metadata.rules.test_topic_planner import TOPIC_ID, planner
from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import OFFSETS_BATCH_BYTES_MAX, TRANSACTIONS_BATCH_BYTES_MAX
from tidemill.metadata.image.metadata_image import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import ConfigChange, PartitionsSpec, TopicSpec


def code_of(work):
    with pytest.raises(KafkaError) as refused:
        work()
    return refused.value.code


def change(*changes, replace_all=False):
    return ConfigChange(name=OFFSETS_TOPIC, changes=changes, replace_all=replace_all)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_nobody_but_its_coordinator_makes_an_internal_topic(name):
    spec = TopicSpec(name=name, partitions=4)
    code = code_of(lambda: planner().plan_topic(spec, TOPIC_ID))
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_coordinators_topic_has_its_own_settings():
    made = planner(flags=("offsets.topic.num.partitions=7", "num.partitions=2")).plan_topic(
        TopicSpec(name=OFFSETS_TOPIC, by_coordinator=True), TOPIC_ID
    )
    assert len(made.partitions) == 7
    assert made.replication_factor == 3
    assert made.config.cleanup_policy == ("compact",)
    assert made.config.max_message_bytes == OFFSETS_BATCH_BYTES_MAX


def test_the_topic_of_transactions_is_made_as_its_coordinator_needs_it():
    spec = TopicSpec(name=TRANSACTION_STATE_TOPIC, by_coordinator=True)
    made = planner().plan_topic(spec, TOPIC_ID)
    assert len(made.partitions) == 50
    assert made.config.cleanup_policy == ("compact",)
    assert made.config.max_message_bytes == TRANSACTIONS_BATCH_BYTES_MAX


def test_a_topic_without_a_coordinator_here_is_not_made():
    spec = TopicSpec(name=SHARE_STATE_TOPIC, by_coordinator=True)
    code = code_of(lambda: planner().plan_topic(spec, TOPIC_ID))
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_no_topic_takes_a_name_that_would_collide_with_an_internal_one_later():
    spec = TopicSpec(name="__consumer.offsets")
    code = code_of(lambda: planner().plan_topic(spec, TOPIC_ID))
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_colliding_topic_of_an_older_broker_does_not_stop_the_coordinator():
    spec = TopicSpec(name=OFFSETS_TOPIC, by_coordinator=True)
    made = planner("__consumer.offsets").plan_topic(spec, TOPIC_ID)
    assert made.name == OFFSETS_TOPIC


def test_an_internal_topic_never_grows_because_groups_are_found_by_a_hash():
    spec = PartitionsSpec(name=OFFSETS_TOPIC, count=10)
    code = code_of(lambda: planner(OFFSETS_TOPIC).plan_partitions(spec))
    assert code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("max.message.bytes", "1000000"),
    ],
)
def test_a_setting_that_loses_offsets_is_refused(key, value):
    wanted = change((key, AlterOp.SET, value))
    code = code_of(lambda: planner(OFFSETS_TOPIC).plan_config(wanted))
    assert code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "wanted",
    [
        change(replace_all=True),
        change(("cleanup.policy", AlterOp.DELETE, None)),
        change(("segment.bytes", AlterOp.SET, "2048")),
    ],
    ids=["replace all", "delete the key", "a harmless key"],
)
def test_a_key_that_is_not_set_keeps_the_coordinators_value(wanted):
    changed = planner(OFFSETS_TOPIC).plan_config(wanted)
    assert changed.config.cleanup_policy == ("compact",)
    assert changed.config.max_message_bytes == OFFSETS_BATCH_BYTES_MAX


# --- a data directory in which they are wrong ----------------------------------------------------


async def _restarted(name, partitions, overrides, *flags):
    """A broker on a store that holds an internal topic as an older broker may have made it."""
    small = SmallCluster(*flags)
    (cluster,) = await small.start(0)
    spec = TopicSpec(name=name, partitions=partitions, replication_factor=1, by_coordinator=True)
    await cluster.create_topics([spec])
    small.notices_held = True
    await small.put_topic(small.stored_topics()[name]._replace(overrides=overrides))
    small.notices_held = False
    small.crash(0)
    await small.start(0)
    return small


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (OFFSETS_TOPIC, ("compact",)),
        (TRANSACTION_STATE_TOPIC, ("compact",)),
        (SHARE_STATE_TOPIC, ("delete",)),
    ],
)
@pytest.mark.parametrize("overrides", [{}, {"cleanup.policy": "delete", "retention.ms": "5"}])
def test_settings_that_lose_state_are_said_and_mended_at_start(run, name, policy, overrides):
    async def scenario() -> None:
        small = await _restarted(name, 4, overrides)
        member = small.members[0]
        assert [line for line in member.alarms if f"{name} had settings that lose" in line]
        mended = member.cluster.image.topics[name]
        assert mended.config.cleanup_policy == policy
        assert mended.config.compacts or mended.config.retention_ms == -1
        small.crash(0)
        (again,) = await small.start(0)
        assert again.image.topics[name].overrides == mended.overrides
        assert not [line for line in small.members[0].alarms if "lose the state" in line]

    run(scenario())


def test_harmless_settings_of_an_internal_topic_survive_a_start(run):
    async def scenario() -> None:
        kept = {"cleanup.policy": "compact", "max.message.bytes": "9000000", "segment.ms": "7"}
        small = await _restarted(OFFSETS_TOPIC, 50, kept)
        assert dict(small.members[0].cluster.image.topics[OFFSETS_TOPIC].overrides) == kept
        assert not small.members[0].alarms

    run(scenario())


def test_a_number_of_partitions_that_differs_is_said_and_kept(run):
    async def scenario() -> None:
        small = await _restarted(OFFSETS_TOPIC, 4, {}, "offsets.topic.num.partitions=50")
        member = small.members[0]
        assert len(member.cluster.image.topics[OFFSETS_TOPIC].partitions) == 4
        assert [line for line in member.alarms if "keeps its 4 partitions" in line]

    run(scenario())
