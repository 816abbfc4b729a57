"""One host's session with the coordination store, with a network in between.

The store itself is the one in memory (metadata/store/memory_store.py), which never fails or waits.
Here each call takes time in both directions, so that a crash can fall between a change and its
answer, and a lost connection leaves a change in doubt. Watches fire late, each after its own delay.

With a session timeout the session lives by the clock, as with ZooKeeper:

    client   renews every fifth of the timeout while its host runs and it believes to be connected;
             its lease ends 2/3 of the timeout after the last renewal that was answered was *sent*,
             once its image has caught up with the head behind it (metadata/store/renewed_lease.py)
    server   ends a session a whole timeout after it last heard of it, and not before

So a lease is over before anyone can be told that the session is. The client sees its state late:
a host that is paused beyond its session still says CONNECTED for a moment when it goes on. Whoever
has a lease knows all that is older than it, however late its watches are.

Faults: `suspend` and `resume` the connection; `doubts_one_in`, a multi may be done, not done, or
done later, and its caller is not told; `watch_delay_s_max`; `enter_minority`, the server that this
client is connected to has lost its quorum: it answers reads from the past and confirms nothing.
`expire` ends the session at once, also while it has a lease: only for dead hosts and for tests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import final

from tidemill.core.errors import StoreUnavailable
from tidemill.core.rng import Rng, SeededRng
from tidemill.metadata.store.coord import CoordConflict, Node, Op, SessionState, check_multi
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.metadata.store.renewed_lease import RENEWALS_PER_TIMEOUT, RenewedLease
from tidemill.testing.sim.loop import SimHost

__all__ = ["SimCoord"]

LATE_MULTI_S_MAX = 0.3
MINORITY_TIMEOUT_S = 1.0
SEES_LATE_S_MAX = 0.04
"""How long kazoo was seen to say CONNECTED after a pause that was longer than its session."""
_STEPS = 1 << 20
_HEAD = "/head"


@final
class SimCoord:
    """`Coord` with a network in between. Its watchers run on the host that created the watch."""

    def __init__(
        self,
        server: MemoryCoordServer,
        *,
        delay_s: Callable[[], float],
        observe: Callable[[str, str], None],
        session_timeout_s: float = math.inf,
        host: SimHost | None = None,
        rng: Rng | None = None,
    ) -> None:
        """Without `session_timeout_s` the session lives until it is expired."""
        self._server = server
        self._session = server.session()
        self._delay_s = delay_s
        self._observe = observe
        self._timeout_s = session_timeout_s
        self.ends_by_clock = session_timeout_s < math.inf
        self._host = host or SimHost("outside")
        self._rng = rng or SeededRng(0)
        self._seen = SessionState.LOST
        """The state that the client knows of."""
        self._callbacks: list[tuple[Context, Callable[[SessionState], None]]] = []
        self._session_number = 0
        self._lease = RenewedLease()
        self._heard_at = 0.0
        """When the server last heard of the session."""
        self._old_nodes: MemoryCoordServer | None = None
        """What a server without its quorum knows."""
        self.doubts_one_in = 0
        """How often the outcome of a multi stays unknown; 0: never."""
        self.watch_delay_s_max = 0.0
        """Additional delay of watches."""
        self._session.on_state(self._state_changed)

    @property
    def state(self) -> SessionState:
        return self._seen

    @property
    def lease_until(self) -> float:
        if self._seen is SessionState.LOST:
            return -math.inf
        return self._lease.until

    def caught_up(self, head_version: int) -> None:
        self._lease.caught_up(head_version)

    @property
    def is_ended(self) -> bool:
        """Whether the server has ended the session, known to the client or not."""
        return self._session.is_ended

    # --- faults ----------------------------------------------------------------------------------

    def expire(self) -> None:
        """The server ends the session."""
        self._observe("expire", self._host.name)
        self._server.expire(self._session)

    def bury(self) -> None:
        """Nothing of a host that is gone is kept, if its session has ended."""
        if self._session.is_ended:
            self._server.forget(self._session)
            self._callbacks.clear()

    def suspend(self) -> None:
        """The client loses its connection to the server.

        A session that has ended stays ended, also if the client has not seen that yet.
        """
        if not self._session.is_ended:
            self._server.suspend(self._session)

    def resume(self) -> None:
        self._server.resume(self._session)

    def enter_minority(self) -> None:
        """The server that this client is connected to is cut off from the other servers."""
        self._old_nodes = self._server.snapshot()
        self.suspend()

    def leave_minority(self) -> None:
        self._old_nodes = None
        self._server.resume(self._session)

    # --- Coord -----------------------------------------------------------------------------------

    async def start(self) -> None:
        sent = self._boottime()
        await self._travel()
        if self._old_nodes is not None:
            raise StoreUnavailable("the store has no quorum (simulated)")
        self._session_number += 1
        self._heard_at = asyncio.get_running_loop().time()
        self._lease.end()
        self._lease.renewed(sent, self._timeout_s, self._head_version())
        await self._session.start()
        if self._timeout_s < math.inf:
            self._renew_later(self._session_number)
            self._expire_later(self._session_number)
        await self._travel()

    async def get(self, path: str, newest: bool = False) -> Node | None:
        await self._travel()
        if self._old_nodes is not None and not newest:
            return self._old_nodes.get(path)
        self._hear()
        node = await self._session.get(path, newest)
        await self._travel()
        self._check_answered()
        return node

    async def children(self, path: str) -> list[tuple[str, Node]]:
        await self._travel()
        if self._old_nodes is not None:
            return self._old_nodes.children(path)
        self._hear()
        found = await self._session.children(path)
        await self._travel()
        self._check_answered()
        return found

    async def multi(self, ops: Sequence[Op]) -> None:
        check_multi(ops)
        await self._travel()
        if self._old_nodes is not None:
            await asyncio.sleep(MINORITY_TIMEOUT_S)
            raise StoreUnavailable("the store has no quorum (simulated)")
        for op in ops:
            self._observe(type(op).__name__, op.path)
        self._hear()
        if self.doubts_one_in and self._rng.below(self.doubts_one_in) == 0:
            await self._leave_in_doubt(ops)
        await self._session.multi(ops)
        await self._travel()
        self._check_answered()

    def watch(self, path: str, changed: Callable[[str], None]) -> None:
        context = copy_context()
        loop = asyncio.get_running_loop()
        on_their_way: dict[str, None] = {}

        def call(watched: str) -> None:
            on_their_way.pop(watched, None)
            changed(watched)

        def tell(watched: str) -> None:
            if watched in on_their_way:
                return  # merged: the call that is on its way comes after this change, too
            on_their_way[watched] = None
            delay_s = self._delay_s() + self._draw_s(self.watch_delay_s_max)
            loop.call_later(delay_s, call, watched, context=context)

        self._session.watch(path, tell)

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        self._callbacks.append((copy_context(), changed))

    async def close(self) -> None:
        await self._travel()
        await self._session.close()

    async def _travel(self) -> None:
        await asyncio.sleep(self._delay_s())

    def _check_answered(self) -> None:
        """Disconnected meanwhile: the request may have taken effect, but its answer is lost."""
        if self._session.state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"no answer: the session is {self._session.state.value}")

    async def _leave_in_doubt(self, ops: Sequence[Op]) -> None:
        """Do it now, later or not at all; the caller cannot tell which."""
        fate = self._rng.below(3)
        self._observe("doubt", str(fate))
        if fate == 0:
            with suppress(CoordConflict):
                await self._session.multi(ops)
        elif fate == 1:
            self._on_server(
                self._draw_s(LATE_MULTI_S_MAX), self._come_late, ops, self._session_number
            )
        await self._travel()
        raise StoreUnavailable("no answer (simulated)")

    def _come_late(self, ops: Sequence[Op], number: int) -> None:
        if number == self._session_number and not self._session.is_ended:
            with suppress(CoordConflict):
                self._server.multi(self._session, ops)

    # --- the client's view -----------------------------------------------------------------------

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED and self._old_nodes is not None:
            return  # it is still connected, to a server that cannot do anything
        host = self._host
        if host.alive and host.paused_at is not None:
            host.on_resume.append(self._see_late)
        elif host.alive:
            self._see()

    def _see_late(self) -> None:
        self._on_server(self._draw_s(SEES_LATE_S_MAX), self._see)

    def _see(self) -> None:
        host, state = self._host, self._session.state
        if host.alive and host.paused_at is not None:
            host.on_resume.append(self._see_late)
        elif host.alive and state is not self._seen:
            self._seen = state
            for context, changed in self._callbacks:
                context.copy().run(changed, state)

    # --- the lease, and the end of the session ---------------------------------------------------

    def _boottime(self) -> float:
        return self._host.time(asyncio.get_running_loop().time())

    def _renew_later(self, number: int) -> None:
        """In the context of the host: a host that is paused or dead renews nothing."""
        wait_s = self._timeout_s / RENEWALS_PER_TIMEOUT
        asyncio.get_running_loop().call_later(wait_s, self._renew, number, copy_context())

    def _renew(self, number: int, context: Context) -> None:
        if number != self._session_number or self._seen is SessionState.LOST:
            return
        if self._seen is SessionState.CONNECTED:
            sent = self._boottime()
            self._on_server(self._delay_s(), self._renewal_arrived, number, sent, context)
        self._renew_later(number)

    def _renewal_arrived(self, number: int, sent: float, context: Context) -> None:
        loop = asyncio.get_running_loop()
        connected = self._session.state is SessionState.CONNECTED
        if number != self._session_number or not connected:
            return
        self._hear()
        head_version = self._head_version()
        loop.call_later(self._delay_s(), self._renewed, number, sent, head_version, context=context)

    def _renewed(self, number: int, sent: float, head_version: int) -> None:
        if number == self._session_number:
            self._lease.renewed(sent, self._timeout_s, head_version)

    def _head_version(self) -> int:
        head = self._server.get(_HEAD)
        return -1 if head is None else head.version

    def _hear(self) -> None:
        if self._session.state is SessionState.CONNECTED:
            self._heard_at = asyncio.get_running_loop().time()

    def _expire_later(self, number: int) -> None:
        due_at = self._heard_at + self._timeout_s
        wait_s = max(0.0, due_at - asyncio.get_running_loop().time())
        self._on_server(wait_s, self._maybe_expire, number)

    def _maybe_expire(self, number: int) -> None:
        if number != self._session_number or self._session.is_ended:
            return
        now = asyncio.get_running_loop().time()
        if now < self._heard_at + self._timeout_s:
            self._expire_later(number)
        else:
            self.expire()

    def _on_server(self, wait_s: float, action: Callable[..., None], *args: object) -> None:
        """In no host's context: it happens whatever becomes of this host."""
        asyncio.get_running_loop().call_later(wait_s, action, *args, context=Context())

    def _draw_s(self, longest_s: float) -> float:
        return longest_s * self._rng.below(_STEPS) / _STEPS if longest_s else 0.0
