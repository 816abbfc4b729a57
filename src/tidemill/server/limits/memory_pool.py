"""A fixed number of bytes that requests (or answers) of all connections share.

The pool does not allocate; it only counts. Who got a no pauses and is called back, in order, when
others have given bytes back (S2, S40): memory stays bounded whatever the clients do.

Requests that have each arrived in part could wait for each other for ever, with nobody reading and
so nobody noticing that a client has gone. Therefore a pool may let one owner at a time, the debtor,
take more than there is: one request always goes on, and when it is done the next one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.core.errors import invariant

__all__ = ["MemoryPool"]


@final
class MemoryPool:
    """Bytes in use, a limit, and who waits for room."""

    __slots__ = ("_debtor", "_lends", "_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, *, lends: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lends = lends
        self._debtor: object | None = None
        """Whoever holds bytes beyond the limit until it has given everything back."""
        self._waiting: dict[Callable[[], None], None] = {}
        """In the order in which they came; each at most once, so bounded by who exists."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def is_exhausted(self) -> bool:
        return self.used_bytes >= self.limit_bytes

    def try_take(self, size: int, owner: object) -> bool:
        """Take `size` bytes, or say no."""
        if self.used_bytes + size > self.limit_bytes and not self._try_lend(owner):
            return False
        self.used_bytes += size
        return True

    def _try_lend(self, owner: object) -> bool:
        if not self._lends or self._debtor not in (None, owner):
            return False
        self._debtor = owner
        return True

    def take(self, size: int) -> None:
        """Account for bytes that are there already."""
        self.used_bytes += size

    def give(self, size: int, owner: object = None) -> None:
        """Bytes come back; an owner gives all it has."""
        self.used_bytes -= size
        invariant(self.used_bytes >= 0, "more bytes were given back than taken")
        if owner is not None and owner is self._debtor:
            self._debtor = None
        if self._waiting:
            self._wake()

    def wait(self, room: Callable[[], None]) -> None:
        """Call `room` once some bytes were given back; it then tries again."""
        self._waiting[room] = None

    def forget(self, room: Callable[[], None]) -> None:
        """`room` waits no longer."""
        self._waiting.pop(room, None)

    def _wake(self) -> None:
        for _ in range(len(self._waiting)):
            lends = self._lends and self._debtor is None
            if not self._waiting or (self.is_exhausted and not lends):
                break
            room = next(iter(self._waiting))
            del self._waiting[room]
            room()
