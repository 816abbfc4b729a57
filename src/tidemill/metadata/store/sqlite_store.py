"""The coordination store of one host: a SQLite file that all its brokers share.

On one host the lease is the process itself: a session ends when the kernel frees its lock, after
the last instruction of its process (`session_files.py`). So `lease_until` is never, while the
session's row is there.

SQLite blocks, and a commit waits for the disk and for other writers: all calls go to one worker
thread, in order (`sqlite_file.py`). A second thread stamps and watches (`session_watch.py`).
Results and notices cross to the event loop. Watches are called for our own changes after the commit
and before the caller of `multi` continues; for those of other processes all of them are called.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar, final

from tidemill.core.clock import Clock
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.core.limits import SESSION_STAMP_S
from tidemill.metadata.store.coord import (
    Check,
    Node,
    Op,
    SessionState,
    Watchers,
    check_multi,
)
from tidemill.metadata.store.local_disk import try_find_foreign
from tidemill.metadata.store.session_files import this_process
from tidemill.metadata.store.session_watch import SessionWatch
from tidemill.metadata.store.sqlite_file import Convert, Looked, StoreFile, as_they_are

__all__ = ["SqliteCoord"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = logging.getLogger("tidemill.metadata")

SESSIONS_DIRECTORY = "sessions"


@final
class SqliteCoord:
    """This process's session with the store of its host."""

    def __init__(self, path: str, clock: Clock, *, convert: Convert = as_they_are) -> None:
        """`convert` brings nodes that an older version has stored into the form of today."""
        self._path = path
        self._convert = convert
        self._clock = clock
        self._file: StoreFile | None = None
        self._watch: SessionWatch | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._looking: Future[Looked] | None = None
        self._last_error = ""
        self._state = SessionState.LOST
        self.lease_until = -math.inf
        self.ends_by_clock = False
        self._watchers = Watchers()
        self._state_callbacks: list[Callable[[SessionState], None]] = []

    @property
    def state(self) -> SessionState:
        return self._state

    def caught_up(self, head_version: int) -> None:
        """The lease has no end."""

    # --- start and close -------------------------------------------------------------------------

    async def start(self) -> None:
        """Open or make the file. UserError if it is not ours, of another version, or not local."""
        await self._release()
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidemill-coord")
        try:
            await self._run(self._open)
        except BaseException:
            self._worker.shutdown(wait=False)
            raise
        self._turn()
        self._enter(SessionState.CONNECTED)

    def _open(self) -> None:
        """In the worker: the watch first, since a peer may hang inside the queue of writers."""
        directory = os.path.dirname(self._path) or "."
        sessions = f"{directory}/{SESSIONS_DIRECTORY}"
        foreign = try_find_foreign(directory)
        if foreign is not None:
            _log.warning(
                "%s is on a file system of type %s: one broker can use it, not several",
                directory,
                foreign,
            )
        try:
            with suppress(FileExistsError):
                os.mkdir(sessions, 0o700)
            holder = this_process()
            watch = SessionWatch(sessions, holder, self._clock, heard=self._heard)
        except OSError as error:
            raise UserError(f"cannot open {self._path}: {error}") from error
        try:
            file = StoreFile(
                self._path,
                sessions,
                holder,
                monotonic=self._clock.monotonic,
                convert=self._convert,
                foreign=foreign,
            )
        except OSError as error:
            watch.stop()
            raise UserError(f"cannot open {self._path}: {error}") from error
        except BaseException:
            watch.stop()
            raise
        watch.attach(file.session)
        self._watch, self._file = watch, file

    async def close(self) -> None:
        if self._state is not SessionState.LOST:
            self._enter(SessionState.LOST)
        await self._release()

    async def _release(self) -> None:
        """Give up the session that is open, or that was lost."""
        if self._file is None or self._watch is None or self._worker is None:
            return
        file, self._file = self._file, None
        watch, self._watch = self._watch, None
        if self._beat is not None:
            self._beat.cancel()
        try:
            await self._run(_close, file, watch)
        finally:
            self._worker.shutdown(wait=False)

    # --- nodes -----------------------------------------------------------------------------------

    async def get(self, path: str, newest: bool = False) -> Node | None:
        return await self._run(self._open_file().get, path)

    async def children(self, path: str) -> list[tuple[str, Node]]:
        return await self._run(self._open_file().children, path)

    async def multi(self, ops: Sequence[Op]) -> None:
        check_multi(ops)
        file = self._open_file()
        changed = list(dict.fromkeys(op.path for op in ops if not isinstance(op, Check)))

        def committed(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                for path in changed:
                    self._watchers.tell(path)

        # Shielded: cancelling the caller does not undo the commit, so watches must be called.
        future = self._submit(file.multi, list(ops))
        future.add_done_callback(committed)
        await asyncio.shield(future)

    def watch(self, path: str, changed: Callable[[str], None]) -> None:
        self._watchers.add(path, changed)

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        self._state_callbacks.append(changed)

    # --- the other thread, and other processes ---------------------------------------------------

    def _turn(self) -> None:
        """On the loop, again and again: the proof that it turns."""
        assert self._loop is not None
        assert self._watch is not None
        self._watch.loop_turned()
        self._beat = self._loop.call_later(SESSION_STAMP_S, self._turn)

    def _heard(self) -> None:
        """In the watch's thread: have the worker look, unless it is about to."""
        file, worker = self._file, self._worker
        if file is None or worker is None or (self._looking and not self._looking.done()):
            return
        try:
            self._looking = worker.submit(file.look)
        except RuntimeError:
            return  # the session was closed meanwhile
        self._looking.add_done_callback(self._looked)

    def _looked(self, done: Future[Looked]) -> None:
        """In the worker's thread."""
        error = done.exception()
        if error is not None:
            if str(error) != self._last_error:  # the next look is in 50 ms
                _log.error("%s", error)
            self._last_error = str(error)
            return
        self._last_error = ""
        looked = done.result()
        if (looked.changed or not looked.is_alive) and self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, looked)

    def _tell(self, looked: Looked) -> None:
        if self._state is not SessionState.CONNECTED:
            return
        if not looked.is_alive:
            _log.error("%s: our session was removed by another process", self._path)
            self._enter(SessionState.LOST)
        else:
            self._watchers.tell_all()

    # --- the worker ------------------------------------------------------------------------------

    def _open_file(self) -> StoreFile:
        if self._file is None or self._state is not SessionState.CONNECTED:
            raise StoreUnavailable("the session is not open")
        return self._file

    def _submit(
        self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_T]:
        assert self._worker is not None
        assert not kwargs
        return asyncio.get_running_loop().run_in_executor(self._worker, call, *args)

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._submit(call, *args, **kwargs)

    def _enter(self, state: SessionState) -> None:
        self._state = state
        self.lease_until = math.inf if state is SessionState.CONNECTED else -math.inf
        for changed in self._state_callbacks:
            changed(state)


def _close(file: StoreFile, watch: SessionWatch) -> None:
    """The row first, the lock last: what others see ended is over."""
    try:
        file.close()
    finally:
        watch.stop()
        file.session.close()
