"""What the passes of a cleaning know about transactions; for threads.

Only offsets below the last stable offset are cleaned, so every transaction there has ended: it was
committed, or is in the index of aborted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.log.segment import Segment
from tidemill.wire.batch import BatchHeader

__all__ = ["FindAborted", "TransactionOutcomes", "TransactionsLeft"]

FindAborted = Callable[[int, int], Sequence[AbortedTransaction]]
"""`PartitionLog.find_aborted`."""


@final
class TransactionOutcomes:
    """The aborted transactions that reach into one segment."""

    def __init__(self, find: FindAborted, segment: Segment) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for one in find(segment.base_offset, segment.next_offset):
            self._spans.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this batch of records is part of an aborted transaction."""
        if not header.is_transactional:
            return False
        spans = self._spans.get(header.producer_id, ())
        return any(first <= header.base_offset <= last for first, last in spans)


@final
class TransactionsLeft:
    """Transactions with batches left in the log, as a pass meets them from its oldest segment on.

    A marker whose transaction has nothing left is of no use, once readers that were amid it have
    had their time.
    """

    def __init__(self) -> None:
        self._producer_ids: set[int] = set()

    def note(self, header: BatchHeader) -> None:
        """This batch stays, if only empty."""
        if header.is_transactional:
            self._producer_ids.add(header.producer_id)

    def end(self, header: BatchHeader) -> bool:
        """The marker in `header` ends its producer's transaction; whether some of it is left."""
        if header.producer_id not in self._producer_ids:
            return False
        self._producer_ids.remove(header.producer_id)
        return True
