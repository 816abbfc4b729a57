"""Headers that ask a broker to deliver a record later, and to change its mind.

Each class is a list of header pairs, which confluent-kafka, kafka-python and aiokafka take as they
are; headers of your own are added to it:

    producer.produce("calls", b"call back", key=b"ann", headers=tidemill.Delay("10m", id="ann-7"))
    producer.produce("calls", key=b"ann", headers=tidemill.Cancel("ann-7"))

A command (`Cancel`, `Move`) goes to the partition of what it means, so give it the same key. Its
target is the id of the record, or its ticket: the offset that its producer was answered. It needs
acks=all and a producer that sends nothing else in the same batch: what is refused fails the batch.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import final

from tidemill.core.config.durations import parse_duration_ms
from tidemill.wire import header_names

__all__ = ["Cancel", "Delay", "DelayHeaders", "DeliverAt", "Move", "Schedule"]

_ID_BYTES_MAX = 255
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Length = str | timedelta
"""A length of time: `10m`, or a timedelta."""


class DelayHeaders(list[tuple[str, bytes]]):
    """Pairs of a header's name and value."""

    def _add(self, name: str, value: object) -> None:
        self.append((name, str(value).encode()))

    def _add_id(self, message_id: str | None) -> None:
        if message_id is not None:
            self._add(header_names.MESSAGE_ID, _checked_id(message_id))


@final
class Delay(DelayHeaders):
    """Deliver the record after a length of time, counted from when the broker has it."""

    def __init__(self, delay: Length, *, id: str | None = None) -> None:
        super().__init__()
        self._add(header_names.DELAY_MS, _length_ms(delay))
        self._add_id(id)


@final
class DeliverAt(DelayHeaders):
    """Deliver the record at a time."""

    def __init__(self, time: datetime, *, id: str | None = None) -> None:
        super().__init__()
        self._add(header_names.DELIVER_AT, _time_ms(time))
        self._add_id(id)


@final
class Schedule(DelayHeaders):
    """Deliver the record again and again, when a cron line says; the same id replaces the line."""

    def __init__(self, cron: str, *, id: str, zone: str | None = None) -> None:
        super().__init__()
        self._add(header_names.SCHEDULE, f"CRON_TZ={zone} {cron}" if zone else cron)
        self._add_id(id)


@final
class Cancel(DelayHeaders):
    """Never deliver what is held under an id or a ticket."""

    def __init__(self, target: str | int) -> None:
        super().__init__()
        self._add(header_names.COMMAND, "cancel")
        self._add(header_names.TARGET, _target(target))


@final
class Move(DelayHeaders):
    """Deliver what is held under an id or a ticket at another time, or after a length of time."""

    def __init__(self, target: str | int, to: datetime | Length) -> None:
        super().__init__()
        self._add(header_names.COMMAND, "move")
        self._add(header_names.TARGET, _target(target))
        if isinstance(to, datetime):
            self._add(header_names.DELIVER_AT, _time_ms(to))
        else:
            self._add(header_names.DELAY_MS, _length_ms(to))


def _length_ms(length: Length) -> int:
    """Rounded up: nothing is delivered early."""
    if isinstance(length, str):
        return parse_duration_ms(length)
    if length < timedelta():
        raise ValueError(f"a delay of {length} is in the past")
    return -(-length // _MILLISECOND)


def _time_ms(time: datetime) -> int:
    if time.utcoffset() is None:
        raise ValueError(f"{time.isoformat()} has no time zone; add one, as in datetime.now(UTC)")
    return -((_EPOCH - time) // _MILLISECOND)


def _target(target: str | int) -> str:
    if isinstance(target, str):
        return f"id:{_checked_id(target)}"  # also when it looks like a ticket
    if target < 0:
        raise ValueError(f"{target} is no ticket: the record was not acknowledged")
    return str(target)


def _checked_id(message_id: str) -> str:
    if not 1 <= len(message_id.encode()) <= _ID_BYTES_MAX:
        raise ValueError(f"an id has 1 to {_ID_BYTES_MAX} bytes")
    return message_id
