from __future__ import annotations

from uuid import UUID

from tidemill.core.ids import TopicId
from tidemill.core.limits import FORMER_LEADER_KEPT_S
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    Delta,
    MetadataImage,
    TopicImage,
    difference,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.former_leaders import FormerLeaders

TOPIC_ID = TopicId(UUID(int=1))
LATER = 100.0


def image(leader: int, *brokers: int) -> MetadataImage:
    partition = new_partition((leader, 1 - leader))
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=(partition,), config=TopicConfig())
    registered = {one: BrokerImage(broker_id=one, epoch=1, host="h", port=1) for one in brokers}
    return MetadataImage(brokers=registered, topics={"t": topic}, names={TOPIC_ID: "t"})


def change(before: MetadataImage, after: MetadataImage) -> Delta:
    return difference(before, after)


def known() -> FormerLeaders:
    """In office for long."""
    leaders = FormerLeaders()
    leaders.took_office(LATER - FORMER_LEADER_KEPT_S)
    return leaders


def test_who_has_lost_a_leadership_counts_for_a_session():
    leaders = known()
    leaders.follow(change(image(0, 0, 1), image(1, 0, 1)), LATER)
    partition = new_partition((1, 0))
    assert list(leaders.of(TOPIC_ID, 0, partition, LATER)) == [0]
    assert leaders.forgotten_at(LATER) == LATER + FORMER_LEADER_KEPT_S
    assert not leaders.of(TOPIC_ID, 0, partition, LATER + FORMER_LEADER_KEPT_S)


def test_a_broker_that_is_gone_has_no_lease_any_more():
    leaders = known()
    leaders.follow(change(image(0, 0, 1), image(1, 1)), LATER)
    assert not leaders.of(TOPIC_ID, 0, new_partition((1, 0)), LATER)


def test_a_controller_that_has_just_come_takes_every_replica_for_a_former_leader():
    leaders = FormerLeaders()
    leaders.took_office(LATER)
    partition = new_partition((1, 0))
    assert leaders.of(TOPIC_ID, 0, partition, LATER) == (1, 0)
    assert not leaders.of(TOPIC_ID, 0, partition, LATER + FORMER_LEADER_KEPT_S)
