"""The messages that consumers of the classic protocol embed in JoinGroup and SyncGroup.

A classic group's leader makes the plan, so its coordinator only passes these bytes on. It reads
them where it must know what members read: offsets of topics in use must stay (T43), and a group
that changes to the consumer protocol continues with the subscriptions and assignments it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from tidemill.core.errors import ProtocolViolation
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated import consumer_protocol_assignment as assignment_messages
from tidemill.wire.generated.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidemill.wire.primitives import Reader, Writer

__all__ = [
    "CONSUMER_PROTOCOL_TYPE",
    "EmbeddedSubscription",
    "encode_assignment",
    "partitions_by_id",
    "try_assignment",
    "try_subscription",
]

CONSUMER_PROTOCOL_TYPE = "consumer"
"""Other types (Connect, schema registries) have metadata in their own formats."""

Topics = Iterable[TopicPartition | assignment_messages.TopicPartition]


class EmbeddedSubscription(NamedTuple):
    """A member's subscription, and the version in which it was written."""

    version: int
    content: ConsumerProtocolSubscription


def try_subscription(metadata: bytes) -> EmbeddedSubscription | None:
    """The subscription; None if these bytes are none.

    Later versions only add fields, so a newer version and bytes after the last known field are
    accepted. The cost of hostile input is bounded by its length.
    """
    reader = Reader(metadata)
    try:
        version = reader.int16()
        if version < 0:
            return None
        known = min(version, ConsumerProtocolSubscription.version_max)
        return EmbeddedSubscription(known, ConsumerProtocolSubscription.read(reader, known))
    except ProtocolViolation:
        return None


def try_assignment(raw: bytes) -> Topics | None:
    """The partitions of an assignment; None if it cannot be read. Empty bytes: no partitions."""
    if not raw:
        return ()
    reader = Reader(raw)
    message = assignment_messages.ConsumerProtocolAssignment
    try:
        version = reader.int16()
        if version < 0:
            return None
        return message.read(reader, min(version, message.version_max)).assigned_partitions
    except ProtocolViolation:
        return None


def encode_assignment(
    partitions: Mapping[UUID, tuple[int, ...]], image: MetadataImage, version: int
) -> bytes:
    """An assignment in the version of the member's subscription; deleted topics are left out."""
    writer = Writer()
    writer.buf += version.to_bytes(2, "big")
    assignment_messages.ConsumerProtocolAssignment(
        assigned_partitions=[
            assignment_messages.TopicPartition(
                topic=image.names[topic_id], partitions=list(numbers)
            )
            for topic_id, numbers in partitions.items()
            if topic_id in image.names
        ]
    ).write(writer, version)
    return bytes(writer.buf)


def partitions_by_id(topics: Topics, image: MetadataImage) -> dict[UUID, tuple[int, ...]]:
    """The partitions that exist, sorted, by the ids of their topics."""
    found: dict[UUID, set[int]] = {}
    for one in topics:
        topic = image.topics.get(one.topic)
        if topic is not None:
            count = len(topic.partitions)
            numbers = (number for number in one.partitions if 0 <= number < count)
            found.setdefault(topic.topic_id, set()).update(numbers)
    return {topic_id: tuple(sorted(numbers)) for topic_id, numbers in found.items() if numbers}
