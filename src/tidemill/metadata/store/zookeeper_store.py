"""The coordination store of several hosts: ZooKeeper, by kazoo.

A path is a ZooKeeper node below the chroot. Folders (`/pages`, `/brokers`) are nodes without a
value, made when something is to be put into them; the contract does not see them.

The lease ends by the clock (`renewed_lease.py`). It is renewed by a write: a server that is cut off
from the majority would confirm a mere read. The same write goes before a read that must be the
newest.

kazoo has three threads, and `lease_renewal.py` a fourth. All that they tell crosses to the event
loop, but for renewals: a stall of the loop must not cost the lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar, final

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

from tidemill.core.clock import Clock
from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.core.errors import StoreUnavailable
from tidemill.metadata.store.coord import (
    CoordConflict,
    Create,
    Delete,
    Node,
    Op,
    SessionState,
    check_multi,
)
from tidemill.metadata.store.lease_renewal import LeaseRenewal
from tidemill.metadata.store.renewed_lease import RenewedLease, lease_timeout_s
from tidemill.metadata.store.zookeeper_auth import read_auth
from tidemill.metadata.store.zookeeper_session import ZookeeperSession
from tidemill.metadata.store.zookeeper_watches import ZookeeperWatches

__all__ = ["LeasePaths", "ZookeeperCoord"]

_T = TypeVar("_T")
_log = logging.getLogger("tidemill.metadata")

_ANSWER_TIMEOUTS = 2
"""Session timeouts until a request counts as unanswered; kazoo reports a lost connection sooner."""
_CLOSE_S = 3.0
_MISFITS = {
    NodeExistsError: "exists already",
    NoNodeError: "does not exist",
    BadVersionError: "has another version",
    NotEmptyError: "is a folder with nodes in it",
}


@final
class LeasePaths(NamedTuple):
    """The nodes that a renewal writes and reads."""

    renew: str
    """Written and never read; of this broker alone."""
    head: str
    registration: str
    """Ephemeral. If another session has made it again, ours is over for everybody else."""


@final
class ZookeeperCoord:
    """This process's session with ZooKeeper."""

    def __init__(self, config: ZookeeperConfig, clock: Clock, paths: LeasePaths) -> None:
        self._config = config
        self._clock = clock
        self._paths = paths
        self._session: ZookeeperSession | None = None
        self._renewal: LeaseRenewal | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state = SessionState.LOST
        self._is_registered = False
        self._lease = RenewedLease()
        self._lease_lock = threading.Lock()
        self._watches = ZookeeperWatches()
        self._state_callbacks: list[Callable[[SessionState], None]] = []
        self.ends_by_clock = True

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def lease_until(self) -> float:
        return -math.inf if self._state is SessionState.LOST else self._lease.until

    def caught_up(self, head_version: int) -> None:
        with self._lease_lock:
            self._lease.caught_up(head_version)

    # --- start and close -------------------------------------------------------------------------

    async def start(self) -> None:
        """Open a session. UserError: the credentials, or a file that is named for them, are bad."""
        await self._release()
        self._loop = loop = asyncio.get_running_loop()
        session = ZookeeperSession(
            self._config, read_auth(self._config.auth_file), changed=self._changed_in_thread
        )
        self._session = session
        folders = [_parent(path) for path in self._paths if _parent(path)]
        try:
            await loop.run_in_executor(None, session.open, folders, [self._paths.renew])
            self._state = SessionState.SUSPENDED  # a lease is counted, but nobody acts yet
            await self._first_renewal(session)
        except BaseException:
            self._state = SessionState.LOST
            await self._release()
            raise
        self._begin_renewals(session)
        self._watches.connected(session)
        self._enter(SessionState.CONNECTED)

    async def _first_renewal(self, session: ZookeeperSession) -> None:
        """The registration of an earlier life may still be there: only the head matters."""
        sent_at = self._clock.boottime()
        await self._written(session)
        stat = await self._answered(session, session.answer(session.exists(self._paths.head)))
        with self._lease_lock:
            head_version = -1 if stat is None else stat.version
            self._lease.renewed(sent_at, lease_timeout_s(session.timeout_s), head_version)

    def _begin_renewals(self, session: ZookeeperSession) -> None:
        def hung() -> None:
            _log.error("the event loop hangs: the session with ZooKeeper is closed")
            session.close()

        self._renewal = LeaseRenewal(
            self._clock,
            session.timeout_s,
            renew=lambda: self._renew(session),
            lease_until=lambda: self._lease.until,
            hung=hung,
        )
        self._renewal.start()
        self._turn()

    async def close(self) -> None:
        if self._state is not SessionState.LOST:
            self._enter(SessionState.LOST)
        await self._release()

    async def _release(self) -> None:
        """Give up the session that is open, or that was lost."""
        session, self._session = self._session, None
        renewal, self._renewal = self._renewal, None
        self._watches.disconnected()
        self._is_registered = False
        with self._lease_lock:
            self._lease.end()
        if self._beat is not None:
            self._beat.cancel()
        if renewal is not None:
            renewal.stop()
        if session is not None:
            await self._closed(session)

    async def _closed(self, session: ZookeeperSession) -> None:
        """Close it, but wait only for a server that answers: else it ends by its timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._close_aside(session)

    def _close_aside(self, session: ZookeeperSession) -> asyncio.Future[None]:
        """In a thread that nobody has to wait for, also when the process ends."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        session.is_over = True

        def settle() -> None:
            if not closed.done():
                closed.set_result(None)

        def close() -> None:
            session.close()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle)

        threading.Thread(target=close, name="tidemill-coord-close", daemon=True).start()
        return closed

    # --- nodes -----------------------------------------------------------------------------------

    async def get(self, path: str, newest: bool = False) -> Node | None:
        session = self._open_session()
        if newest:
            await self._written(session)
        return await self._read(session, path)

    async def _written(self, session: ZookeeperSession) -> None:
        """What is read from now on is not older than this call."""
        try:
            await self._answered(session, session.answer(session.write(self._paths.renew)))
        except NoNodeError:  # somebody has removed it
            with suppress(NodeExistsError):
                made = session.answer(session.make_node(self._paths.renew))
                await self._answered(session, made)

    async def _read(self, session: ZookeeperSession, path: str) -> Node | None:
        try:
            value, stat = await self._answered(session, session.answer(session.get(path)))
        except NoNodeError:
            return None
        return None if value is None else Node(value, stat.version)

    async def children(self, path: str) -> list[tuple[str, Node]]:
        session = self._open_session()
        try:
            names = await self._answered(session, session.answer(session.children(path)))
        except NoNodeError:
            return []
        paths = sorted(f"{path}/{name}" for name in names)
        nodes = await asyncio.gather(*(self._read(session, one) for one in paths))
        return [(one, node) for one, node in zip(paths, nodes, strict=True) if node is not None]

    async def multi(self, ops: Sequence[Op]) -> None:
        check_multi(ops)
        session = self._open_session()
        if not ops:
            return
        if any(isinstance(op, Delete) and op.path == self._paths.registration for op in ops):
            self._is_registered = False  # a renewal may see that before we hear of it
        failure = await self._commit(session, ops)
        if failure is not None and _lacks_folder(ops, failure):
            await self._make_folders(session, ops)
            failure = await self._commit(session, ops)
        if failure is not None:
            index, error = failure
            reason = _MISFITS.get(type(error))
            if reason is None:
                raise StoreUnavailable(f"ZooKeeper: {error!r}")
            raise CoordConflict(ops[index].path, reason)
        self._note_registration(ops)

    async def _commit(
        self, session: ZookeeperSession, ops: Sequence[Op]
    ) -> tuple[int, KazooException] | None:
        """Send it; the op that did not fit, if there is one: then nothing was done."""
        results = await self._answered(session, session.answer(session.commit(ops)))
        for index, result in enumerate(results):
            others = RolledBackError | RuntimeInconsistency
            if isinstance(result, KazooException) and not isinstance(result, others):
                return index, result
        return None

    async def _make_folders(self, session: ZookeeperSession, ops: Sequence[Op]) -> None:
        for folder in _folders(ops):
            try:
                await self._answered(session, session.answer(session.make_folder(folder)))
            except NodeExistsError:
                continue

    def _note_registration(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if op.path == self._paths.registration and isinstance(op, Create):
                self._is_registered = True

    def watch(self, path: str, changed: Callable[[str], None]) -> None:
        self._watches.add(path, changed)

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        self._state_callbacks.append(changed)

    def _open_session(self) -> ZookeeperSession:
        session = self._session
        if session is None or session.is_over or self._state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"the session with ZooKeeper is {self._state.value}")
        return session

    async def _answered(self, session: ZookeeperSession, future: Awaitable[_T]) -> _T:
        """The answer; StoreUnavailable if there is none: what was asked may be done or not."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUTS * session.timeout_s):
                answer = await future
        except TimeoutError:
            raise StoreUnavailable("ZooKeeper does not answer") from None
        except (NoNodeError, NodeExistsError):
            raise
        except KazooException as error:
            raise StoreUnavailable(f"ZooKeeper: {error!r}") from error
        if session.is_over:  # kazoo may have answered from another session
            raise StoreUnavailable("the session with ZooKeeper is over")
        return answer

    # --- the lease -------------------------------------------------------------------------------

    def _turn(self) -> None:
        """On the loop, again and again: the proof that it turns."""
        assert self._loop is not None
        assert self._renewal is not None
        self._renewal.loop_turned()
        self._beat = self._loop.call_later(self._renewal.turn_interval_s, self._turn)

    def _renew(self, session: ZookeeperSession) -> None:
        """In the thread of the renewal."""
        if session is not self._session or not session.is_connected:
            return
        sent_at = self._clock.boottime()

        def renewed(head_version: int, owner: int) -> None:
            if self._is_registered and owner != session.session_id:
                self._cross(self._replaced, session)
                return
            with self._lease_lock:
                if session is self._session:
                    self._lease.renewed(sent_at, lease_timeout_s(session.timeout_s), head_version)

        renew, head, registration = self._paths
        session.renew(write=renew, head=head, registration=registration, renewed=renewed)

    def _replaced(self, session: ZookeeperSession) -> None:
        is_over = session is not self._session or self._state is SessionState.LOST
        if self._is_registered and not is_over:
            _log.error("%s is not ours any more: begin anew", self._paths.registration)
            self._end()

    # --- states ----------------------------------------------------------------------------------

    def _changed_in_thread(self, session: ZookeeperSession, state: SessionState) -> None:
        self._cross(self._session_changed, session, state)

    def _cross(self, call: Callable[..., None], *args: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call, *args)

    def _session_changed(self, session: ZookeeperSession, state: SessionState) -> None:
        if session is not self._session or self._renewal is None:
            return  # a session that is over, or that `start` still opens
        if state is SessionState.LOST:
            _log.warning("the session with ZooKeeper is over")
            self._end()
        elif state is SessionState.SUSPENDED:
            _log.warning("no connection to ZooKeeper")
            self._watches.disconnected()
            self._enter(state)
        elif self._state is SessionState.SUSPENDED:
            _log.warning("connected to ZooKeeper again")
            self._watches.connected(session)
            self._enter(state)
            self._watches.tell_all()

    def _end(self) -> None:
        """The session is over: say so at once, and close it in a thread."""
        assert self._loop is not None
        assert self._session is not None
        session = self._session
        session.is_over = True
        self._watches.disconnected()
        if self._renewal is not None:
            self._renewal.stop()
        self._enter(SessionState.LOST)
        self._close_aside(session)

    def _enter(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for changed in self._state_callbacks:
            changed(state)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _folders(ops: Sequence[Op]) -> list[str]:
    """The folders that new nodes lie in, each after its own parent."""
    found: dict[str, None] = {}
    for op in ops:
        if isinstance(op, Create):
            parts = op.path.split("/")[1:-1]
            for depth in range(len(parts)):
                found["/" + "/".join(parts[: depth + 1])] = None
    return list(found)


def _lacks_folder(ops: Sequence[Op], failure: tuple[int, KazooException]) -> bool:
    index, error = failure
    return isinstance(ops[index], Create) and isinstance(error, NoNodeError)
