"""Partitions as people type them: TOPIC:PARTITION."""

from __future__ import annotations

from tidemill.core.config.keys import INT32_MAX
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition

__all__ = ["parse_partition", "try_parse_number"]

_DIGITS_MAX = len(str(INT32_MAX))


def parse_partition(text: str) -> TopicPartition:
    """UserError unless it is TOPIC:PARTITION."""
    name, colon, index = text.rpartition(":")
    number = try_parse_number(index)
    if not colon or not name or number is None:
        raise UserError(f"{text}: expected TOPIC:PARTITION, as in orders:0")
    return TopicPartition(name, number)


def try_parse_number(text: str) -> int | None:
    """A partition or a broker's id, as the protocol can name it."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= INT32_MAX else None
