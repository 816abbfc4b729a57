"""The state of a book at one offset, as bytes: a snapshot spares the replay of what lies before.

    head      next offset, newest stamp, durable offset, bytes held     i64 each
    tables    count u32, then the open holds in memory
    runs      count u32, then of each: serial i64, checksum u32, its ranges of tickets 4 x i64,
              bytes u32, and which rows are taken, compressed
    undecided count u32, then of each: producer id i64, hold
    pins      count u32, then of each: offset of the end i64, offset of the copy i64
    hold      ticket i64, due i64, axis u8, offset i64, size u32, bytes of id u16 and of
              schedule u16, id, schedule

A capture is taken on the event loop, and copies only references and a byte per row of a strand or a
run; it is encoded in a thread. The runs themselves are files already. Big-endian.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import chain
from struct import Struct, error
from typing import NamedTuple, final

from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_strand import FrozenStrand
from tidemill.delivery.holds.tickets.ticket_routes import TicketRange

__all__ = ["HoldCapture", "RunCapture"]

_HEAD = Struct(">qqqq")
_COUNT = Struct(">I")
_RUN = Struct(">qIqqqqI")
_PRODUCER = Struct(">q")
_PIN = Struct(">qq")
_HOLD = Struct(">qqBqIHH")
_TAKEN_BYTES_MAX = 1 << 20
"""A run has far fewer rows."""


class RunCapture(NamedTuple):
    """A run in use: its file is named by the serial."""

    serial: int
    checksum: int
    tickets: TicketRange
    taken: bytes


class HoldCapture(NamedTuple):
    """Everything that a book knows, after all below `next_offset`."""

    next_offset: int
    newest_stamp_ms: int
    durable_offset: int
    pending_bytes: int
    holds: list[Hold]
    """Those in memory, and what is open in these strands."""
    strands: list[FrozenStrand]
    runs: list[RunCapture]
    undecided: list[tuple[int, Hold]]
    """With the producer whose marker decides."""
    pins: list[tuple[int, int]]

    def encode(self) -> bytes:
        parts = [_HEAD.pack(*self[:4])]
        parts += _counted([_encode_hold(hold) for hold in chain(self.holds, *self.strands)])
        parts += _counted([_encode_run(run) for run in self.runs])
        undecided = [_PRODUCER.pack(one) + _encode_hold(hold) for one, hold in self.undecided]
        parts += _counted(undecided)
        parts += _counted([_PIN.pack(*pin) for pin in self.pins])
        return b"".join(parts)

    @classmethod
    def decode(cls, data: memoryview) -> HoldCapture:
        """ValueError if these are not the bytes of a capture."""
        reader = _Reader(data)
        try:
            next_offset, newest_stamp_ms, durable_offset, pending_bytes = reader.numbers(_HEAD)
            made = cls(
                next_offset,
                newest_stamp_ms,
                durable_offset,
                pending_bytes,
                holds=[reader.hold() for _ in range(reader.count())],
                strands=[],
                runs=[reader.run() for _ in range(reader.count())],
                undecided=[reader.undecided() for _ in range(reader.count())],
                pins=[reader.pin() for _ in range(reader.count())],
            )
        except (error, zlib.error, UnicodeDecodeError) as err:
            raise ValueError(f"not a capture of holds: {err}") from None
        reader.end()
        return made


def _counted(parts: list[bytes]) -> Iterable[bytes]:
    return [_COUNT.pack(len(parts)), *parts]


def _encode_hold(hold: Hold) -> bytes:
    message_id, schedule = hold.message_id or b"", (hold.schedule or "").encode()
    numbers = hold.ticket, hold.due_ms, hold.axis, hold.offset, hold.size_bytes
    return _HOLD.pack(*numbers, len(message_id), len(schedule)) + message_id + schedule


def _encode_run(run: RunCapture) -> bytes:
    taken = zlib.compress(run.taken, 1)
    return _RUN.pack(run.serial, run.checksum, *run.tickets, len(taken)) + taken


@final
class _Reader:
    """Reads on from where it is."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def numbers(self, layout: Struct) -> tuple[int, ...]:
        found: tuple[int, ...] = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def count(self) -> int:
        return self.numbers(_COUNT)[0]

    def hold(self) -> Hold:
        ticket, due_ms, axis, offset, size_bytes, id_bytes, schedule_bytes = self.numbers(_HOLD)
        message_id = self._bytes(id_bytes) or None
        schedule = self._bytes(schedule_bytes).decode() or None
        return Hold(ticket, due_ms, Axis(axis), offset, size_bytes, message_id, schedule)

    def run(self) -> RunCapture:
        serial, checksum, *tickets, size_bytes = self.numbers(_RUN)
        packed = zlib.decompressobj()
        taken = packed.decompress(self._bytes(size_bytes), _TAKEN_BYTES_MAX)
        return RunCapture(serial, checksum, TicketRange(*tickets), taken)

    def undecided(self) -> tuple[int, Hold]:
        return self.numbers(_PRODUCER)[0], self.hold()

    def pin(self) -> tuple[int, int]:
        end_offset, copy_offset = self.numbers(_PIN)
        return end_offset, copy_offset

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes behind a capture of holds")

    def _bytes(self, size: int) -> bytes:
        found = bytes(self._data[self._at : self._at + size])
        if len(found) != size:
            raise ValueError("a capture of holds is cut")
        self._at += size
        return found
