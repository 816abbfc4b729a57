"""Metrics of the consumer groups that this broker coordinates.

No label is a group's name, because clients choose the names (S38). `tidemill group describe` shows
the lag of each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, final

from tidemill.replication.partition import Partition
from tidemill.server.request.services import Services

__all__ = ["Lag", "count_groups", "count_rebalances", "measure_lag"]

OFFSETS_MAX = 20_000
"""Committed offsets compared with their logs in one scrape: about 10 ms."""


@final
class Lag(NamedTuple):
    """Records that groups have not read: the maximum of one partition, and the sum."""

    records_max: int
    records_sum: int


def count_groups(services: Services) -> Counter[str]:
    """Groups by state."""
    counted: Counter[str] = Counter()
    for shard in services.groups.shards():
        counted += shard.count_states()
    return counted


def count_rebalances(services: Services) -> int:
    """Rebalances since this broker became the coordinator."""
    return sum(shard.rebalances for shard in services.groups.shards())


def measure_lag(services: Services) -> Lag:
    """Compare committed offsets with the partitions that this broker leads; 0 if too many.

    A negative offset has no lag: the client that committed it chooses where to begin.
    """
    most = total = 0
    for behind in _lags(services):
        most = max(most, behind)
        total += behind
    return Lag(most, total)


def _lags(services: Services) -> Iterator[int]:
    shards = list(services.groups.shards())
    if sum(shard.offsets.count for shard in shards) > OFFSETS_MAX:
        return
    for shard in shards:
        for topic, index, offset in shard.offsets.committed():
            partition = services.replicas.find(topic, index) or _viewed(services, topic, index)
            if partition is not None and partition.is_leader and offset >= 0:
                yield max(0, partition.high_watermark - offset)


def _viewed(services: Services, topic: str, index: int) -> Partition | None:
    """The partition of the base, if the topic is a view."""
    view = services.cluster.image.topic(topic)
    return None if view is None else services.replicas.find(view.view_of, index)
