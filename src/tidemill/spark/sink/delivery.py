"""The delivery guarantee of a write: the seam between the sink and its guarantees.

A write has three steps. The driver plans it and sends the writer to the executors; tasks write; the
driver gets the result of every task. `Delivery` has a hook for the driver's steps: `lease` when the
writer is sent, `commit` or `abort` when the tasks have ended. At least once needs neither: what a
task has flushed is in its topics, and a task or batch that runs again writes again. `exactly_once`
leases one producer id for all tasks of a batch, and ends their transaction in `commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from tidemill.spark.sink.lease import SinkLease
    from tidemill.spark.sink.rows_written import RowsWritten

__all__ = ["AT_LEAST_ONCE", "DELIVERIES", "EXACTLY_ONCE", "AtLeastOnce", "Delivery"]

AT_LEAST_ONCE: Final = "at_least_once"
EXACTLY_ONCE: Final = "exactly_once"
DELIVERIES: Final = (AT_LEAST_ONCE, EXACTLY_ONCE)


class Delivery(Protocol):
    """The driver's steps of a write."""

    def lease(self) -> SinkLease | None:
        """Called once, when the writer is sent to the tasks: what they share; None: nothing."""
        ...

    def commit(self, messages: Sequence[RowsWritten | None]) -> None:
        """Every task has succeeded."""
        ...

    def abort(self, messages: Sequence[RowsWritten | None], lease: SinkLease | None) -> None:
        """The write has failed; the message of a failed task is None.

        `lease` is the one of this object, if it has one: in streams, Spark aborts on a new object.
        """
        ...


@final
class AtLeastOnce:
    """Nothing is lost; a task or batch that runs again is written again."""

    def lease(self) -> SinkLease | None:
        return None

    def commit(self, messages: Sequence[RowsWritten | None]) -> None:
        return

    def abort(self, messages: Sequence[RowsWritten | None], lease: SinkLease | None) -> None:
        return
