"""A fixed number of bytes that requests (or answers) of all connections share.

The pool does not allocate; it only says yes or no. Who got a no pauses reading and is called back,
in order, when others have given bytes back (S2, S40): memory stays bounded whatever the clients do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

__all__ = ["MemoryPool"]


@final
class MemoryPool:
    """Bytes in use, a limit, and who waits for room."""

    __slots__ = ("_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def try_take(self, size: int) -> bool:
        """Take `size` bytes, or say no. An empty pool always says yes: one request must fit."""
        if self.used_bytes and self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    def wait(self, room: Callable[[], None]) -> None:
        """Call `room` once some bytes were given back; it then tries again."""
        self._waiting.append(room)

    def give(self, size: int) -> None:
        self.used_bytes -= size
        assert self.used_bytes >= 0
        for _ in range(len(self._waiting)):
            if self.used_bytes >= self.limit_bytes:
                break
            self._waiting.popleft()()
