"""A fixed number of bytes that requests (or answers) of all connections share.

The pool counts; it does not allocate. A connection that is refused bytes pauses and is called back,
in order, when others have given bytes back (S2, S40). So memory stays bounded.

Requests that have each arrived in part could wait for each other for ever: no connection would
read, and none would notice that its client has gone. Therefore a pool may let one owner at a time,
the debtor, take more than the limit. So one request always makes progress, then the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.core.errors import invariant

__all__ = ["MemoryPool"]


@final
class MemoryPool:
    """Bytes in use, a limit, and the callbacks that wait for free bytes."""

    __slots__ = ("_debtor", "_lends", "_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, *, lends: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lends = lends
        self._debtor: object | None = None
        """The one owner allowed over the limit; cleared when it has given its bytes back."""
        self._waiting: dict[Callable[[], None], None] = {}
        """In the order of `wait`; each at most once, so bounded by connections and fetches."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def is_exhausted(self) -> bool:
        return self.used_bytes >= self.limit_bytes

    def try_take(self, size: int, owner: object) -> bool:
        """Take `size` bytes; False if the pool has too few."""
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
        """Count bytes that are already in memory, over the limit if need be."""
        self.used_bytes += size

    def give(self, size: int, owner: object = None) -> None:
        """Give bytes back; an `owner` that is named gives all it holds."""
        self.used_bytes -= size
        invariant(self.used_bytes >= 0, "more bytes were given back than taken")
        if owner is not None and owner is self._debtor:
            self._debtor = None
        if self._waiting:
            self._wake()

    def wait(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, when bytes were given back."""
        self._waiting[retry] = None

    def forget(self, retry: Callable[[], None]) -> None:
        """Do not call `retry` any more."""
        self._waiting.pop(retry, None)

    def _wake(self) -> None:
        for _ in range(len(self._waiting)):
            lends = self._lends and self._debtor is None
            if not self._waiting or (self.is_exhausted and not lends):
                break
            retry = next(iter(self._waiting))
            del self._waiting[retry]
            retry()
