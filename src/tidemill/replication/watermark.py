"""How far the in-sync replicas agree: one function for both marks. Pure.

Every in-sync replica has appended everything below the *high watermark*; consumers read below it.
Every in-sync replica has flushed everything below the *durable offset*. `agreed_offset` computes
both, the first from the log ends and the second from the flushed ends, so

    log_start_offset <= durable_offset <= high_watermark <= log_end_offset

Neither mark goes back on a leader, and both stand still while the in-sync set is smaller than the
minimum (KIP-966): the agreement of too small a set is not a promise.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["agreed_offset"]


def agreed_offset(
    positions: Iterable[int], *, in_sync_count: int, in_sync_min: int, current: int
) -> int:
    """The new mark, given the positions of the maximal in-sync set (KIP-497: old and proposed)."""
    if in_sync_count < in_sync_min:
        return current
    return max(current, min(positions, default=current))
