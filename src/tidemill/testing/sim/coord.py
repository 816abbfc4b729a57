"""One host's session with the coordination store, with a network in between.

The store itself is the one in memory (metadata/store/memory_store.py), which never fails or waits.
Here each call takes time in both directions, so that a crash can fall between a change and its
answer, and a lost connection leaves a change in doubt. Watches fire late, each after its own delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import final

from tidemill.core.errors import StoreUnavailable
from tidemill.metadata.store.coord import Node, Op, SessionState, check_multi
from tidemill.metadata.store.memory_store import MemoryCoordServer

__all__ = ["SimCoord"]


@final
class SimCoord:
    """`Coord` with a network in between. Its watchers run on the host that created the watch."""

    def __init__(
        self,
        server: MemoryCoordServer,
        *,
        delay_s: Callable[[], float],
        observe: Callable[[str, str], None],
    ) -> None:
        self._server = server
        self._session = server.session()
        self._delay_s = delay_s
        self._observe = observe

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def lease_until(self) -> float:
        return self._session.lease_until

    def expire(self) -> None:
        """The server ends the session."""
        self._server.expire(self._session)

    def suspend(self) -> None:
        """The client loses its connection to the server."""
        self._server.suspend(self._session)

    def resume(self) -> None:
        self._server.resume(self._session)

    # --- Coord -----------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._travel()
        await self._session.start()
        await self._travel()

    async def get(self, path: str, newest: bool = False) -> Node | None:
        await self._travel()
        node = await self._session.get(path, newest)
        await self._travel()
        self._check_answered()
        return node

    async def children(self, path: str) -> list[tuple[str, Node]]:
        await self._travel()
        found = await self._session.children(path)
        await self._travel()
        self._check_answered()
        return found

    async def multi(self, ops: Sequence[Op]) -> None:
        check_multi(ops)
        await self._travel()
        for op in ops:
            self._observe(type(op).__name__, op.path)
        await self._session.multi(ops)
        await self._travel()
        self._check_answered()

    def watch(self, path: str, changed: Callable[[str], None]) -> None:
        context = copy_context()
        loop = asyncio.get_running_loop()

        def tell(watched: str) -> None:
            loop.call_later(self._delay_s(), changed, watched, context=context)

        self._session.watch(path, tell)

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        context = copy_context()
        self._session.on_state(lambda state: context.copy().run(changed, state))

    async def close(self) -> None:
        await self._travel()
        await self._session.close()

    async def _travel(self) -> None:
        await asyncio.sleep(self._delay_s())

    def _check_answered(self) -> None:
        """Disconnected meanwhile: the request may have taken effect, but its answer is lost."""
        if self._session.state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"no answer: the session is {self._session.state.value}")
