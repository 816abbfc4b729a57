"""Which partitions a query covers from one trigger to the next.

A partition that is new is read from its beginning. A topic that was deleted and created again has
another id, and its unread records are lost. A partition that is missing keeps its position for
`PATIENCE_S`: a broker that has just started may not know it yet, and a partition that were
forgotten and found again would be read again from its beginning. Only then is it `DataLoss`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.clock import Clock
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import PartitionOffsets, QueryOffset
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.source.data_loss import LossReport
from tidemill.spark.source.positions import SubscribedPartitions, resolve_subscription
from tidemill.spark.stream.lasting_signs import LastingSigns

__all__ = ["PATIENCE_S", "CoveredTopics", "TopicWatch"]

PATIENCE_S: Final = 30.0
"""How long a partition may be missing, or its log end before what was read."""


@final
@dataclass(frozen=True, slots=True)
class CoveredTopics:
    """What a query covers now, compared with its offset."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: dict[str, str]
    """Also of topics that are missing."""
    fresh: list[TopicPartition]
    """Partitions to be read from their beginning."""
    missing: PartitionOffsets
    """Partitions that are missing for a moment, and their positions."""


@final
class TopicWatch:
    """The topics of one query, asked for again when `partition.metadata.cache.ttl.ms` is over."""

    def __init__(self, options: SourceOptions, losses: LossReport, clock: Clock) -> None:
        self._options = options
        self._losses = losses
        self._clock = clock
        self._missing = LastingSigns(PATIENCE_S)
        self._asked_at = 0.0
        self.last: SubscribedPartitions | None = None
        """The last answer; None before the first."""

    @property
    def is_due(self) -> bool:
        age_ms = (self._clock.monotonic() - self._asked_at) * 1000
        return self.last is None or self.may_pass or age_ms >= self._options.metadata_ttl_ms

    @property
    def may_pass(self) -> bool:
        """Whether a partition is missing that may come back."""
        return self._missing.may_pass(self._clock.monotonic())

    async def covered(self, cluster: ClusterClient, start: QueryOffset) -> CoveredTopics:
        """What the query covers now. DataLoss if something is gone that `start` has."""
        if self.is_due:
            self.last = await resolve_subscription(cluster, self._options.subscription)
            self._asked_at = self._clock.monotonic()
        found = self.last
        assert found is not None
        recreated = self._recreated(start, found)
        missing = {
            p: start.positions[p]
            for p in sorted(start.positions.keys() - set(found.partitions))
            if p.topic not in recreated
        }
        for partition in self._missing.lasting(missing.keys(), self._clock.monotonic()):
            self._losses.report(f"{partition} no longer exists: its unread records are gone")
            del missing[partition]
        kept_ids = {
            topic: start.topic_ids[topic]
            for topic in sorted({p.topic for p in missing})
            if topic in start.topic_ids
        }
        fresh = [p for p in found.partitions if p not in start.positions or p.topic in recreated]
        return CoveredTopics(found.partitions, kept_ids | found.topic_ids, fresh, missing)

    def _recreated(self, start: QueryOffset, found: SubscribedPartitions) -> set[str]:
        recreated = {
            topic
            for topic, topic_id in found.topic_ids.items()
            if start.topic_ids.get(topic, topic_id) != topic_id
        }
        if recreated:
            self._losses.report(
                f"topic {min(recreated)} was deleted and created again: its unread records are gone"
            )
        return recreated
