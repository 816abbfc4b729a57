"""Throttling: how long a client has to wait, decided in one place (KIP-219, T11).

A throttled request is answered at once, with the time in its answer; then the connection is muted:
its next requests are not read until the time is over. Byte-rate quotas will plug in here; what
exists is the limit on topics that clients make by merely asking for them (S39).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import final

__all__ = ["Quotas"]

AUTO_CREATE_TOPICS_PER_S = 10.0
AUTO_CREATE_BURST = 100.0
CLIENTS_MAX = 1024
THROTTLE_MS_MAX = 30_000


@final
class Quotas:
    """Token buckets per client address; the least recently seen client is forgotten first."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Clients that are remembered."""
        return len(self._buckets)

    def take_auto_create(self, client: str, topics: int, now: float) -> int:
        """How many of `topics` this client may have created now."""
        level, since = self._buckets.pop(client, (AUTO_CREATE_BURST, now))
        level = min(AUTO_CREATE_BURST, level + (now - since) * AUTO_CREATE_TOPICS_PER_S)
        granted = min(topics, int(level))
        self._buckets[client] = (level - granted, now)
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return granted
