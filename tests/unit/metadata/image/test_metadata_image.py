from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidemill.core.ids import TopicId
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    DeletedTopic,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig

PARTITION = PartitionImage(leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
BROKER = BrokerImage(broker_id=0, epoch=1, host="h", port=1)


def topic(name: str, number: int, partitions: int = 2) -> TopicImage:
    return TopicImage(
        name=name,
        topic_id=TopicId(UUID(int=number)),
        partitions=(PARTITION,) * partitions,
        config=TopicConfig(),
    )


def image_of(*topics: TopicImage) -> MetadataImage:
    draft = ImageDraft(MetadataImage())
    for one in topics:
        draft.put_topic(one)
    return draft.finish().after


def test_topics_are_found_by_name_by_id_and_by_partition():
    image = image_of(topic("a", 1))
    assert image.topic("a") == image.topic_by_id(UUID(int=1)) == topic("a", 1)
    assert image.partition("a", 1) == PARTITION
    assert image.topic("b") is None
    assert image.topic_by_id(UUID(int=2)) is None
    assert image.partition("a", 2) is None
    assert image.partition("a", -1) is None
    assert image.partition("b", 0) is None


def test_a_draft_leaves_the_old_image_as_it_was():
    before = image_of(topic("a", 1))
    draft = ImageDraft(before)
    draft.drop_topic("a")
    draft.put_topic(topic("b", 2))
    draft.put_broker(BROKER)
    draft.finish()
    assert list(before.topics) == ["a"]
    assert not before.brokers


def test_a_delta_names_what_changed_in_order():
    before = image_of(topic("gone", 1), topic("same", 2), topic("grown", 3))
    draft = ImageDraft(before)
    draft.drop_topic("gone")
    draft.drop_topic("never-there")
    draft.put_topic(topic("grown", 3, partitions=3))
    draft.put_topic(topic("a-new-one", 4))
    draft.put_topic(topic("same", 2))
    delta = draft.finish()
    assert delta.topics_changed == ("a-new-one", "grown")
    assert delta.topics_deleted == (DeletedTopic("gone", TopicId(UUID(int=1))),)
    assert not delta.brokers_changed
    assert not delta.empty


def test_I34_a_recreated_topic_is_deleted_under_its_old_id_and_changed_under_its_name():
    before = image_of(topic("t", 1))
    draft = ImageDraft(before)
    draft.put_topic(topic("t", 2))
    delta = draft.finish()
    assert delta.topics_deleted == (DeletedTopic("t", TopicId(UUID(int=1))),)
    assert delta.topics_changed == ("t",)
    assert delta.after.topic_by_id(UUID(int=1)) is None
    assert delta.after.topic_by_id(UUID(int=2)) is not None


def test_nothing_new_is_an_empty_delta():
    before = image_of(topic("t", 1))
    draft = ImageDraft(before)
    draft.put_topic(topic("t", 1))
    delta = draft.finish()
    assert delta.empty
    assert ImageDraft(before).finish().empty


def test_partitions_are_replaced_and_unknown_ones_ignored():
    draft = ImageDraft(image_of(topic("t", 1)))
    moved = replace(PARTITION, leader_epoch=1)
    draft.put_partitions(UUID(int=1), {1: moved, 2: moved, -1: moved})
    draft.put_partitions(UUID(int=99), {0: moved})
    delta = draft.finish()
    assert delta.topics_changed == ("t",)
    assert delta.after.topics["t"].partitions == (PARTITION, moved)


def test_a_broker_that_registers_again_is_a_changed_broker():
    draft = ImageDraft(MetadataImage(brokers={0: BROKER, 1: replace(BROKER, broker_id=1)}))
    draft.put_broker(replace(BROKER, epoch=2))
    draft.drop_broker(1)
    assert draft.finish().brokers_changed == (0, 1)


def test_T18_the_controller_is_a_live_broker_or_none():
    draft = ImageDraft(MetadataImage())
    draft.set_controller(0, 5)
    delta = draft.finish()
    assert delta.controller_changed
    assert delta.after.controller_id == -1
    draft = ImageDraft(delta.after)
    draft.put_broker(BROKER)
    assert draft.finish().after.controller_id == 0


def test_only_the_brokers_own_topics_are_internal():
    assert topic("__consumer_offsets", 1).internal
    assert not topic("__mine", 1).internal
