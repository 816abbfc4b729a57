"""What clients were told, and the invariants that must hold (docs/reference/numbers.md).

Values are unique and name their sender: `producer/number`. Offsets are compared by value, so a
lost, doubled, moved or foreign record shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from tidemill.core.ids import TopicPartition
from tidemill.wire.records import Record

__all__ = ["History"]

HASTY = b"h"
"""Begins the values that nobody promised to keep."""


class History:
    """Sends, acknowledgements and reads of one run."""

    def __init__(self, told: Callable[[TopicPartition], int] = lambda _partition: 1 << 62) -> None:
        """`told` is the highest mark that any leader has had."""
        self._told = told
        self.invoked: set[bytes] = set()
        self.acked: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self.life = 0
        """Counts power losses of all in-sync replicas: records that were read but not acknowledged
        may change then (I8)."""
        self.stale_hosts = 0
        """Hosts whose clock stood still a moment ago: for the rest of their lease they may answer
        readers with an end of the past."""
        self._reads: dict[tuple[int, TopicPartition], dict[int, bytes]] = defaultdict(dict)
        self._ends: dict[tuple[int, TopicPartition], int] = {}
        self._deleted: dict[TopicPartition, int] = defaultdict(int)
        """Everything below may have been deleted by request."""
        self._forgotten: dict[TopicPartition, int] = defaultdict(int)
        """What was acknowledged below was checked, and is not kept."""
        self._invoked_before: set[bytes] = set()
        self._found: dict[TopicPartition, dict[int, bytes]] = {}
        """What the last check found in the log."""

    def begin_life(self) -> None:
        """What was read and not acknowledged may change from now on."""
        self.life += 1

    def value(self, producer: int, number: int) -> bytes:
        value = b"%d/%06d" % (producer, number)
        self.invoked.add(value)
        return value

    def hasty_value(self, producer: int, number: int) -> bytes:
        """For a send with acks=1: it may be lost, or be there twice."""
        value = HASTY + b"%d/%06d" % (producer, number)
        self.invoked.add(value)
        return value

    def sent(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """I2: no other producer was given this offset."""
        assert self.acked[partition].setdefault(offset, value) == value, (partition, offset)

    def read(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        """I2, I3, I8: one value per offset, only what was sent, and nothing above the mark."""
        reads, acked = self._reads[self.life, partition], self.acked[partition]
        for record in records:
            assert record.value is not None
            assert record.offset < self._told(partition), f"I8: {partition} {record.offset}"
            value = bytes(record.value)
            assert value in self.invoked or value in self._invoked_before, value
            assert reads.setdefault(record.offset, value) == value, (partition, record.offset)
            assert acked.get(record.offset, value) == value, (partition, record.offset)

    def deleting(self, partition: TopicPartition, offset: int) -> None:
        """Someone asks to delete all records below `offset`."""
        self._deleted[partition] = max(offset, self._deleted[partition])

    def forget_checked(self) -> None:
        """Keep only what can still be asked for: for a run that is long, at rest and checked.

        A send that was given up can arrive late, so values stay for one more round.
        """
        for partition, offset in self._deleted.items():
            self._forgotten[partition] = offset
            _drop_below(self.acked[partition], offset)
            _drop_below(self._reads[self.life, partition], offset)
        self._reads = defaultdict(dict, {k: v for k, v in self._reads.items() if k[0] == self.life})
        self._ends = {key: end for key, end in self._ends.items() if key[0] == self.life}
        found = {value for values in self._found.values() for value in values.values()}
        self._invoked_before, self.invoked = self.invoked | found, set()

    def readable_from(self, partition: TopicPartition) -> int:
        """Where a reader may begin: everything before was deleted and forgotten."""
        return self._forgotten[partition]

    def known_end(self, partition: TopicPartition) -> int:
        """The largest end that any client was told; read it before the next request."""
        return self._ends.get((self.life, partition), 0)

    def end_offset(self, partition: TopicPartition, offset: int, *, known_before: int) -> None:
        """I9: a request sent after another was answered gets no smaller end."""
        if not self.stale_hosts:
            assert offset >= known_before, f"I9: {partition} ended at {known_before}, now {offset}"
        key = (self.life, partition)
        self._ends[key] = max(offset, self._ends.get(key, 0))

    def _missing(
        self, partition: TopicPartition, expected: dict[int, bytes], found: dict[int, bytes]
    ) -> dict[int, bytes]:
        deleted = self._deleted[partition]
        return {o: v for o, v in expected.items() if o >= deleted and found.get(o) != v}

    def check_final(self, partition: TopicPartition, records: list[Record]) -> None:
        """I1, I4, I5, I8: what was acknowledged or read is there once, in its producer's order."""
        found = {record.offset: bytes(record.value or b"") for record in records}
        self._found[partition] = found
        lost = self._missing(partition, self.acked[partition], found)
        assert not lost, f"I1: lost in {partition}: {lost}"
        gone = self._missing(partition, self._reads[self.life, partition], found)
        assert not gone, f"I8: was read in {partition} and is gone: {gone}"
        values = [value for value in found.values() if not value.startswith(HASTY)]
        assert len(values) == len(set(values)), f"I4: doubled in {partition}"
        last: dict[bytes, bytes] = {}
        for value in values:
            producer, _, _ = value.partition(b"/")
            assert last.get(producer, b"") < value, f"I5: {value!r} after {last[producer]!r}"
            last[producer] = value


def _drop_below(values: dict[int, bytes], offset: int) -> None:
    for known in [one for one in values if one < offset]:
        del values[known]
