"""Names for the numbers that travel through the broker, so that mypy keeps them apart."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType
from uuid import UUID

__all__ = [
    "NO_LEADER",
    "TOPIC_NAME_CHARS_MAX",
    "ZERO_UUID",
    "BrokerId",
    "LeaderEpoch",
    "Offset",
    "PartitionIndex",
    "ProducerId",
    "TopicId",
    "TopicPartition",
    "is_legal_topic_name",
]

BrokerId = NewType("BrokerId", int)
PartitionIndex = NewType("PartitionIndex", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", UUID)

ZERO_UUID = UUID(int=0)
NO_LEADER = BrokerId(-1)

TOPIC_NAME_CHARS_MAX = 249
_LEGAL_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule (T16); also what makes a name safe in a path, a log line and a metric label."""
    return name not in {".", ".."} and _LEGAL_TOPIC_NAME.match(name) is not None
