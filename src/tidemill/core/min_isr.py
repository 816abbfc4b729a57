"""How many replicas must be in sync: one rule for marks, refusals and elections. Pure.

A topic may ask for more replicas in sync than a partition has. If one part capped that and another
did not, producers would be refused where the marks move, or a replica would count as complete that
is not.
"""

from __future__ import annotations

__all__ = ["effective_min_isr"]


def effective_min_isr(configured: int, replica_count: int) -> int:
    """`min.insync.replicas` as it applies to a partition with so many replicas."""
    return min(configured, replica_count)
