"""Topics and partitions by name and by id. Pure.

`TopicId` is the id of a topic that this cluster knows; mypy keeps it apart from the plain UUID that
a client sent. Offsets, epochs and broker ids are plain integers: nearly all come from or go to a
message of the protocol, and a conversion at each field would hide more than it catches.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType
from uuid import UUID

__all__ = [
    "NO_LEADER",
    "TOPIC_NAME_CHARS_MAX",
    "ZERO_UUID",
    "TopicId",
    "TopicPartition",
    "is_legal_topic_name",
]

TopicId = NewType("TopicId", UUID)

ZERO_UUID = UUID(int=0)
NO_LEADER = -1
"""Stands for a broker id where a partition has no leader, or the cluster no controller."""

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
