"""Metrics of the transactions that this broker coordinates.

No label is a transactional id, because clients choose them (S38). `tidemill transaction list` shows
each of them.
"""

from __future__ import annotations

from collections import Counter

from tidemill.server.request.services import Services

__all__ = ["count_transactions", "measure_oldest_s"]


def count_transactions(services: Services) -> Counter[str]:
    """Transactional ids by state."""
    counted: Counter[str] = Counter()
    for shard in services.transactions.shards():
        counted += shard.count_states()
    return counted


def measure_oldest_s(services: Services) -> float:
    """The age of the oldest transaction that is not complete; 0 if there is none."""
    starts = [shard.oldest_start_ms() for shard in services.transactions.shards()]
    now_ms = services.clock.wall_ms()
    return max([0, *(now_ms - start for start in starts if start is not None)]) / 1000
