"""New producer ids, from blocks that this broker reserves in the store by compare-and-set (T30)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

__all__ = ["ProducerIds"]

BLOCK_SIZE = 1000


@final
class ProducerIds:
    """Ids unique in the cluster; the rest of a block is never used if the process ends."""

    def __init__(self, reserve: Callable[[int], Awaitable[range]]) -> None:
        self._reserve = reserve
        self._block = range(0)

    def try_next(self) -> int | None:
        """The next id, or None when a new block must be reserved first."""
        if not self._block:
            return None
        first = self._block[0]
        self._block = self._block[1:]
        return first

    @property
    def has_any(self) -> bool:
        """Whether `try_next` gives an id."""
        return bool(self._block)

    async def refill(self) -> None:
        """Reserve a block unless there is one; StoreUnavailable if that fails."""
        while not self._block:
            block = await self._reserve(BLOCK_SIZE)
            if not self._block:  # another caller may have reserved one meanwhile
                self._block = block

    async def next(self) -> int:
        """The next id; the store is asked once per block."""
        while (producer_id := self.try_next()) is None:
            await self.refill()
        return producer_id
