"""What a coordinator's state machine looks like to the runtime that hosts it.

A shard is the state of one partition of an internal topic. It is pure: time is an argument, effects
are return values. It has two kinds of state:

- *hard* state is what the log holds. `replay` alone changes it, with the same records in the same
  order when a request was just served and when the partition is loaded on another broker.
- *soft* state is what may be lost with the process: who is waiting, until when somebody is alive.
  Handlers change it as they go.

A handler returns a `Result`. The runtime replays its records at once, appends them with all else
that came in the same turn of the loop, and lets the answers go when they are committed. If that
append fails the whole shard is loaded anew. Sometimes records are appended before they are
replayed (see `runtime.py`); if that fails nothing was replayed, the caller gets an error, and the
shard is loaded anew only where parked answers were part of the result. So a handler that only
appends must leave soft state as it was, but for deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

from tidemill.core.error_codes import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta

__all__ = ["CoordinatorRecord", "Now", "Parked", "Reply", "Result", "Shard"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Now(NamedTuple):
    """The time of an event on both clocks: deadlines use the first, records the second."""

    monotonic_ms: int
    wall_ms: int


class CoordinatorRecord(NamedTuple):
    """One record of a coordinator's log; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


@final
class Parked(Generic[R]):
    """An answer that comes later, and how to refuse it in its API's words."""

    __slots__ = ("answer", "refuse")

    def __init__(self, refuse: Callable[[ErrorCode], R]) -> None:
        self.answer: Deferred[R] = Deferred()
        self.refuse = refuse


Reply = tuple[Parked[Any], Any]
"""A parked request and its response."""


@final
@dataclass(slots=True)
class Result(Generic[R_co]):
    """What one event brings about."""

    response: R_co | Parked[R_co]
    """For whoever caused the event; parked: it comes in a later result's replies."""
    records: list[CoordinatorRecord] = field(default_factory=list)
    """To be appended together, in one batch."""
    replies: list[Reply] = field(default_factory=list)
    """Parked requests that are answered now; they leave when the records are committed."""


class Shard(Protocol):
    """One partition's state machine."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in one record of the log. KafkaError or ProtocolViolation: it makes no sense."""
        ...

    def loaded(self, now: Now) -> None:
        """The whole log has been replayed: begin to count time for whoever is alive."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do next, on the monotonic clock."""
        ...

    def expire(self, now: Now) -> Result[None]:
        """Do what is due; bounded work, the rest stays due."""
        ...

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """Topics came, went or grew."""
        ...

    def resign(self) -> list[Parked[Any]]:
        """This broker no longer owns the partition: everyone who is parked here, to be refused."""
        ...
