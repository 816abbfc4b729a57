"""What a write promises, and who ends it: the seam between the sink and its guarantees.

A write goes through three hands. The driver plans it and sends the writer to the executors; tasks
write; the driver hears what became of them. `Delivery` has one hook for each end on the driver:
`lease` as the writer leaves, `commit` or `abort` when the tasks are over. With at least once there
is nothing to hold and nothing to end: what a task has flushed is in its topics, and a task or batch
that runs again writes again. Exactly once will lease one producer id for all tasks of a
micro-batch, and end its transaction in `commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.errors import UserError

__all__ = ["AT_LEAST_ONCE", "EXACTLY_ONCE", "AtLeastOnce", "Delivery", "delivery_of"]

AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE = "exactly_once"


class Delivery(Protocol):
    """The driver's part in a write."""

    def lease(self) -> ProducerIdentity | None:
        """Called once, as the writer is sent to the tasks: the identity under which all of them
        write, or None if each asks for its own."""
        ...

    def commit(self, messages: Sequence[object], batch_id: int | None) -> None:
        """Every task has succeeded. `batch_id` is None outside streams."""
        ...

    def abort(self, messages: Sequence[object], batch_id: int | None) -> None:
        """The write has failed; tasks that failed left None as their message."""
        ...


@final
class AtLeastOnce:
    """Nothing is lost; what runs again is written again."""

    def lease(self) -> ProducerIdentity | None:
        return None

    def commit(self, messages: Sequence[object], batch_id: int | None) -> None:
        return

    def abort(self, messages: Sequence[object], batch_id: int | None) -> None:
        return


def delivery_of(name: str) -> Delivery:
    """The delivery that the option `delivery` names; UserError if there is none."""
    if name == AT_LEAST_ONCE:
        return AtLeastOnce()
    if name == EXACTLY_ONCE:
        raise UserError(
            "delivery=exactly_once needs transactions, which this version does not have yet; "
            "use delivery=at_least_once"
        )
    raise UserError(f"delivery={name} is not known: use {AT_LEAST_ONCE}")
