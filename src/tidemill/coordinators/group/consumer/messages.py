"""A consumer group's responses and descriptions on the wire."""

from __future__ import annotations

from tidemill.coordinators.group.consumer.assignors import Partitions
from tidemill.coordinators.group.consumer.members import ConsumerMember
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated import consumer_group_describe as described
from tidemill.wire.generated.consumer_group_heartbeat import Assignment, ResponseTopicPartitions

__all__ = ["described_member", "heartbeat_assignment"]

CLASSIC_MEMBER_TYPE, CONSUMER_MEMBER_TYPE = 0, 1
"""By the protocol that a member uses."""


def heartbeat_assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            ResponseTopicPartitions(topic_id=topic_id, partitions=list(numbers))
            for topic_id, numbers in partitions.items()
        ]
    )


def described_member(
    member: ConsumerMember, target: Partitions, image: MetadataImage
) -> described.Member:
    metadata, current = member.metadata, member.current
    return described.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.member_epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.pattern,
        assignment=_described_assignment(current.assigned, image),
        target_assignment=_described_assignment(target, image),
        member_type=CLASSIC_MEMBER_TYPE if member.is_classic else CONSUMER_MEMBER_TYPE,
    )


def _described_assignment(partitions: Partitions, image: MetadataImage) -> described.Assignment:
    """With topic names; deleted topics are left out."""
    return described.Assignment(
        topic_partitions=[
            described.TopicPartitions(
                topic_id=topic_id, topic_name=image.names[topic_id], partitions=list(numbers)
            )
            for topic_id, numbers in partitions.items()
            if topic_id in image.names
        ]
    )
