"""What clients asked of held records, and what the logs say became of it, by definition.

A `HoldWitness` reads every batch that a leader has appended, and keeps the time at which it was
first there. Of the batches that every in-sync replica has flushed it makes a `HoldLedger`: who is
held, released, cancelled. The ledger shares no code with the books of the brokers, and knows the
truth that no broker knows: when a client sent a record, on a clock that nobody sets.

- I31  nothing is released before its time
- I32  what is held ends once: released, cancelled or aborted, and a ticket has one release
- I21  what is held in a transaction is released behind its commit, and never after an abort
- I1   what was acknowledged is in the log
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sim.history import History
from tests.support.transaction_history import Outcome, SentTransaction
from tidemill.core.ids import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.testing.sim.world import SimWorld
from tidemill.wire import header_names as names
from tidemill.wire.batch import BatchHeader, iter_headers
from tidemill.wire.marks import is_ours, is_veiled
from tidemill.wire.records import Record, iter_records
from tidemill.wire.transaction_marker import read_marker

__all__ = ["Asked", "HoldHistory", "HoldLedger", "HoldWitness", "OpenHold"]

READ_BYTES = 1 << 20
RELEASED, CANCELLED, ABORTED = "released", "cancelled", "aborted"
UNDECIDED = "in an open transaction"
"""What may be known of a ticket that is not open."""


class Asked(NamedTuple):
    """What one record asked for; its value names it."""

    kind: str
    """plain, hold, schedule, cancel, move."""
    earliest_s: float = 0.0
    """When it may be delivered, in the time of the simulation."""
    target: int | bytes = -1
    """Of a command: a ticket, or a message id."""
    message_id: bytes | None = None
    is_delay: bool = False
    """A length of time, not a time of day."""
    is_far: bool = False
    """Not due during the run."""
    transaction: SentTransaction | None = None
    """That decides about it."""

    def check_committed(self, value: bytes) -> None:
        """Nobody may take it for committed before its producer has asked for that."""
        is_aborted = self.transaction is not None and self.transaction.outcome is Outcome.ABORTED
        assert not is_aborted, f"I21: {value!r} counts as committed, and nobody asked for that"


@dataclass(slots=True)
class OpenHold:
    """A hold that has not ended."""

    value: bytes
    copy: int
    due_ms: int
    """As the bytes have it; of a schedule without a plan, -1."""
    epoch: int
    """Of the leader that stamped its due time."""
    asked: Asked


@dataclass(slots=True)
class Undecided:
    """What the log has of an open transaction, by offset."""

    records: dict[int, bytes] = field(default_factory=dict)
    holds: dict[int, OpenHold] = field(default_factory=dict)


class HoldHistory:
    """What clients asked for and were told."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.asked: dict[bytes, Asked] = {}
        self.acked: dict[TopicPartition, dict[int, bytes]] = {}
        self.refused: set[bytes] = set()
        """Commands that came too late: they are not in the log."""
        self.tickets: list[tuple[TopicPartition, int, bytes | None]] = []
        """Of all that was acknowledged and asked to be held, with its message id."""
        self._reads: dict[tuple[int, bool], dict[tuple[TopicPartition, int], bytes]] = {}
        """By life, and whether the reader asked for committed records."""

    def ask(self, value: bytes, asked: Asked) -> None:
        self.asked[value] = asked

    def sent(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        told = self.acked.setdefault(partition, {})
        assert told.setdefault(offset, value) == value, f"I2: {partition} {offset}"
        asked = self.asked[value]
        if asked.kind in ("hold", "schedule"):
            self.tickets.append((partition, offset, asked.message_id))

    def read(
        self, partition: TopicPartition, records: Iterable[Record], *, is_committed: bool
    ) -> None:
        """What a reader was given; `check_reads` compares it with the log."""
        reads = self._reads.setdefault((self._history.life, is_committed), {})
        for record in records:
            value = bytes(record.value or b"")
            asked = self.asked[value]
            is_shown = asked.kind in ("plain", "hold", "schedule")
            assert is_shown, f"a command was read: {value!r}"
            if is_committed:
                asked.check_committed(value)
            assert reads.setdefault((partition, record.offset), value) == value, "I2"

    def check_reads(
        self, partition: TopicPartition, shown: Mapping[int, bytes], *, is_committed: bool
    ) -> None:
        """What was read since logs last may have become shorter is what the log shows."""
        reads = self._reads.get((self._history.life, is_committed), {})
        for (one, offset), value in reads.items():
            if one == partition:
                assert shown.get(offset) == value, f"I8: {value!r} was read at {offset}"


@dataclass(slots=True)
class HoldLedger:
    """What a log says, one record after the other."""

    history: HoldHistory
    wall_ms: Callable[[float], int]
    """The right time of day, at a time of the simulation."""
    open: dict[int, OpenHold] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    """By ticket: what became of it, or that its transaction is open."""
    undecided: dict[int, Undecided] = field(default_factory=dict)
    """The open transactions, by producer id."""
    committed: dict[int, bytes] = field(default_factory=dict)
    """The clients' records of committed transactions, by offset; held ones by their tickets."""
    aborted: set[int] = field(default_factory=set)
    """The offsets that only a reader of uncommitted records is shown."""
    visible: dict[int, bytes] = field(default_factory=dict)
    found: dict[int, bytes] = field(default_factory=dict)
    """The clients' records, by offset."""
    carried: int = 0
    ticks: int = 0

    def add(self, data: memoryview, header: BatchHeader, at_s: float) -> None:
        """The next batch, which was first in a log at `at_s`."""
        if header.is_control:
            if header.is_transactional:
                self._decide(header.producer_id, is_commit=read_marker(data, header).is_commit)
            return
        for record in iter_records(data):
            if is_ours(header):
                self._add_ours(record, header, at_s)
            else:
                self._add_of_client(record, header, at_s)

    def shown(self, *, is_committed: bool) -> dict[int, bytes]:
        """What a reader is given, once no transaction is open."""
        hidden = self.aborted if is_committed else set()
        return {offset: value for offset, value in self.visible.items() if offset not in hidden}

    def _add_of_client(self, record: Record, header: BatchHeader, at_s: float) -> None:
        value, headers = bytes(record.value or b""), dict(record.headers)
        asked = self.history.asked[value]
        assert value not in self.found.values(), f"I4: {value!r} is there twice"
        self.found[record.offset] = value
        if header.is_transactional:
            open_ = self.undecided.setdefault(header.producer_id, Undecided())
            open_.records[record.offset] = value
        if asked.kind == "plain":
            self.visible[record.offset] = value
        elif not is_veiled(header):
            assert at_s >= asked.earliest_s, f"I31: {value!r} was not held"
            self.visible[record.offset] = value
            self.ended[record.offset] = RELEASED
        elif asked.kind in ("hold", "schedule"):
            due_ms = _due_ms(headers, header)
            hold = OpenHold(value, record.offset, due_ms, header.partition_leader_epoch, asked)
            if header.is_transactional:
                self.undecided[header.producer_id].holds[record.offset] = hold
                self.ended[record.offset] = UNDECIDED
            else:
                self._open(hold)
        else:
            self._command(value, headers, header, asked)

    def _decide(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker: what is held in the transaction is open from here on, or never."""
        ended = self.undecided.pop(producer_id, Undecided())
        for ticket, hold in ended.holds.items():
            del self.ended[ticket]
            if is_commit:
                self._open(hold)
            else:
                self.ended[ticket] = ABORTED
        if not is_commit:
            self.aborted |= ended.records.keys() & self.visible.keys()
            return
        for value in ended.records.values():
            self.history.asked[value].check_committed(value)
        self.committed |= ended.records

    def _open(self, made: OpenHold) -> None:
        asked = made.asked
        if asked.kind == "schedule":
            for older, hold in list(self.open.items()):
                if hold.asked.kind == "schedule" and hold.asked.message_id == asked.message_id:
                    self._end(older, CANCELLED)
        self.open[made.copy] = made

    def _command(
        self, value: bytes, headers: Mapping[str, bytes | None], header: BatchHeader, asked: Asked
    ) -> None:
        ticket = self._target(asked.target)
        if asked.kind == "cancel":
            before = self.ended.get(ticket) if ticket is not None else None
            is_early_or_late = before in (RELEASED, UNDECIDED)
            assert not is_early_or_late, f"I32: {value!r} cancelled {ticket}, which was {before}"
            if ticket in self.open:
                self._end(ticket, CANCELLED)
            return
        assert ticket in self.open, f"{value!r} moved {ticket}, which is not held"
        hold = self.open[ticket]
        hold.due_ms = _due_ms(headers, header)
        is_far = asked.is_far or hold.asked.kind == "schedule"
        hold.epoch = header.partition_leader_epoch
        hold.asked = hold.asked._replace(
            earliest_s=asked.earliest_s, is_far=is_far, is_delay=asked.is_delay
        )

    def _target(self, target: int | bytes) -> int | None:
        if isinstance(target, int):
            return target
        named = [
            (one.copy, ticket)
            for ticket, one in self.open.items()
            if one.asked.message_id == target
        ]
        return max(named)[1] if named else None

    def _add_ours(self, record: Record, header: BatchHeader, at_s: float) -> None:
        value, headers = bytes(record.value or b""), dict(record.headers)
        ticket = int(headers[names.TICKET] or b"")
        hold = self.open.get(ticket)
        before = self.ended.get(ticket, "never held")
        assert hold is not None, f"I32: {ticket} comes at {record.offset}, it was {before} before"
        assert hold.value == value, f"I2: {ticket} was {hold.value!r}, now {value!r}"
        due_ms = int(headers[names.DUE] or b"")
        if is_veiled(header):
            hold.copy = record.offset
            hold.due_ms = due_ms
            self.carried += 1
            return
        assert due_ms == hold.due_ms, f"I31: {ticket} is due at {hold.due_ms}, not {due_ms}"
        self._check_time(hold, header.partition_leader_epoch, at_s)
        self.visible[record.offset] = value
        if names.NEXT in headers:
            self.ticks += 1
            hold.due_ms = int(headers[names.NEXT] or b"")
            assert hold.due_ms > due_ms, f"{ticket}: the next tick is not later"
        else:
            self._end(ticket, RELEASED)

    def _end(self, ticket: int, how: str) -> None:
        del self.open[ticket]
        self.ended[ticket] = how

    def _check_time(self, hold: OpenHold, epoch: int, at_s: float) -> None:
        """A delay is as long as it was while one broker leads; over a failover wall clocks count.

        No broker's is ahead here, but the one that stamped the hold may have been behind.
        """
        early_s = hold.asked.earliest_s - at_s
        if hold.asked.is_delay and epoch != hold.epoch:
            early_s = (hold.due_ms - self.wall_ms(at_s) - 1) / 1000
        assert early_s <= 0, f"I31: {hold.value!r} was released {early_s:.3f} s early"


def _due_ms(headers: Mapping[str, bytes | None], header: BatchHeader) -> int:
    if names.SCHEDULE in headers:
        return -1
    if names.DELIVER_AT in headers:
        return int(headers[names.DELIVER_AT] or b"")
    return header.base_timestamp + int(headers[names.DELAY_MS] or b"")


class HoldWitness:
    """Sees every batch of these partitions, whatever becomes of its file."""

    def __init__(
        self, world: SimWorld, history: HoldHistory, partitions: Iterable[TopicPartition]
    ) -> None:
        self._world = world
        began_ms = world.clock.wall_ms() - int(world.loop.time() * 1000)
        self.ledgers = {
            partition: HoldLedger(history, lambda at_s: began_ms + round(at_s * 1000))
            for partition in partitions
        }
        self._next = dict.fromkeys(self.ledgers, 0)
        self._ends: dict[tuple[TopicPartition, int, int], int] = {}
        """How far the log of a leader was looked at, by partition, broker and epoch."""
        self._first_s: dict[tuple[TopicPartition, int, int], float] = {}
        """When a batch was first in a log, by partition, epoch and offset."""
        self.broken: AssertionError | None = None

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def look(self) -> None:
        """To be called after every event."""
        if self.broken is not None:
            return
        try:
            for broker_id, broker in self._world.up_brokers().items():
                for partition in self.ledgers:
                    copy = broker.replicas.find(*partition)
                    if copy is not None and copy.is_leader:
                        self._look_at(partition, broker_id, copy)
        except AssertionError as broken:
            now = self._world.loop.time()
            self.broken = AssertionError(f"{now:.3f} {partition}: {broken}")

    def _look_at(self, partition: TopicPartition, broker_id: int, copy: Partition) -> None:
        key = partition, broker_id, copy.leader_epoch
        log, now = copy.log, self._world.loop.time()
        if log.log_end_offset > self._ends.get(key, -1):
            start = max(self._ends.get(key, 0), self._next[partition])
            for _, header in _batches(copy, start, log.log_end_offset):
                name = partition, header.partition_leader_epoch, header.base_offset
                self._first_s.setdefault(name, now)
            self._ends[key] = log.log_end_offset
        if copy.durable_offset > self._next[partition]:
            self._add_durable(partition, copy)

    def _add_durable(self, partition: TopicPartition, copy: Partition) -> None:
        start, end = self._next[partition], copy.durable_offset
        for data, header in _batches(copy, start, end):
            assert header.base_offset == self._next[partition], f"{start} is gone already"
            name = partition, header.partition_leader_epoch, header.base_offset
            at_s = self._first_s.get(name, self._world.loop.time())
            self.ledgers[partition].add(data, header, at_s)
            self._next[partition] = header.next_offset

    def end(self, partition: TopicPartition) -> int:
        """Where the durable log ends."""
        return self._next[partition]


def _batches(copy: Partition, start: int, end: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The whole batches of a log between two offsets."""
    log, offset = copy.log, max(start, copy.log.log_start_offset)
    while offset < end:
        found = log.read(offset, max_bytes=READ_BYTES, end_offset=end)
        chunks = found.chunks if found.load is None else found.load()
        before = offset
        for chunk in chunks:
            view = memoryview(chunk)
            for position, header in iter_headers(view):
                if offset <= header.base_offset and header.next_offset <= end:
                    yield view[position : position + header.size_bytes], header
                offset = max(offset, header.next_offset)
        if offset == before:
            return
