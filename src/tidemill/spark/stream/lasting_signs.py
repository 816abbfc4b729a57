"""Signs of data loss that may pass by themselves, and how long each has been there. Pure.

A broker that has just started may not know a topic yet, and a new leader may not know the end of
its log. Only a sign that lasts is loss.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from tidemill.core.ids import TopicPartition

__all__ = ["LastingSigns"]


@final
class LastingSigns:
    """Signs of one kind, by partition."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[TopicPartition, float] = {}

    def lasting(self, seen: Collection[TopicPartition], now_s: float) -> list[TopicPartition]:
        """Those of `seen` that have been seen at every call for `patience_s`, sorted."""
        self._since = {partition: self._since.get(partition, now_s) for partition in seen}
        return sorted(p for p in self._since if self._has_lasted(p, now_s))

    def may_pass(self, now_s: float) -> bool:
        """Whether the last call saw a sign that has not lasted yet."""
        return not all(self._has_lasted(partition, now_s) for partition in self._since)

    def _has_lasted(self, partition: TopicPartition, now_s: float) -> bool:
        return now_s - self._since[partition] >= self._patience_s
