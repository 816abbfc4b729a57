"""What transactional producers and their readers saw, and the promises I18-I24.

Every value names its sender: `producer/transaction/record`. A *stray* is a record that its producer
sends after the transaction, or as an instance that was replaced: it may at most become part of the
transaction whose epoch it carries, as if it had come in time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tidemill.core.ids import TopicPartition
from tidemill.wire.records import Record

__all__ = ["NO_OFFSET", "Outcome", "SentTransaction", "TransactionHistory"]

NO_OFFSET = -1


class Outcome(Enum):
    """What its producer knows of a transaction."""

    ABORTED = auto()
    """Nobody asked to commit it, or that was refused: nothing of it may ever be seen."""
    COMMITTED = auto()
    """Its producer was told so."""
    UNKNOWN = auto()
    """A commit was asked for and not answered: all of it is seen, or nothing."""


@dataclass(slots=True)
class SentTransaction:
    """One transaction."""

    producer: int
    number: int
    outcome: Outcome = Outcome.ABORTED
    records: dict[bytes, TopicPartition] = field(default_factory=dict)
    strays: set[bytes] = field(default_factory=set)
    acked: dict[bytes, int] = field(default_factory=dict)
    """The offsets that its producer was told."""
    offset: int = NO_OFFSET
    """That was committed for its producer's group as part of it."""

    def value(self, partition: TopicPartition) -> bytes:
        made = b"%d/%06d/%03d" % (self.producer, self.number, len(self.records))
        self.records[made] = partition
        return made

    def stray(self) -> bytes:
        made = b"%d/%06d/stray%03d" % (self.producer, self.number, len(self.strays))
        self.strays.add(made)
        return made


class TransactionHistory:
    """All transactions of one run, and what a committed reader saw of them."""

    def __init__(self, life: Callable[[], int] = lambda: 0) -> None:
        """`life` counts the power losses after which logs may end earlier (`History.life`)."""
        self._life = life
        self.sent: list[SentTransaction] = []
        self._numbers: dict[int, int] = defaultdict(int)
        self._read: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self._stable: dict[tuple[int, TopicPartition], int] = {}

    @property
    def committed(self) -> int:
        return sum(one.outcome is Outcome.COMMITTED for one in self.sent)

    def begin(self, producer: int) -> SentTransaction:
        self._numbers[producer] += 1
        made = SentTransaction(producer, self._numbers[producer])
        self.sent.append(made)
        return made

    # --- during the run --------------------------------------------------------------------------

    def read(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        """A reader saw these; what it saw before at the same offset was the same (I2)."""
        seen = self._read[partition]
        for record in records:
            value = bytes(record.value or b"")
            known = seen.setdefault(record.offset, value)
            assert known == value, f"I20: {partition} {record.offset} was {known!r}, now {value!r}"

    def known_stable(self, partition: TopicPartition) -> int:
        """The largest stable offset that anybody was told; read it before the next request."""
        return self._stable.get((self._life(), partition), 0)

    def stable_offset(self, partition: TopicPartition, offset: int, *, known_before: int) -> None:
        """I23: a request sent after another was answered gets no smaller one."""
        text = f"I23: {partition} was stable at {known_before}, now {offset}"
        assert offset >= known_before, text
        key = (self._life(), partition)
        self._stable[key] = max(offset, self._stable.get(key, 0))

    # --- at the end ------------------------------------------------------------------------------

    def check_final(
        self,
        found: Mapping[TopicPartition, Iterable[Record]],
        passed: Mapping[TopicPartition, range],
    ) -> None:
        """`found` is all that a new committed reader sees; `passed` are the offsets that the
        reader of the run went through without a break."""
        places: dict[bytes, tuple[TopicPartition, int]] = {}
        for partition, records in found.items():
            for record in records:
                value = bytes(record.value or b"")
                assert value not in places, f"I18: {value!r} is there twice"
                places[value] = (partition, record.offset)
        for one in self.sent:
            _check_transaction(one, places)
        known = {value for one in self.sent for value in (*one.records, *one.strays)}
        assert places.keys() <= known, f"I3: {places.keys() - known}"
        self._check_reads(places, passed)
        _check_order(found)

    def _check_reads(
        self,
        places: Mapping[bytes, tuple[TopicPartition, int]],
        passed: Mapping[TopicPartition, range],
    ) -> None:
        for partition, seen in self._read.items():
            for offset, value in seen.items():
                place = places.get(value)
                assert place == (partition, offset), f"I21: {value!r} was read, is now {place}"
        for value, (partition, offset) in places.items():
            if offset in passed.get(partition, ()):
                seen = self._read[partition]
                assert offset in seen, f"I20: a reader passed {value!r} and did not see it"

    def committed_offset(self, producer: int, places: Iterable[bytes]) -> int:
        """What the group of a producer must have committed, given all values that are seen."""
        seen = set(places)
        offset = NO_OFFSET
        for one in self.sent:
            is_seen = not seen.isdisjoint(one.records)
            is_committed = one.outcome is Outcome.COMMITTED or is_seen
            if one.producer == producer and is_committed and one.offset != NO_OFFSET:
                offset = one.offset
        return offset


def _check_transaction(
    one: SentTransaction, places: Mapping[bytes, tuple[TopicPartition, int]]
) -> None:
    """I18, I19-I22: all or nothing of it, by its outcome, at the offsets that were told."""
    name = f"transaction {one.producer}/{one.number} ({one.outcome.name})"
    seen = {value for value in one.records if value in places}
    if one.outcome is Outcome.ABORTED:
        assert not seen, f"I21: {name}: {sorted(seen)} can be read"
    if seen or one.outcome is Outcome.COMMITTED:
        missing = one.records.keys() - seen
        assert not missing, f"I20: {name}: {sorted(missing)} is missing"
    strays = one.strays.intersection(places)
    assert not strays or seen, f"I22: {name}: strays {sorted(strays)} can be read"
    for value in seen:
        partition, offset = places[value]
        assert partition == one.records[value], f"{name}: {value!r} is in {partition}"
        told = one.acked.get(value, offset)
        assert told == offset, f"I18: {name}: {value!r} is at {offset}, was told {told}"


def _check_order(found: Mapping[TopicPartition, Iterable[Record]]) -> None:
    """I5: a producer's committed values come in the order in which it sent them."""
    for partition, records in found.items():
        last: dict[bytes, bytes] = {}
        for record in records:
            value = bytes(record.value or b"")
            producer, _, rest = value.partition(b"/")
            if b"stray" in rest:
                continue
            assert last.get(producer, b"") < rest, f"I5: {partition}: {value!r} is too late"
            last[producer] = rest
