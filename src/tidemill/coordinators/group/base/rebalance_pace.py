"""How often one group may rebalance: a burst at once, then one a second (S41).

Every rebalance stops the members' work and costs the coordinator a pass over all of them. A member
that keeps joining and leaving could keep its group in rebalances for ever. With this limit, all
changes within a second share one rebalance.
"""

from __future__ import annotations

from typing import final

__all__ = ["BURST", "INTERVAL_MS", "RebalancePace"]

BURST = 20
"""More than a rolling restart of a small group needs."""
INTERVAL_MS = 1_000


@final
class RebalancePace:
    """A token bucket, stored as the moment at which it will be full again."""

    __slots__ = ("_full_at_ms",)

    def __init__(self) -> None:
        self._full_at_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """How long the next rebalance must wait; 0 if it may begin now."""
        return max(0, self._full_at_ms - now_ms - (BURST - 1) * INTERVAL_MS)

    def count(self, now_ms: int) -> None:
        """Count one rebalance."""
        self._full_at_ms = max(self._full_at_ms, now_ms) + INTERVAL_MS
