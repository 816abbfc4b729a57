"""Quotas: how much each client may use, decided in one place (KIP-219, T11).

A throttled request is answered at once, with the throttle time in the answer. Then the connection
is muted: it reads no further requests until that time is over. Byte-rate quotas will plug in here.
The one quota so far limits the topics that clients create by asking for their metadata (S39).
"""

from __future__ import annotations

from typing import Final, final

from tidemill.server.limits.token_buckets import TokenBuckets

__all__ = ["Quotas"]

AUTO_CREATE_TOPICS_PER_S: Final = 10.0
AUTO_CREATE_BURST: Final = 100.0
THROTTLE_MS_MAX: Final = 30_000


@final
class Quotas:
    """What each client address may still use."""

    def __init__(self) -> None:
        self._auto_creates = TokenBuckets(per_s=AUTO_CREATE_TOPICS_PER_S, burst=AUTO_CREATE_BURST)

    def __len__(self) -> int:
        """The number of clients remembered."""
        return len(self._auto_creates)

    def take_auto_create(self, client: str, topics: int, now: float) -> int:
        """How many of `topics` new topics this client may create now."""
        return self._auto_creates.take(client, topics, now)
