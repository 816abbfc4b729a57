"""The thread that renews a lease while the event loop turns.

A short stall of the loop must not cost the lease, so the loop does not renew it. But a process that
hangs must lose what it leads: once the loop has not turned for a whole session timeout, the thread
renews no more, and when the lease has ended and nobody acts by it any longer, it ends the session.
kazoo alone would keep it alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from tidemill.core.clock import Clock
from tidemill.metadata.store.renewed_lease import (
    LEASE_PART,
    RENEWALS_PER_TIMEOUT,
    lease_timeout_s,
)

__all__ = ["LeaseRenewal"]

_TURNS_PER_RENEWAL = 2


@final
class LeaseRenewal:
    """Runs from the first renewal of a session to its end."""

    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        *,
        renew: Callable[[], None],
        lease_until: Callable[[], float],
        hung: Callable[[], None],
    ) -> None:
        """All three are called in the thread; `hung` ends the session."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._renew = renew
        self._lease_until = lease_until
        self._hung = hung
        self._interval_s = lease_timeout_s(timeout_s) / RENEWALS_PER_TIMEOUT
        self._turned_at = clock.boottime()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-lease", daemon=True)

    @property
    def turn_interval_s(self) -> float:
        """How often the loop should say that it turns."""
        return self._interval_s / _TURNS_PER_RENEWAL

    def start(self) -> None:
        self._thread.start()

    def loop_turned(self) -> None:
        self._turned_at = self._clock.boottime()

    def stop(self) -> None:
        """The thread ends by itself, within a moment."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            now = self._clock.boottime()
            if now - self._turned_at <= self._timeout_s:
                self._renew()
            elif now >= self._lease_until() + (1 - LEASE_PART) * self._timeout_s:
                self._hung()
                return
