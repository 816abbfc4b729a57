"""The batches that the broker makes of held records: releases and carried copies.

    release     timestamp: now. Without the requests. Adds `sent-at ticket due`, a tick also `next`.
    carried     timestamp: now. With the requests.    Adds `sent-at ticket due axis`.

Answers that the record has from elsewhere go: its producer may have forwarded a released record.
All other headers stay, in their order. `sent-at` is the time that the producer gave the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from tidemill.delivery.holds.hold import Hold
from tidemill.delivery.holds.hold_headers import AXIS_NAMES
from tidemill.wire import header_names as names
from tidemill.wire.batch import read_header
from tidemill.wire.marks import mark_ours, veil
from tidemill.wire.records import Header, Record, build_batch

__all__ = ["DROPPED_BY_RELEASE", "HeldCopy", "carried_batch", "release_batch"]

_REQUESTS = frozenset({names.DELIVER_AT, names.DELAY_MS, names.SCHEDULE})
_ANSWERS = frozenset({names.TICKET, names.DUE, names.NEXT, names.AXIS, names.SENT_AT})
DROPPED_BY_RELEASE = _REQUESTS | _ANSWERS


class HeldCopy(NamedTuple):
    """An open hold and its record, read from the log."""

    hold: Hold
    record: Record
    next_ms: int | None = None
    """The next tick of a schedule: releasing this one then moves the hold."""


def release_batch(copies: Sequence[HeldCopy], *, now_ms: int, codec: int = 0) -> bytearray:
    """The batch that delivers these holds: whole or not at all, as it has one checksum."""
    batch = build_batch([_released(copy, now_ms) for copy in copies], codec=codec)
    mark_ours(batch)
    return batch


def carried_batch(
    copies: Sequence[HeldCopy], *, now_ms: int, stamp_ms: int, codec: int = 0
) -> bytearray:
    """The batch with new copies of these holds, with their due times as they are now."""
    batch = build_batch([_carried(copy, now_ms) for copy in copies], codec=codec)
    veil(batch, read_header(batch), stamp_ms=stamp_ms)
    mark_ours(batch)
    return batch


def _released(copy: HeldCopy, now_ms: int) -> Record:
    headers = [*_without(copy.record.headers, DROPPED_BY_RELEASE), *_answers(copy)]
    if copy.next_ms is not None:
        headers.append(_number(names.NEXT, copy.next_ms))
    return Record(copy.record.value, copy.record.key, headers=headers, timestamp=now_ms)


def _carried(copy: HeldCopy, now_ms: int) -> Record:
    axis = names.AXIS, AXIS_NAMES[copy.hold.axis]
    headers = [*_without(copy.record.headers, _ANSWERS), *_answers(copy), axis]
    return Record(copy.record.value, copy.record.key, headers=headers, timestamp=now_ms)


def _answers(copy: HeldCopy) -> list[Header]:
    return [
        (names.SENT_AT, _sent_at(copy)),
        _number(names.TICKET, copy.hold.ticket),
        _number(names.DUE, copy.hold.due_ms),
    ]


def _sent_at(copy: HeldCopy) -> bytes:
    """A carried copy says it in a header; in the producer's own record that would be data."""
    if copy.hold.offset != copy.hold.ticket:
        carried = dict(copy.record.headers).get(names.SENT_AT)
        if carried is not None:
            return carried
    return b"%d" % copy.record.timestamp


def _without(headers: Iterable[Header], dropped: Collection[str]) -> list[Header]:
    return [header for header in headers if header[0] not in dropped]


def _number(name: str, value: int) -> Header:
    return name, b"%d" % value
