"""Which brokers led a partition a moment ago, and may not know yet that they do not. Pure.

A broker that is registered and lost a leadership still answers readers until it hears of that. So
it stays a replica, and in the in-sync set, for a session of the store: by then it has heard of it,
or has no lease any more. A controller that has just taken office knows nobody's past: it forgets no
replica for that long.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final
from uuid import UUID

from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import FORMER_LEADER_KEPT_S
from tidemill.metadata.image.metadata_image import Delta, PartitionImage

__all__ = ["FormerLeaders"]


@final
class FormerLeaders:
    """By partition: who led it lately, and until when that counts."""

    def __init__(self) -> None:
        self._until: dict[tuple[UUID, int], dict[int, float]] = {}
        self._unknown_until = 0.0

    def took_office(self, now: float) -> None:
        self._until.clear()
        self._unknown_until = now + FORMER_LEADER_KEPT_S

    def follow(self, delta: Delta, now: float) -> None:
        """Note who has lost a leadership, and forget what is long ago."""
        for name in delta.topics_changed:
            before, after = delta.before.topic(name), delta.after.topics[name]
            if before is None or before.topic_id != after.topic_id:
                continue
            pairs = zip(before.own_partitions, after.own_partitions, strict=False)
            for index, (old, new) in enumerate(pairs):
                if old.leader not in {new.leader, NO_LEADER} and old.leader in delta.after.brokers:
                    led = self._until.setdefault((after.topic_id, index), {})
                    led[old.leader] = now + FORMER_LEADER_KEPT_S
        for key in [one for one, led in self._until.items() if max(led.values()) <= now]:
            del self._until[key]

    def of(
        self, topic_id: UUID, index: int, partition: PartitionImage, now: float
    ) -> Collection[int]:
        if now < self._unknown_until:
            return partition.replicas
        led = self._until.get((topic_id, index), {})
        return [broker_id for broker_id, until in led.items() if now < until]

    def forgotten_at(self, now: float) -> float | None:
        """When some of them do not count any more; None if there are none."""
        times = [until for led in self._until.values() for until in led.values()]
        later = [one for one in (self._unknown_until, *times) if one > now]
        return min(later, default=None)
