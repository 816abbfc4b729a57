"""Rates per client: each has a bucket of tokens that fills steadily and holds at most one burst.

The least recently seen client is forgotten first, so that strangers cannot fill the memory. A
forgotten client starts again with a full bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

__all__ = ["CLIENTS_MAX", "TokenBuckets"]

CLIENTS_MAX: Final = 1024


@final
class TokenBuckets:
    """Token buckets by client."""

    def __init__(self, *, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The level of each bucket, and the time of that level."""

    def __len__(self) -> int:
        """The number of clients remembered."""
        return len(self._levels)

    def take(self, client: str, wanted: int, now: float) -> int:
        """Take up to `wanted` tokens; returns how many this client gets now."""
        level, since = self._levels.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_s)
        granted = min(wanted, int(level))
        self._levels[client] = (level - granted, now)
        if len(self._levels) > CLIENTS_MAX:
            self._levels.popitem(last=False)
        return granted
