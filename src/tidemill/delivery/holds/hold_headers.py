"""What the headers of one record say about holds.

Intake refuses values that cannot be read, so what is stored can. Should a stored value be
unreadable all the same, the record is held for ever rather than delivered early.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.delivery.holds.hold import DUE_NEVER, DUE_TO_BE_PLANNED, Axis
from tidemill.wire import header_names as names

__all__ = [
    "AXIS",
    "AXIS_NAMES",
    "CANCEL",
    "COMMAND",
    "DELAY_MS",
    "DELIVER_AT",
    "DUE",
    "MESSAGE_ID",
    "MOVE",
    "NEXT",
    "SCHEDULE",
    "TARGET",
    "TICKET",
    "Headers",
    "Target",
    "is_held",
    "read_axis",
    "read_due",
    "read_number",
    "read_target",
]

Headers = Mapping[bytes, bytes | None]
"""The last of each name counts, as in Kafka's `lastHeader`."""
Target = int | bytes
"""What a command names: a ticket, or a message id."""

DELIVER_AT: Final = names.DELIVER_AT.encode()
DELAY_MS: Final = names.DELAY_MS.encode()
SCHEDULE: Final = names.SCHEDULE.encode()
MESSAGE_ID: Final = names.MESSAGE_ID.encode()
COMMAND: Final = names.COMMAND.encode()
TARGET: Final = names.TARGET.encode()
TICKET: Final = names.TICKET.encode()
DUE: Final = names.DUE.encode()
AXIS: Final = names.AXIS.encode()
NEXT: Final = names.NEXT.encode()

CANCEL: Final = b"cancel"
MOVE: Final = b"move"

AXIS_NAMES: Final = {Axis.WALL: b"wall", Axis.STEADY: b"steady"}

_ID_PREFIX = b"id:"
_DIGITS_MAX = 19


def read_number(value: bytes | None) -> int | None:
    """A decimal number of 63 bits; None if `value` is something else."""
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return None
    number = int(value)
    return number if number <= DUE_NEVER else None


def is_held(headers: Headers) -> bool:
    """Whether the record asks to be held."""
    return DELIVER_AT in headers or DELAY_MS in headers or SCHEDULE in headers


def read_due(headers: Headers, stamp_ms: int) -> tuple[int, Axis]:
    """When a record with these headers is due, taken in at `stamp_ms`.

    A delay counts from the stamp, which is in the log: every replica finds the same due time,
    whenever it reads. A schedule is due at once, to be planned (`Hold.needs_plan`).
    """
    if SCHEDULE in headers:
        return DUE_TO_BE_PLANNED, Axis.WALL
    if DELIVER_AT in headers:
        due_ms = read_number(headers[DELIVER_AT])
        return DUE_NEVER if due_ms is None else due_ms, Axis.WALL
    delay_ms = read_number(headers.get(DELAY_MS))
    return DUE_NEVER if delay_ms is None else min(stamp_ms + delay_ms, DUE_NEVER), Axis.STEADY


def read_axis(headers: Headers) -> Axis:
    """The axis of a carried copy."""
    return Axis.STEADY if headers.get(AXIS) == AXIS_NAMES[Axis.STEADY] else Axis.WALL


def read_target(headers: Headers) -> Target | None:
    """What a command names; None if it names nothing.

    Digits alone are a ticket. An id of digits alone is written with `id:` before it, which may
    precede any id: the bytes decide, because a replica that lacks older holds must decide alike.
    """
    value = headers.get(TARGET)
    if not value:
        return None
    if value.isdigit():
        return read_number(value)
    return value.removeprefix(_ID_PREFIX) or None
