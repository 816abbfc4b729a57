"""Throttling: how long a client has to wait, decided in one place (KIP-219, T11).

A throttled request is answered at once, with the time in its answer; then the connection is muted:
its next requests are not read until the time is over. Byte-rate quotas will plug in here; what
exists is the limit on topics that clients make by merely asking for them (S39).
"""

from __future__ import annotations

from typing import final

from tidemill.server.limits.token_buckets import TokenBuckets

__all__ = ["Quotas"]

AUTO_CREATE_TOPICS_PER_S = 10.0
AUTO_CREATE_BURST = 100.0
THROTTLE_MS_MAX = 30_000


@final
class Quotas:
    """What each client address may still have."""

    def __init__(self) -> None:
        self._auto_creates = TokenBuckets(per_s=AUTO_CREATE_TOPICS_PER_S, burst=AUTO_CREATE_BURST)

    def __len__(self) -> int:
        """Clients that are remembered."""
        return len(self._auto_creates)

    def take_auto_create(self, client: str, topics: int, now: float) -> int:
        """How many of `topics` this client may have created now."""
        return self._auto_creates.take(client, topics, now)
