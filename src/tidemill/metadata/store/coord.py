"""The Coord seam: the small, strongly consistent store through which the brokers agree.

A tree of nodes by path, each with bytes and a version. All changes are compare-and-set; `multi`
makes several at once, atomically. Ephemeral nodes vanish with the session that made them. A broker
whose session is in doubt (SUSPENDED) stops acting as an owner at once; only CONNECTED may act, and
only until `lease_until`.

Versions are for compare-and-set alone: a node that is copied to another store starts at 0 again.
Epochs and counters are values.

A multi ends in one of three ways: it is done; `CoordConflict`, it is not; `StoreUnavailable`, its
outcome is unknown, and it is never repeated blindly.

A path is a node or a folder of nodes, never both. Folders need not be made.

Back ends: SQLite (all processes of one host), ZooKeeper (several hosts), memory (simulation and
tests). One contract test covers all of them. `checked_op` and `check_multi` are the rules that the
back ends share; `Watchers` has the callbacks of watches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, final

from tidemill.core.errors import TidemillError
from tidemill.core.limits import COORD_MULTI_BYTES_MAX, COORD_OPS_PER_MULTI_MAX

__all__ = [
    "Check",
    "Coord",
    "CoordConflict",
    "Create",
    "Delete",
    "MultiTooLarge",
    "Node",
    "Op",
    "Put",
    "SessionState",
    "Watchers",
    "check_multi",
    "checked_op",
    "op_bytes",
]


class CoordConflict(TidemillError):
    """A version was not the expected one, or a node existed or was missing; nothing changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class MultiTooLarge(TidemillError):
    """More ops or bytes than any back end takes; nothing was sent."""


class SessionState(Enum):
    """The state of our session, as far as we know."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A stored value. `version` starts at 0 and rises by one with every put."""

    value: bytes
    version: int


@final
@dataclass(frozen=True, slots=True)
class Create:
    """Make a node that must not exist yet."""

    path: str
    value: bytes
    ephemeral: bool = False


@final
@dataclass(frozen=True, slots=True)
class Put:
    """Replace a node's value if its version is still `version`."""

    path: str
    value: bytes
    version: int


@final
@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node if its version is still `version`."""

    path: str
    version: int


@final
@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but fail the whole multi unless the version is still `version`."""

    path: str
    version: int


Op = Create | Put | Delete | Check


class Coord(Protocol):
    """One session with the store. Raises StoreUnavailable when the session cannot answer."""

    @property
    def state(self) -> SessionState: ...

    @property
    def lease_until(self) -> float:
        """Until then the store has told nobody that this session is over.

        A time of `Clock.boottime`; `inf`, while it is CONNECTED, where a session cannot end while
        its process runs.
        """
        ...

    @property
    def ends_by_clock(self) -> bool:
        """Whether a lease of this store can end while its process runs."""
        ...

    def caught_up(self, head_version: int) -> None:
        """Our image has all that is stored under a head of this version.

        Where a lease ends by the clock, a renewal counts once we know what was there before it.
        """
        ...

    async def start(self) -> None:
        """Open a session, or a new one after LOST. Watches stay."""
        ...

    async def get(self, path: str, newest: bool = False) -> Node | None:
        """The node, perhaps a moment old; with `newest` not older than the call."""
        ...

    async def children(self, path: str) -> list[tuple[str, Node]]:
        """The nodes one level below `path`, with their paths, sorted."""
        ...

    async def multi(self, ops: Sequence[Op]) -> None:
        """Apply all ops or none; CoordConflict names the path of the op that did not fit.

        MultiTooLarge for more than 100 ops or 512 KiB. StoreUnavailable: it may be done or not.
        """
        ...

    def watch(self, path: str, changed: Callable[[str], None]) -> None:
        """Call `changed(path)` after the node or one of its children was made, replaced or removed.

        Calls may be late, may be merged and may come for nothing, but none is lost while the
        session lives; all watches are called after a reconnect.
        """
        ...

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        """Call `changed` with every new state of the session."""
        ...

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once."""
        ...


def op_bytes(op: Op) -> int:
    """What an op counts for in the size of a multi."""
    return len(op.path) + (len(op.value) if isinstance(op, Create | Put) else 0)


def check_multi(ops: Sequence[Op]) -> None:
    """MultiTooLarge before anything is sent: too large a request can stop a whole ensemble."""
    if len(ops) > COORD_OPS_PER_MULTI_MAX:
        raise MultiTooLarge(f"{len(ops)} changes at once; at most {COORD_OPS_PER_MULTI_MAX}")
    size_bytes = sum(op_bytes(op) for op in ops)
    if size_bytes > COORD_MULTI_BYTES_MAX:
        raise MultiTooLarge(f"{size_bytes} bytes at once; at most {COORD_MULTI_BYTES_MAX}")


def checked_op(op: Op, now: Node | None) -> Node | None:
    """The node after `op`, given the node before it; CoordConflict if the op does not fit."""
    match op:
        case Create():
            if now is not None:
                raise CoordConflict(op.path, "exists already")
            return Node(op.value, 0)
        case Put() | Delete() | Check():
            if now is None:
                raise CoordConflict(op.path, "does not exist")
            if now.version != op.version:
                raise CoordConflict(op.path, f"has version {now.version}, not {op.version}")
    match op:
        case Put():
            return Node(op.value, op.version + 1)
        case Delete():
            return None
        case Check():
            return now


@final
class Watchers:
    """Callbacks by watched path, called in the order in which they were added."""

    def __init__(self) -> None:
        self._watches: list[tuple[str, Callable[[str], None]]] = []

    def add(self, path: str, changed: Callable[[str], None]) -> None:
        self._watches.append((path, changed))

    def tell(self, path: str) -> None:
        """The node at `path` was made, replaced or removed."""
        parent = path.rpartition("/")[0]
        for watched, changed in self._watches:
            if watched in {path, parent}:
                changed(watched)

    def tell_watched(self, path: str) -> None:
        """Something may have changed that is watched at `path`."""
        for watched, changed in self._watches:
            if watched == path:
                changed(watched)

    def tell_all(self) -> None:
        """Anything may have changed."""
        for watched, changed in self._watches:
            changed(watched)
