"""Watches that last, made of ZooKeeper's, which are called once and dropped at every disconnect.

A watch of the contract is one on a node, and, if that is a folder, one on its list of children and
one on each child. Each is set again before the callback runs: requests are answered in order, so
whatever the callback then reads is covered by the new watch.

All of this runs on the event loop; kazoo's threads only pass on what fired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, final

from kazoo.exceptions import KazooException
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from tidemill.metadata.store.coord import Watchers
from tidemill.metadata.store.zookeeper_session import Watched, ZookeeperSession

__all__ = ["ZookeeperWatches"]


@final
class ZookeeperWatches:
    """The watches of one client; they stay when its session is replaced."""

    def __init__(self) -> None:
        self._watchers = Watchers()
        self._session: ZookeeperSession | None = None
        self._children: dict[str, set[str]] = {}
        """By watched path: the children that have watches now."""

    def add(self, path: str, changed: Callable[[str], None]) -> None:
        self._watchers.add(path, changed)
        is_new = path not in self._children
        self._children.setdefault(path, set())
        if is_new:
            self._arm(path)
            # Another session may have changed it until now.
            self._send(
                lambda session: session.exists(path),
                lambda _: self._watchers.tell_watched(path),
            )

    def connected(self, session: ZookeeperSession) -> None:
        """Set all of them, on a new connection."""
        self._session = session
        for path, children in self._children.items():
            children.clear()
            self._arm(path)

    def disconnected(self) -> None:
        """kazoo has dropped all of them."""
        self._session = None

    def tell_all(self) -> None:
        self._watchers.tell_all()

    # --- one path --------------------------------------------------------------------------------

    def _arm(self, path: str) -> None:
        self._arm_node(path)
        self._arm_list(path)

    def _arm_node(self, path: str) -> None:
        self._send(lambda session: session.exists(path, self._fired(self._node_changed, path)))

    def _arm_list(self, path: str) -> None:
        self._send(
            lambda session: session.children(path, self._fired(self._list_changed, path)),
            partial(self._arm_children, path),
        )

    def _arm_children(self, path: str, names: list[str]) -> None:
        known = self._children[path]
        for name in names:
            if name not in known:
                known.add(name)
                self._arm_child(path, name, is_new=True)

    def _arm_child(self, path: str, name: str, *, is_new: bool = False) -> None:
        def found(stat: ZnodeStat | None) -> None:
            # A new one may have changed between the list and this watch.
            if is_new and stat is not None and stat.version:
                self._watchers.tell_watched(path)

        self._send(
            lambda session: session.exists(
                f"{path}/{name}", self._fired(self._child_changed, path, name)
            ),
            found,
        )

    # --- what fired ------------------------------------------------------------------------------

    def _node_changed(self, event: WatchedEvent, path: str) -> None:
        self._arm_node(path)
        if event.type == EventType.CREATED:
            self._arm_list(path)
        self._watchers.tell_watched(path)

    def _list_changed(self, event: WatchedEvent, path: str) -> None:
        if event.type == EventType.CHILD:
            self._arm_list(path)
            self._watchers.tell_watched(path)

    def _child_changed(self, event: WatchedEvent, path: str, name: str) -> None:
        if event.type == EventType.DELETED:  # the list has changed, too, and that is told
            self._children[path].discard(name)
        else:
            self._arm_child(path, name)
            self._watchers.tell_watched(path)

    # --- crossing threads ------------------------------------------------------------------------

    def _fired(self, changed: Callable[..., None], *args: str) -> Watched:
        loop, session = asyncio.get_running_loop(), self._session

        def on_loop(event: WatchedEvent) -> None:
            if session is self._session:
                changed(event, *args)

        def in_thread(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:  # that is a state of the connection
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(on_loop, event)

        return in_thread

    def _send(
        self,
        request: Callable[[ZookeeperSession], Any],
        answered: Callable[[Any], None] = lambda _: None,
    ) -> None:
        session = self._session
        if session is None:
            return

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, KazooException) or future.cancelled():
                return  # no such node; or disconnected, and then all are set again
            if session is self._session:
                answered(future.result())

        session.answer(request(session)).add_done_callback(done)
