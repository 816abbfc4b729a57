"""When a broker that cannot reach the store sends its clients away. Pure.

Without a lease a broker leads nothing, and answers Metadata from the last image that it has seen:
who leads now it does not know. A client that asks only this broker would wait for as long as it is
cut off, although the others go on. So after a while its clients are disconnected and no new ones
are admitted until the lease is back: they ask another broker then. Nobody is sent away while
followers vouch for a partition here, or while there is no other broker.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["CUT_OFF_AFTER_S", "CutOff"]

CUT_OFF_AFTER_S: Final = 3.0
"""After the lease has ended: until then others have taken over, as sessions last at most a little
longer than leases. A store that is away for a moment costs no connection."""


@final
class CutOff:
    """Whether this broker is of no use to clients, by what is seen every now and then."""

    def __init__(self) -> None:
        self._since: float | None = None

    def review(self, *, is_of_use: bool, now: float) -> bool:
        """`is_of_use`: it has a lease, a partition that is vouched for, or nobody beside it."""
        if is_of_use:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= CUT_OFF_AFTER_S
