"""The thread beside a session: it stamps, hears nudges, and ends peers that hang.

It never waits for the disk or for a lock, so that neither a saturated disk nor a peer that was
stopped inside the queue of writers keeps it from saying that this process lives, or from ending
that peer.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.limits import SESSION_HUNG_S, SESSION_LOOK_S, SESSION_STAMP_S
from tidemill.core.logs import RateLimit
from tidemill.metadata.store.hung_peers import HungPeers
from tidemill.metadata.store.session_files import (
    Holder,
    SessionFile,
    kill,
    read_page,
    session_ids,
)

__all__ = ["SessionWatch"]

_log = logging.getLogger("tidemill.metadata")

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


@final
class SessionWatch:
    """Runs from before the store is opened until after it was closed."""

    def __init__(
        self, directory: str, own: Holder, clock: Clock, *, heard: Callable[[], None]
    ) -> None:
        """`heard` is called in the thread: it is time to look at the store."""
        self._directory = directory
        self._own = own
        self._clock = clock
        self._heard = heard
        self._session: SessionFile | None = None
        self._hung = HungPeers()
        self._reported: set[int] = set()
        """Peers that hang and could not be ended: one line each."""
        self._log = RateLimit()
        """What fails is tried again five times a second."""
        self._turned_at = self._stamped_at = clock.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-coord-watch", daemon=True)
        self._thread.start()

    def attach(self, session: SessionFile) -> None:
        """The session exists now; from here on the store is looked at."""
        self._session = session

    def loop_turned(self) -> None:
        """The event loop is alive. Without it a process that does no work would keep its lease."""
        self._turned_at = self._clock.monotonic()

    def stop(self) -> None:
        """End the thread and wait for it, in the worker of the store."""
        self._stopping.set()
        if self._session is not None:
            self._session.wake()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            session = self._session
            if session is None:
                self._stopping.wait(SESSION_LOOK_S)
            else:
                session.wait(SESSION_LOOK_S)
            try:
                self._step(session, self._clock.monotonic())
            except OSError as error:
                self._report(error)
                self._stopping.wait(SESSION_STAMP_S)

    def _report(self, error: OSError) -> None:
        if error.errno in _NO_DESCRIPTORS:  # connections that end give some back
            return
        if self._log.allows(str(error), self._clock.monotonic()):
            _log.error("sessions in %s: %s", self._directory, error)

    def _step(self, session: SessionFile | None, now: float) -> None:
        if now - self._stamped_at >= SESSION_STAMP_S:
            self._stamped_at = now
            if session is not None and now - self._turned_at <= SESSION_HUNG_S:
                session.stamp(now)
            self._end_hung(now)
        if session is not None and not self._stopping.is_set():
            self._heard()

    def _end_hung(self, now: float) -> None:
        own_id = None if self._session is None else self._session.session_id
        pages = {
            one: page
            for one in session_ids(self._directory)
            if one != own_id and (page := read_page(self._directory, one)) is not None
        }
        # Another session of this process (there is one in tests) lives and hangs with this one.
        stamps = {one: stamp for one, (stamp, holder) in pages.items() if holder != self._own}
        for one in self._hung.look(stamps, now):
            self._end(one, pages[one][1])
        self._reported &= pages.keys()

    def _end(self, session_id: int, holder: Holder) -> None:
        if session_id in self._reported:
            return
        self._reported.add(session_id)
        if holder.namespace != self._own.namespace or holder.boot_id != self._own.boot_id:
            _log.error(
                "session %d hangs, and its process is in another container: end it there; until "
                "then it keeps what it leads",
                session_id,
            )
            return
        try:
            kill(self._directory, session_id, holder)
        except OSError as error:
            _log.error("session %d hangs; process %d: %s", session_id, holder.pid, error)
        else:
            _log.error(
                "session %d hung: process %d was killed, because it had stood still for %.0f s",
                session_id,
                holder.pid,
                SESSION_HUNG_S,
            )
