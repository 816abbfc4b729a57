"""The lease: whether this broker may act as an owner right now. The one door to that question.

HOT PATH: every append and every fetched partition asks.

A state of the session alone does not do: after a stop that was longer than the session, a client
still says CONNECTED for a while. So the store also says until when it has told nobody that the
session is over, and every act of an owner compares that with the clock. Boot time is that clock: it
runs while the machine sleeps. On one host the lease is the process itself and has no end.

A broker that is registered but not let in by the controller is *fenced*: it leads nothing yet. The
controller itself may be fenced: after a restart of everything, all brokers are.
"""

from __future__ import annotations

from typing import Final, Protocol, final

from tidemill.core.clock import Clock
from tidemill.metadata.store.coord import SessionState

__all__ = ["Lease"]

_NEVER: Final = float("inf")


class _Session(Protocol):
    @property
    def state(self) -> SessionState: ...

    @property
    def lease_until(self) -> float: ...

    @property
    def ends_by_clock(self) -> bool: ...


@final
class Lease:
    """What this broker's session and registration allow."""

    def __init__(self, session: _Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self.registered = False
        """Whether this broker is registered in the session."""
        self.fenced = True
        """Whether the controller has not let this registration in."""
        self.ends_by_clock = session.ends_by_clock
        """Followers vouch for leaders that the store does not answer; see `Coord`."""
        self.has_standby = False
        """Another process may take this broker's place while this one still runs (`standby.py`)."""

    @property
    def is_held(self) -> bool:
        """Whether nobody can have been told that this registration is over."""
        if not self.registered:
            return False
        until = self._session.lease_until
        if until == _NEVER:  # only of a session that is connected
            return True
        return self._session.state is SessionState.CONNECTED and self._clock.boottime() < until

    @property
    def is_let_in(self) -> bool:
        """Whether this registration was let in, as far as this broker knows without the store.

        Never certain where a stand-by may have replaced it: nobody who vouches would know.
        """
        return self.registered and not self.fenced and not self.has_standby

    @property
    def vouches(self) -> bool:
        """Whether our fetches vouch for leaders: if we are elected, it is this process that knows.

        A stand-by that took our place could be elected, and would not be silent for us.
        """
        return self.ends_by_clock and not self.has_standby

    @property
    def may_act(self) -> bool:
        """Whether this broker may lead, acknowledge, serve reads and coordinate."""
        return not self.fenced and self.is_held
