"""What the metrics page says about consumer groups, of those that this broker coordinates.

No label is a group's name: clients choose those (S38). Who wants to know which group lags asks
`tidemill group describe`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, final

from tidemill.server.request.services import Services

__all__ = ["Lag", "count_groups", "count_rebalances", "measure_lag"]

OFFSETS_MAX = 20_000
"""Committed offsets that are compared with their logs at one scrape: about 10 ms."""


@final
class Lag(NamedTuple):
    """Records that groups have yet to read: the most of one offset, and of all together."""

    records_max: int
    records_sum: int


def count_groups(services: Services) -> Counter[str]:
    """Groups by state."""
    counted: Counter[str] = Counter()
    for shard in services.groups.shards():
        counted += shard.count_states()
    return counted


def count_rebalances(services: Services) -> int:
    """Since this broker became their coordinator."""
    return sum(shard.rebalances for shard in services.groups.shards())


def measure_lag(services: Services) -> Lag:
    """Compare committed offsets with the partitions that this broker leads; none if too many."""
    most = total = 0
    for behind in _lags(services):
        most = max(most, behind)
        total += behind
    return Lag(most, total)


def _lags(services: Services) -> Iterator[int]:
    shards = list(services.groups.shards())
    if sum(shard.offset_count for shard in shards) > OFFSETS_MAX:
        return
    for shard in shards:
        for topic, index, offset in shard.committed():
            partition = services.replicas.find(topic, index)
            if partition is not None and partition.is_leader:
                yield max(0, partition.high_watermark - offset)
