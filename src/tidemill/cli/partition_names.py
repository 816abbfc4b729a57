"""Partitions as people type them: TOPIC:PARTITION."""

from __future__ import annotations

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition

__all__ = ["parse_partition"]


def parse_partition(text: str) -> TopicPartition:
    """UserError unless it is TOPIC:PARTITION."""
    name, colon, index = text.rpartition(":")
    if not colon or not name or not (index.isascii() and index.isdecimal()):
        raise UserError(f"{text}: expected TOPIC:PARTITION, as in orders:0")
    return TopicPartition(name, int(index))
