"""The target assignment of a consumer group, and the epoch it was computed for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import final

from tidemill.coordinators.group.consumer.assignors import (
    ASSIGNORS,
    NOTHING,
    Partitions,
    Subscriber,
    TopicShape,
)
from tidemill.coordinators.group.consumer.records import MemberMetadata, target_of
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.consumer_group_target_assignment_member_record import (
    ConsumerGroupTargetAssignmentMemberValue,
)
from tidemill.wire.generated.consumer_group_target_assignment_metadata_record import (
    ConsumerGroupTargetAssignmentMetadataValue,
)

__all__ = ["ConsumerTargets", "preferred_assignor", "topics_hash"]


@final
class ConsumerTargets:
    """The target of every member: hard state, changed by replay."""

    def __init__(self) -> None:
        self.epoch = 0
        """The group epoch for which the targets were computed."""
        self.made_ms = 0
        """Wall time of the computation; in an empty group, when its last member left."""
        self.rows: dict[str, Partitions] = {}
        """By member; a member without partitions may be left out."""

    def of(self, member_id: str) -> Partitions:
        return self.rows.get(member_id, NOTHING)

    # --- replay ----------------------------------------------------------------------------------

    def replay_epoch(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.epoch = 0 if value is None else value.assignment_epoch
        self.made_ms = 0 if value is None else value.assignment_timestamp

    def replay_member(
        self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.rows.pop(member_id, None)
        else:
            self.rows[member_id] = target_of(value)

    # --- computing -------------------------------------------------------------------------------

    def compute_for(
        self,
        members: Mapping[str, MemberMetadata],
        *,
        assignors: tuple[str, ...],
        image: MetadataImage,
        heirs: Mapping[str, str],
    ) -> dict[str, Partitions]:
        """A target for each of these members; the same object where it does not change.

        `heirs`: members that take over the previous target of another member.
        """
        subscribers = [
            Subscriber(
                one, members[one].instance_id, members[one].topics, self.of(heirs.get(one, one))
            )
            for one in sorted(members)
        ]
        assign = ASSIGNORS[preferred_assignor(members.values(), assignors)]
        return assign(subscribers, _shapes(members.values(), image))


def preferred_assignor(members: Iterable[MemberMetadata], assignors: tuple[str, ...]) -> str:
    """The assignor that most members name; the broker's first if none is named."""
    named = Counter(one.server_assignor for one in members)
    return max(assignors, key=lambda name: named[name])


def topics_hash(names: Iterable[str], image: MetadataImage) -> int:
    """A hash over the ids, names and sizes of the topics that exist, in this order."""
    digest = blake2b(digest_size=8)
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            count = len(topic.partitions)
            digest.update(b"%s %d %s;" % (topic.topic_id.bytes, count, name.encode()))
    return int.from_bytes(digest.digest(), "big", signed=True)


def _shapes(members: Iterable[MemberMetadata], image: MetadataImage) -> dict[str, TopicShape]:
    """The subscribed topics that exist."""
    shapes: dict[str, TopicShape] = {}
    for names in dict.fromkeys(one.topics for one in members):
        for name in names:
            topic = image.topics.get(name)
            if topic is not None and name not in shapes:
                shapes[name] = TopicShape(topic.topic_id, len(topic.partitions))
    return shapes
