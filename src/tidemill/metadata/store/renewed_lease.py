"""A lease by the clock: how long a session that must be renewed allows its owner to act. Pure.

A renewal that was answered says that the store had heard of us no earlier than the renewal was
*sent*, and it ends no session within one timeout of that. The lease lasts two thirds: servers of an
ensemble pass on what they hear with a delay of up to a quarter.

A renewal also reads the head of the metadata, and counts once our image has caught up with what it
read. So whoever has a lease knows everything that is older than two thirds of a timeout: also that
another broker leads now.

The controller forgets who led a partition after `FORMER_LEADER_KEPT_S`, and leaders let replicas go
that lag. So a lease is never longer than in a session of that length, whatever was negotiated.
"""

from __future__ import annotations

from collections import deque
from typing import final

from tidemill.core.limits import FORMER_LEADER_KEPT_S

__all__ = [
    "LEASE_PART",
    "RENEWALS_PER_TIMEOUT",
    "RenewedLease",
    "lease_timeout_s",
    "unanswered_max",
]

LEASE_PART = 2 / 3
RENEWALS_PER_TIMEOUT = 5
_WAITING_MAX = 16
"""Older ones would have ended before they count."""
_NEVER_BEGUN = float("-inf")


def lease_timeout_s(session_timeout_s: float) -> float:
    """The timeout that leases are counted by, and renewed by."""
    return min(session_timeout_s, FORMER_LEADER_KEPT_S)


def unanswered_max(session_timeout_s: float) -> int:
    """How many renewals a server may leave unanswered before another one is tried.

    They take two thirds of the session: the rest is left to find that other server.
    """
    interval_s = lease_timeout_s(session_timeout_s) / RENEWALS_PER_TIMEOUT
    return int(LEASE_PART * session_timeout_s / interval_s)


@final
class RenewedLease:
    """The lease of one session after the other; what the image knows stays."""

    def __init__(self) -> None:
        self.until = _NEVER_BEGUN
        self._known = -1
        self._waiting: deque[tuple[int, float]] = deque(maxlen=_WAITING_MAX)

    def end(self) -> None:
        """The session is over, or a new one begins."""
        self.until = _NEVER_BEGUN
        self._waiting.clear()

    def renewed(self, sent_at: float, timeout_s: float, head_version: int) -> None:
        """A renewal was answered; behind it the head had this version, -1 if there was none."""
        until = sent_at + LEASE_PART * timeout_s
        if head_version <= self._known:
            self.until = max(self.until, until)
        else:
            self._waiting.append((head_version, until))

    def caught_up(self, head_version: int) -> None:
        """The image has all that is stored under a head of this version."""
        self._known = max(self._known, head_version)
        while self._waiting and self._waiting[0][0] <= self._known:
            self.until = max(self.until, self._waiting.popleft()[1])
