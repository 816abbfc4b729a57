"""How many replicas must be in sync: one rule for marks, refusals and elections. Pure.

A topic may ask for more replicas in sync than a partition has. If one part capped that and another
did not, producers would be refused where the marks move, or a replica would count as complete that
is not.

While replicas are moved, a partition has both those that come and those that go. What was there
before must suffice until the new ones have caught up, and what stays must suffice afterwards: else
a topic that grows from one replica to three would stop its producers until a copy is there.
"""

from __future__ import annotations

__all__ = ["effective_min_isr"]


def effective_min_isr(configured: int, replicas: int, adding: int = 0, removing: int = 0) -> int:
    """`min.insync.replicas` as it applies to a partition with so many replicas.

    `adding` and `removing` are how many of them come and go by a reassignment.
    """
    return min(configured, replicas - adding, replicas - removing)
