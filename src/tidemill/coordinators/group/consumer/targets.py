"""The target assignment of a consumer group: what everyone is to have, and since when."""

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
from tidemill.coordinators.group.consumer.records import MemberMetadata
from tidemill.metadata.image.metadata_image import MetadataImage

__all__ = ["ConsumerTargets", "preferred_assignor", "topics_hash"]


@final
class ConsumerTargets:
    """Hard state, changed by replay."""

    def __init__(self) -> None:
        self.epoch = 0
        """The group epoch that these were made for."""
        self.made_ms = 0
        """Wall time; of an empty group, when its last member went."""
        self.rows: dict[str, Partitions] = {}
        """By member; one that is to have nothing may be left out."""

    def of(self, member_id: str) -> Partitions:
        return self.rows.get(member_id, NOTHING)

    def compute_for(
        self,
        members: Mapping[str, MemberMetadata],
        *,
        assignors: tuple[str, ...],
        image: MetadataImage,
        heirs: Mapping[str, str],
    ) -> dict[str, Partitions]:
        """A row for each of these members, the same object where it stays as it is.

        heirs: members that take over the row of another.
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
    """The one that most members name; the broker's first if none is named."""
    named = Counter(one.server_assignor for one in members)
    return max(assignors, key=lambda name: named[name])


def topics_hash(names: Iterable[str], image: MetadataImage) -> int:
    """Of those topics that exist, in this order: their ids, names and sizes."""
    digest = blake2b(digest_size=8)
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            count = len(topic.partitions)
            digest.update(b"%s %d %s;" % (topic.topic_id.bytes, count, name.encode()))
    return int.from_bytes(digest.digest(), "big", signed=True)


def _shapes(members: Iterable[MemberMetadata], image: MetadataImage) -> dict[str, TopicShape]:
    """The topics that anyone subscribes to and that exist."""
    shapes: dict[str, TopicShape] = {}
    for names in dict.fromkeys(one.topics for one in members):
        for name in names:
            topic = image.topics.get(name)
            if topic is not None and name not in shapes:
                shapes[name] = TopicShape(topic.topic_id, len(topic.partitions))
    return shapes
