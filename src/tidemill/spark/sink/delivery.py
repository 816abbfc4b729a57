"""The delivery guarantee of a write: the seam between the sink and its guarantees.

A write has three steps. The driver plans it and sends the writer to the executors; tasks write; the
driver gets the result of every task. `Delivery` has a hook for the driver's steps: `lease` when the
writer is sent, `commit` or `abort` when the tasks have ended. At least once needs neither: what a
task has flushed is in its topics, and a task or batch that runs again writes again. Exactly once
will lease one producer id for all tasks of a micro-batch, and end its transaction in `commit`.
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
    """The driver's steps of a write."""

    def lease(self) -> ProducerIdentity | None:
        """Called once, when the writer is sent to the tasks: the identity that all tasks use, or
        None if each requests its own."""
        ...

    def commit(self, messages: Sequence[object], batch_id: int | None) -> None:
        """Every task has succeeded. `batch_id` is None outside streams."""
        ...

    def abort(self, messages: Sequence[object], batch_id: int | None) -> None:
        """The write has failed; the message of a failed task is None."""
        ...


@final
class AtLeastOnce:
    """Nothing is lost; a task or batch that runs again is written again."""

    def lease(self) -> ProducerIdentity | None:
        return None

    def commit(self, messages: Sequence[object], batch_id: int | None) -> None:
        return

    def abort(self, messages: Sequence[object], batch_id: int | None) -> None:
        return


def delivery_of(name: str) -> Delivery:
    """The delivery for a value of the option `delivery`. UserError if it is unknown."""
    if name == AT_LEAST_ONCE:
        return AtLeastOnce()
    if name == EXACTLY_ONCE:
        raise UserError(
            "delivery=exactly_once needs transactions, which this version does not have yet; "
            "use delivery=at_least_once"
        )
    raise UserError(f"delivery={name} is not known: use {AT_LEAST_ONCE}")
