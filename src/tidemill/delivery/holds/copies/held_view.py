"""What a view of held records shows: each open hold at the offset of its newest copy.

A record is shown as its producer sent it, with two headers more: its `ticket`, and when it is `due`
now, which a move or a tick may have changed. So whoever reads the view can cancel or move it.
Opens single records, of veiled batches only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.delivery.holds.copies.own_batches import HeldCopy
from tidemill.delivery.holds.hold import Hold
from tidemill.wire import header_names as names
from tidemill.wire.batch import BatchHeader
from tidemill.wire.marks import is_ours
from tidemill.wire.records import Record, build_batch

__all__ = ["OpenHolds", "held_batch", "try_open_copy"]

_ANSWERS = frozenset({names.TICKET, names.DUE, names.NEXT, names.AXIS, names.SENT_AT})


class OpenHolds(Protocol):
    """The book of a partition."""

    def find(self, ticket: int) -> Hold | None: ...


def try_open_copy(record: Record, header: BatchHeader, holds: OpenHolds) -> HeldCopy | None:
    """The record with its hold, if that is open and has no newer copy."""
    ticket = record.offset
    if is_ours(header):
        said = dict(record.headers).get(names.TICKET)
        if said is None or not said.isdigit():
            return None
        ticket = int(said)
    hold = holds.find(ticket)
    return HeldCopy(hold, record) if hold is not None and hold.offset == record.offset else None


def held_batch(copies: Sequence[HeldCopy], *, leader_epoch: int) -> bytearray:
    """A batch that shows these holds, in the order of their copies."""
    shown = [_shown(copy) for copy in copies]
    return build_batch(shown, base_offset=shown[0].offset, leader_epoch=leader_epoch)


def _shown(copy: HeldCopy) -> Record:
    hold, record = copy.hold, copy.record
    sent_at = None
    if hold.offset != hold.ticket:  # carried: the record has the time of that
        sent_at = dict(record.headers).get(names.SENT_AT)
    return Record(
        record.value,
        record.key,
        headers=[
            *(header for header in record.headers if header[0] not in _ANSWERS),
            (names.TICKET, b"%d" % hold.ticket),
            (names.DUE, b"%d" % hold.due_ms),
        ],
        timestamp=int(sent_at) if sent_at and sent_at.isdigit() else record.timestamp,
        offset=record.offset,
    )
