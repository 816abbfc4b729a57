"""How far the in-sync replicas agree: one function for both marks.

The *high watermark* is the offset that every in-sync replica has appended; consumers read below it.
The *durable offset* is the offset that every in-sync replica has flushed. Both move through
`agreed_offset`, fed with the log ends for the one and the flushed ends for the other, so

    log_start_offset <= durable_offset <= high_watermark <= log_end_offset

Neither mark ever goes back on a leader, and both stand still while the in-sync set is smaller than
the minimum (KIP-966): what a too small set agrees on is not a promise.
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
