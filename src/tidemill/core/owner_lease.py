"""Whether this broker may act as an owner right now, as the acts of owners see it. Pure.

A leader that answers, or a coordinator, must know that no other broker has been told to take over.
`metadata/lease.py` decides; every act of an owner asks here, at the moment it acts.
"""

from __future__ import annotations

from typing import Protocol, final

__all__ = ["ALWAYS", "OwnerLease"]


class OwnerLease(Protocol):
    """`Lease`, as far as owners need it."""

    @property
    def may_act(self) -> bool:
        """Whether this broker may lead, acknowledge, serve reads and coordinate."""
        ...

    @property
    def is_let_in(self) -> bool:
        """Whether this registration was let in, and is over only if others were told so."""
        ...


@final
class _Always:
    """For parts that are used without a cluster."""

    may_act = True
    is_let_in = True


ALWAYS: OwnerLease = _Always()
