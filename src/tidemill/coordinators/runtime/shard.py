"""The interface between a coordinator's state machine and the runtime that hosts it.

A shard is the state of one partition of an internal topic. It is pure: time is an argument, effects
are return values. It has two kinds of state:

- *Hard* state is what the log holds. Only `replay` changes it, with the same records in the same
  order, both when a request was just served and when another broker loads the partition.
  A transactional batch changes it when its marker comes (`replay_pending`, `replay_marker`).
- *Soft* state may be lost with the process: parked requests and deadlines. Handlers change it
  directly.

A handler returns a `Result`. The runtime replays its records at once, appends them together with
the other records of the same turn of the loop, and sends the answers when the batch is committed.
If that append fails, the runtime reloads the whole shard from the log.

In some cases the runtime appends before it replays (see `coordinator_runtime.py`). If such an
append fails, nothing was replayed and the caller gets an error; the shard is reloaded only if the
result also answered parked requests. A handler whose result has records and no replies must
therefore leave soft state unchanged, except for deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta

__all__ = ["CoordinatorRecord", "Now", "ProducerName", "Reply", "Result", "Shard"]

R_co = TypeVar("R_co", covariant=True)


class Now(NamedTuple):
    """The time of an event on both clocks: deadlines use the first, records the second."""

    monotonic_ms: int
    wall_ms: int


class CoordinatorRecord(NamedTuple):
    """One record of a coordinator's log; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class ProducerName(NamedTuple):
    """A producer id with its epoch, as batches and markers carry them."""

    producer_id: int
    epoch: int


Reply = tuple[Deferred[Any], Any]
"""A parked request and its response."""


@final
@dataclass(slots=True)
class Result(Generic[R_co]):
    """The outcome of one event."""

    response: R_co | Deferred[R_co]
    """For the caller; if deferred, it comes among the replies of a later result."""
    records: list[CoordinatorRecord] = field(default_factory=list)
    """Appended together, in one batch."""
    replies: list[Reply] = field(default_factory=list)
    """Parked requests that this event answers; they leave when the records are committed."""
    producer: ProducerName | None = None
    """The records belong to this producer's open transaction: they are written as a batch of its
    own, and count when its commit marker comes."""
    effects: Sequence[Any] = ()
    """For the runtime's `carry_out`, once the records are committed; dropped if they never are. The
    shard that loads the log again asks for them again."""


class Shard(Protocol):
    """One partition's state machine."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. KafkaError or ProtocolViolation: it makes no sense."""
        ...

    def replay_pending(self, key: bytes, value: bytes | None, producer: ProducerName) -> None:
        """Keep a record of an open transaction until its marker comes; as `replay` otherwise."""
        ...

    def replay_marker(self, producer: ProducerName, *, is_commit: bool) -> None:
        """Apply the producer's pending records, or drop them; nothing if there are none."""
        ...

    def loaded(self, now: Now) -> None:
        """The whole log has been replayed: start the deadlines of live members."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `expire` next has work to do, on the monotonic clock; None: no deadline is set."""
        ...

    def expire(self, now: Now) -> Result[None]:
        """Handle deadlines that have passed. The work is bounded; the rest stays due."""
        ...

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """Topics were created, deleted or grown."""
        ...

    def resign(self) -> list[Deferred[Any]]:
        """This broker no longer owns the partition: hand over all parked requests for refusal."""
        ...
