"""Which of the fetched batches a reader may see: no control batches, no aborted transactions.

With read_committed a broker lists the aborted transactions that overlap an answer, each by producer
and first offset. From that offset to the abort marker, which is a control batch, the transactional
batches of that producer are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.client.consuming.fetched_batches import FetchedBatches
from tidemill.wire.batch import BatchHeader
from tidemill.wire.records import iter_records

__all__ = ["visible_batches"]

_ABORT_MARKER = b"\x00\x00"
"""The type in a control record's key, after two bytes of version; commit is 1."""


def visible_batches(fetched: FetchedBatches) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The batches that the reader may see, in order; their checksums are not verified."""
    to_come = sorted(fetched.aborted, key=lambda aborted: aborted.first_offset, reverse=True)
    aborting: set[int] = set()
    for view, header in fetched.batches:
        while to_come and to_come[-1].first_offset <= header.last_offset:
            aborting.add(to_come.pop().producer_id)
        if header.is_control:
            if header.producer_id in aborting and _is_abort(view, header):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield view, header


def _is_abort(view: memoryview, header: BatchHeader) -> bool:
    return any(
        record.key is not None and record.key[2:4] == _ABORT_MARKER
        for record in iter_records(view, header)
    )
