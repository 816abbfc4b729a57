"""Views at the controller: what makes one, what is refused, what follows its base."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.metadata.planner_at_once import PlannerAtOnce
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.limits import SELECTOR_BYTES_MAX, VIEWS_PER_TOPIC_MAX
from tidemill.core.loop.steps import finished
from tidemill.metadata.controller.page_writer import changed_parts
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import AlterOp, TopicConfig
from tidemill.metadata.rules.cluster_upkeep import ClusterUpkeep
from tidemill.metadata.rules.decisions import elected, moved, reconcile, without_member
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.healing import vacating_moves
from tidemill.metadata.rules.placement import ClusterLoad, Load
from tidemill.metadata.rules.replica_survey import ReplicaSurvey
from tidemill.metadata.rules.store_writes import with_minimum_in_force
from tidemill.metadata.rules.topic_planner import (
    ConfigChange,
    PartitionsSpec,
    TopicSpec,
)

BASE = TopicImage(
    name="orders",
    topic_id=TopicId(UUID(int=1)),
    partitions=(new_partition((0, 1)), new_partition((1, 0))),
    config=TopicConfig(),
)

HELD = {"tidemill.view.of": "orders", "tidemill.view.held": "true"}


def view(name: str = "orders.eu", number: int = 2, of: str = "orders") -> TopicImage:
    overrides = {"tidemill.view.of": of, "tidemill.view.filter": "region = 'eu'"}
    return TopicImage(
        name=name,
        topic_id=TopicId(UUID(int=number)),
        partitions=(),
        overrides=overrides,
        config=TopicConfig(tidemill_view_of=of, tidemill_view_filter="region = 'eu'"),
    )


def held_view() -> TopicImage:
    config = TopicConfig(tidemill_view_of="orders", tidemill_view_held=True)
    return replace(view("orders.held", 3), overrides=HELD, config=config)


def image(*topics: TopicImage) -> MetadataImage:
    draft = ImageDraft(MetadataImage())
    for number in range(2):
        draft.put_broker(BrokerImage(broker_id=number, epoch=1, host="h", port=1))
    draft.set_members({n: MemberImage(broker_id=n, epoch=1) for n in range(2)})
    for topic in topics:
        draft.put_topic(topic)
    return draft.finish().after


def planner(*topics: TopicImage) -> PlannerAtOnce:
    load = {number: Load() for number in range(2)}
    return PlannerAtOnce(image(*topics), load, broker_config(), TopicConfig())


def spec(name: str = "orders.eu", **fields: object) -> TopicSpec:
    overrides = fields.pop("overrides", {"tidemill.view.of": "orders"})
    return TopicSpec(name=name, overrides=overrides, **fields)  # type: ignore[arg-type]


def refusal(plan, *arguments) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        plan(*arguments)
    return caught.value


# --- making one ----------------------------------------------------------------------------------


def test_a_new_view_has_its_own_id_and_the_partitions_of_its_base():
    made = planner(BASE).plan_topic(spec(), TopicId(UUID(int=7)))
    assert made.topic_id == UUID(int=7)
    assert made.partitions == BASE.partitions
    assert made.view_of == "orders"


def test_a_new_view_takes_no_room_on_any_broker():
    planned = planner(BASE)
    planned.plan_topic(spec(), TopicId(UUID(int=7)))
    assert planned.load == {0: Load(), 1: Load()}


def test_a_view_may_name_the_numbers_of_its_base():
    planner(BASE).plan_topic(spec(partitions=2, replication_factor=2), TopicId(UUID(int=7)))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"partitions": 3}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 1}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": {0: [0]}}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"overrides": {"tidemill.view.of": "none"}}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"overrides": {"tidemill.view.filter": "a = 1"}}, ErrorCode.INVALID_CONFIG),
        (
            {"overrides": {"tidemill.view.of": "orders", "retention.ms": "1"}},
            ErrorCode.INVALID_CONFIG,
        ),
        (
            {"overrides": {"tidemill.view.of": "orders", "tidemill.view.filter": "a ="}},
            ErrorCode.INVALID_CONFIG,
        ),
        ({"overrides": {"tidemill.view.held": "true"}}, ErrorCode.INVALID_CONFIG),
        ({"overrides": {**HELD, "tidemill.view.filter": "a = 1"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_a_view_is_refused(fields, code):
    assert refusal(planner(BASE).plan_topic, spec(**fields), TopicId(UUID(int=7))).code is code


def test_S37_a_filter_that_is_too_long_is_refused_with_its_column():
    text = "a = '" + "x" * SELECTOR_BYTES_MAX + "'"
    overrides = {"tidemill.view.of": "orders", "tidemill.view.filter": text}
    error = refusal(planner(BASE).plan_topic, spec(overrides=overrides), TopicId(UUID(int=7)))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "tidemill.view.filter: column 1" in error.detail


def test_a_view_of_a_view_is_refused():
    wanted = spec("v2", overrides={"tidemill.view.of": "orders.eu"})
    error = refusal(planner(BASE, view()).plan_topic, wanted, TopicId(UUID(int=7)))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "make a view of that" in error.detail


def test_an_internal_topic_has_no_views():
    internal = replace(BASE, name="__consumer_offsets")
    wanted = spec("v", overrides={"tidemill.view.of": "__consumer_offsets"})
    error = refusal(planner(internal).plan_topic, wanted, TopicId(UUID(int=7)))
    assert error.code is ErrorCode.INVALID_CONFIG


def test_one_view_more_than_a_topic_may_have_is_refused():
    many = [view(f"v{n}", n + 2) for n in range(VIEWS_PER_TOPIC_MAX - 1)]
    planned = planner(BASE, *many)
    planned.plan_topic(spec("last"), TopicId(UUID(int=900)))
    error = refusal(planned.plan_topic, spec("one-more"), TopicId(UUID(int=901)))
    assert error.code is ErrorCode.POLICY_VIOLATION


def test_a_view_may_show_what_is_held():
    made = planner(BASE).plan_topic(spec(overrides=HELD), TopicId(UUID(int=7)))
    assert made.config.tidemill_view_held
    assert made.partitions == BASE.partitions


# --- changing one --------------------------------------------------------------------------------


def test_the_filter_of_a_view_can_change():
    change = ConfigChange(
        name="orders.eu", changes=[("tidemill.view.filter", AlterOp.SET, "region = 'us'")]
    )
    changed = planner(BASE, view()).plan_config(change)
    assert changed.config.tidemill_view_filter == "region = 'us'"
    assert changed.partitions == BASE.partitions


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("orders.eu", "tidemill.view.filter", "region ="),
        ("orders.eu", "tidemill.view.of", "other"),
        ("orders.eu", "retention.ms", "1"),
        ("orders", "tidemill.view.of", "orders.eu"),
        ("orders", "tidemill.view.filter", "a = 1"),
        ("orders", "tidemill.view.held", "true"),
        ("orders.eu", "tidemill.view.held", "true"),
        ("orders.held", "tidemill.view.held", "false"),
        ("orders.held", "tidemill.view.filter", "a = 1"),
    ],
)
def test_nothing_else_of_a_view_can_change(name, key, value):
    change = ConfigChange(name=name, changes=[(key, AlterOp.SET, value)])
    planned = planner(BASE, view(), held_view())
    assert refusal(planned.plan_config, change).code is ErrorCode.INVALID_CONFIG


def test_a_view_stays_one_when_its_keys_are_taken_back():
    change = ConfigChange(name="orders.eu", changes=[("tidemill.view.of", AlterOp.DELETE, None)])
    assert refusal(planner(BASE, view()).plan_config, change).code is ErrorCode.INVALID_CONFIG


def test_replacing_all_keys_of_a_view_must_name_its_filter():
    nothing = ConfigChange(name="orders.eu", changes=[], replace_all=True)
    assert refusal(planner(BASE, view()).plan_config, nothing).code is ErrorCode.INVALID_CONFIG
    empty = [("tidemill.view.filter", AlterOp.SET, "")]
    change = ConfigChange(name="orders.eu", changes=empty, replace_all=True)
    changed = planner(BASE, view()).plan_config(change)
    assert changed.overrides == {"tidemill.view.filter": "", "tidemill.view.of": "orders"}


def test_a_view_of_what_is_held_stays_one_when_all_keys_are_replaced():
    nothing = ConfigChange(name="orders.held", changes=[], replace_all=True)
    assert planner(BASE, held_view()).plan_config(nothing).overrides == HELD


def test_partitions_are_added_to_the_base_only():
    planned = planner(BASE, view())
    error = refusal(planned.plan_partitions, PartitionsSpec(name="orders.eu", count=3))
    assert error.code is ErrorCode.INVALID_PARTITIONS
    assert "orders" in error.detail


# --- following the base --------------------------------------------------------------------------


def test_a_view_has_what_its_base_has_whichever_is_known_first():
    for topics in ([BASE, view()], [view(), BASE]):
        made = image(*topics)
        assert made.topics["orders.eu"].partitions == BASE.partitions
        assert made.views == {"orders": ("orders.eu",)}


def test_a_view_without_its_base_has_no_partitions():
    draft = ImageDraft(image(BASE, view()))
    draft.drop_topic("orders")
    assert draft.finish().after.topics["orders.eu"].partitions == ()


def test_a_change_of_the_base_is_one_of_its_views_but_stored_once():
    before = image(BASE, view(), view("orders.us", 3))
    draft = ImageDraft(before)
    grown = replace(BASE, partitions=(*BASE.partitions, new_partition((0, 1))))
    draft.put_topic(grown)
    delta = draft.finish()
    assert delta.topics_changed == ("orders", "orders.eu", "orders.us")
    assert len(delta.after.topics["orders.us"].partitions) == 3
    assert list(changed_parts(delta)) == ["/pages/01"]


def test_a_deleted_view_is_no_view_of_its_base_any_more():
    draft = ImageDraft(image(BASE, view(), view("orders.us", 3)))
    draft.drop_topic("orders.eu")
    assert draft.finish().after.views == {"orders": ("orders.us",)}


def test_no_election_and_no_load_counts_a_view():
    before = image(BASE, view())
    draft = ImageDraft(before)
    draft.drop_broker(1)
    changes = finished(reconcile(draft.finish().after))
    assert {one.topic_id for one in changes} == {BASE.topic_id}
    with pytest.raises(KafkaError, match="is a view"):
        elected(before, "orders.eu", 0, unclean=False)
    load = ClusterLoad()
    full = ImageDraft(MetadataImage())
    for number in range(2):
        full.put_broker(BrokerImage(broker_id=number, epoch=1, host="h", port=1))
    full.set_members({n: MemberImage(broker_id=n, epoch=1) for n in range(2)})
    full.put_topic(BASE)
    full.put_topic(view())
    finished(load.follow(full.finish()))
    assert load.copy() == {0: Load(leaders=1, replicas=2), 1: Load(leaders=1, replicas=2)}


def test_a_view_is_not_moved_and_no_plan_counts_its_partitions():
    before = image(BASE, view())
    with pytest.raises(KafkaError, match="is a view: move the replicas of orders"):
        moved(before, "orders.eu", 0, [0], lambda *_: ())
    with pytest.raises(KafkaError, match="is a view"):
        moved(before, "orders.eu", 0, None, lambda *_: ())
    mine = {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert finished(ReplicaSurvey.of(before)).assignment.keys() == mine
    draft = ImageDraft(before)
    draft.put_broker(BrokerImage(broker_id=2, epoch=1, host="h", port=1))
    draft.set_members({n: MemberImage(broker_id=n, epoch=1) for n in range(3)})
    assert finished(vacating_moves(draft.finish().after, {1}))[0].keys() == mine


def test_a_move_of_the_base_counts_once():
    moving = replace(BASE.partitions[0], replicas=(0, 1), adding=(1,), isr=(0,))
    both = image(replace(BASE, partitions=(moving,)), view())
    assert finished(ReplicaSurvey.of(both)).moving == [((1,), ())]


def test_leaderships_are_given_back_in_the_base_alone():
    away = tuple(replace(one, leader=one.replicas[1]) for one in BASE.partitions)
    upkeep = ClusterUpkeep()
    steps = upkeep.plan(image(replace(BASE, partitions=away), view()), broker_config(), 0.0)
    plan = finished(steps)
    assert plan.elections == [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def test_a_broker_that_is_gone_holds_the_replicas_of_the_base_once():
    draft = ImageDraft(image(BASE, view()))
    draft.drop_broker(1)
    with pytest.raises(KafkaError, match="holds 2 replicas"):
        without_member(draft.finish().after, 1)


def test_a_view_has_no_minimum_of_its_own():
    made = planner(BASE).plan_topic(spec(), TopicId(UUID(int=7)))
    assert made.stored_min_isr == 0
    before = image(BASE, view()).topics["orders.eu"]
    assert with_minimum_in_force(before) is before
    change = ConfigChange(
        name="orders.eu", changes=[("tidemill.view.filter", AlterOp.SET, "region = 'us'")]
    )
    assert planner(BASE, view()).plan_config(change).stored_min_isr == 0
