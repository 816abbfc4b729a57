"""The coordination store in memory: one server, several sessions, all in one thread.

For simulations and tests, which control all events: `expire` ends a session, `suspend` and `resume`
interrupt its connection, and the `deliver` hook decides when watches are called. The default hook
calls them at once; a simulator may delay calls or merge them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from tidemill.core.errors import StoreUnavailable
from tidemill.metadata.store.coord import (
    Check,
    Create,
    Delete,
    Node,
    Op,
    SessionState,
    Watchers,
    check_multi,
    checked_op,
)

__all__ = ["MemoryCoord", "MemoryCoordServer"]

Deliver = Callable[[Callable[[], None]], None]


def _at_once(call: Callable[[], None]) -> None:
    call()


@final
class MemoryCoordServer:
    """The nodes, shared by all sessions."""

    def __init__(self, deliver: Deliver = _at_once) -> None:
        self._deliver = deliver
        self._nodes: dict[str, Node] = {}
        self._paths: list[str] = []
        self._owners: dict[str, MemoryCoord] = {}
        """Ephemeral nodes, and the sessions that own them."""
        self._sessions: list[MemoryCoord] = []

    def session(self) -> MemoryCoord:
        """A new client; `start` opens its session."""
        made = MemoryCoord(self)
        self._sessions.append(made)
        return made

    def forget(self, session: MemoryCoord) -> None:
        """Keep nothing of a client whose session has ended, and which will not open another."""
        self._sessions.remove(session)
        session._watchers = Watchers()
        session._state_callbacks.clear()

    def expire(self, session: MemoryCoord) -> None:
        """End a session on the server. A suspended client learns this on `resume`."""
        self._drop_ephemerals(session)
        session._expired()

    def suspend(self, session: MemoryCoord) -> None:
        """Disconnect a client; its session lives until `expire`."""
        session._enter(SessionState.SUSPENDED)

    def resume(self, session: MemoryCoord) -> None:
        """Reconnect a client: to its session, or to LOST if that has expired."""
        session._resumed()

    def snapshot(self) -> MemoryCoordServer:
        """The nodes as they are now, for reads that may be old."""
        copy = MemoryCoordServer()
        copy._nodes, copy._paths = dict(self._nodes), list(self._paths)
        return copy

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def scan(self, prefix: str) -> list[tuple[str, Node]]:
        """All nodes whose path starts with `prefix`, sorted by path; for tests."""
        found: list[tuple[str, Node]] = []
        for path in self._paths[bisect_left(self._paths, prefix) :]:
            if not path.startswith(prefix):
                break
            found.append((path, self._nodes[path]))
        return found

    def children(self, path: str) -> list[tuple[str, Node]]:
        below = f"{path}/"
        return [found for found in self.scan(below) if "/" not in found[0][len(below) :]]

    def multi(self, session: MemoryCoord, ops: Sequence[Op]) -> None:
        drafts: dict[str, Node | None] = {}
        for op in ops:
            now = drafts[op.path] if op.path in drafts else self._nodes.get(op.path)
            drafts[op.path] = checked_op(op, now)
        self._keep(drafts)
        for op in ops:
            if isinstance(op, Create) and op.ephemeral:
                self._owners[op.path] = session
            elif isinstance(op, Create | Delete):
                self._owners.pop(op.path, None)
        self._tell([op.path for op in ops if not isinstance(op, Check)])

    def _keep(self, drafts: dict[str, Node | None]) -> None:
        for path, node in drafts.items():
            if node is None:
                self._remove(path)
                continue
            if path not in self._nodes:
                insort(self._paths, path)
            self._nodes[path] = node

    def _remove(self, path: str) -> None:
        if self._nodes.pop(path, None) is not None:
            del self._paths[bisect_left(self._paths, path)]

    def _drop_ephemerals(self, session: MemoryCoord) -> None:
        gone = [path for path, owner in self._owners.items() if owner is session]
        for path in gone:
            del self._owners[path]
            self._remove(path)
        self._tell(gone)

    def _tell(self, paths: Sequence[str]) -> None:
        for path in dict.fromkeys(paths):
            for session in self._sessions:
                self._deliver(partial(session._changed, path))


@final
class MemoryCoord:
    """One client of a `MemoryCoordServer`."""

    def __init__(self, server: MemoryCoordServer) -> None:
        self._server = server
        self._state = SessionState.LOST
        self._expired_unseen = False
        self._watchers = Watchers()
        self._state_callbacks: list[Callable[[SessionState], None]] = []
        self.ends_by_clock = False

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def lease_until(self) -> float:
        """Nothing ends a connected session here but `expire`, which tells its owner at once."""
        return math.inf if self._state is SessionState.CONNECTED else -math.inf

    def caught_up(self, head_version: int) -> None:
        """The lease has no end."""

    @property
    def is_ended(self) -> bool:
        """Whether the server has ended the session, known to the client or not."""
        return self._expired_unseen or self._state is SessionState.LOST

    async def start(self) -> None:
        self._expired_unseen = False
        self._enter(SessionState.CONNECTED)

    async def get(self, path: str, newest: bool = False) -> Node | None:
        self._check()
        return self._server.get(path)

    async def children(self, path: str) -> list[tuple[str, Node]]:
        self._check()
        return self._server.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        check_multi(ops)
        self._check()
        self._server.multi(self, ops)

    def watch(self, path: str, changed: Callable[[str], None]) -> None:
        self._watchers.add(path, changed)

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        self._state_callbacks.append(changed)

    async def close(self) -> None:
        if self._state is not SessionState.LOST:
            self._enter(SessionState.LOST)
            self._server._drop_ephemerals(self)

    def _check(self) -> None:
        if self._state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"the session is {self._state.value}")

    def _changed(self, path: str) -> None:
        if self._state is SessionState.CONNECTED:
            self._watchers.tell(path)

    def _enter(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for changed in self._state_callbacks:
            changed(state)

    def _expired(self) -> None:
        if self._state is SessionState.SUSPENDED:
            self._expired_unseen = True
        else:
            self._enter(SessionState.LOST)

    def _resumed(self) -> None:
        if self._state is not SessionState.SUSPENDED:
            return
        if self._expired_unseen:
            self._enter(SessionState.LOST)
            return
        self._enter(SessionState.CONNECTED)
        self._watchers.tell_all()
