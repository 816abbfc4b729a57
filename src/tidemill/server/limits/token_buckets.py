"""Rates per client: a bucket of tokens each, which fills steadily and holds no more than a burst.

The least recently seen client is forgotten first, so that strangers cannot fill the memory; it
starts anew with a full bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import final

__all__ = ["CLIENTS_MAX", "TokenBuckets"]

CLIENTS_MAX = 1024


@final
class TokenBuckets:
    """Token buckets by client."""

    def __init__(self, *, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The level of each bucket, and when it had it."""

    def __len__(self) -> int:
        """Clients that are remembered."""
        return len(self._levels)

    def take(self, client: str, wanted: int, now: float) -> int:
        """How many of the wanted tokens this client gets now."""
        level, since = self._levels.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_s)
        granted = min(wanted, int(level))
        self._levels[client] = (level - granted, now)
        if len(self._levels) > CLIENTS_MAX:
            self._levels.popitem(last=False)
        return granted
