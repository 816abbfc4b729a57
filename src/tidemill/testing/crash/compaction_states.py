"""Crash states of a compacted log: what a power loss leaves of keys, tombstones and retries.

`crash_states` compares batches byte for byte, which compaction does not preserve. Here a log is
checked by its records:

    I1   the newest acknowledged value of a key is found, or a newer one
    I10  every record found is the one that was written at its offset
    I17  nothing is reported as damaged
    I18  a repeated batch gets its first offset
    I35  a tombstone is dropped only after its horizon, and no older value of its key reappears
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import final

from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import IDEMPOTENCE_WINDOW_BATCHES
from tidemill.core.rng import Rng
from tidemill.storage.compaction.cleanable import try_find_cleanable
from tidemill.storage.compaction.cleaning import Compaction
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.crash.crash_states import try_find_repetition
from tidemill.testing.crash.crash_workloads import A
from tidemill.testing.crash.mini_broker import SMALL, SMALL_JOURNAL, MiniBroker
from tidemill.testing.crash.promises import BrokenPromise, Promises, SentBatch
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import Record, iter_records

__all__ = [
    "CompactingBroker",
    "JournaledCompactingBroker",
    "KeyPromises",
    "check_keys",
    "compaction_workload",
    "unflushed_workload",
]

DELETE_RETENTION_MS = 200
COMPACTED = replace(
    SMALL,
    segment_bytes=700,
    deletes=False,
    compacts=True,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
)
_KEYS = 5
_PRODUCERS = 2

Pair = tuple[bytes, bytes | None]


@final
@dataclass(slots=True)
class KeyPromises:
    """What was written to one compacted log, and which part of it must be found."""

    written: dict[int, list[Record]] = field(default_factory=dict)
    """Offset -> every record that may be found there."""
    acked: dict[bytes, Record] = field(default_factory=dict)
    """Key -> its newest acknowledged record."""
    cleaned_ms: dict[int, int] = field(default_factory=dict)
    """Offset of a tombstone -> when the first cleaning that reached it began."""
    may_go: set[int] = field(default_factory=set)
    """Offsets of tombstones whose horizon has passed."""
    sent: dict[int, list[int]] = field(default_factory=dict)
    """Producer -> base offsets of its batches."""
    acked_batches: list[SentBatch] = field(default_factory=list)
    """Of idempotent producers."""

    def is_in_window(self, batch: SentBatch) -> bool:
        """Whether the log must recognise a repetition of it."""
        sent = self.sent[batch.header.producer_id]
        later = [offset for offset in sent if offset > batch.header.base_offset]
        return len(later) < IDEMPOTENCE_WINDOW_BATCHES


class CompactingBroker(MiniBroker):
    """The leader of one compacted topic."""

    def __init__(
        self, disk: SimDisk, promises: dict[TopicPartition, Promises], keyed: KeyPromises
    ) -> None:
        super().__init__(disk, promises)
        self._disk = disk
        self.keyed = keyed

    def put(self, *pairs: Pair, producer_id: int = -1) -> SentBatch:
        """Append one batch of keys and values; a later `flush` acknowledges it."""
        base_offset = self.log(A).log_end_offset
        records = [
            Record(value, key, timestamp=self._now_ms, offset=base_offset + at)
            for at, (key, value) in enumerate(pairs)
        ]
        for record in records:
            self.keyed.written.setdefault(record.offset, []).append(record)
        self.keyed.sent.setdefault(producer_id, []).append(base_offset)
        return self.append(A, records, producer_id=producer_id)

    def ack(self, partition: TopicPartition, batch: SentBatch) -> None:
        self.promises[partition].is_promised = True
        for record in iter_records(batch.data):
            assert record.key is not None
            newest = self.keyed.acked.get(record.key)
            if newest is None or newest.offset < record.offset:
                self.keyed.acked[record.key] = record
        if batch.header.producer_id >= 0:
            self.keyed.acked_batches.append(batch)

    def wait(self, ms: int) -> None:
        self._now_ms += ms

    def reopen(self, disk: SimDisk) -> None:
        super().reopen(disk)
        self._disk = disk
        self.log(A).set_config(COMPACTED)

    def clean(self) -> None:
        """One cleaning of everything that is flushed."""
        log = self.log(A)
        found = try_find_cleanable(log, log.flushed_offset, now_ms=self._now_ms)
        if found is None:
            return
        self._note_tombstones(log)
        job = Compaction(
            self._disk,
            log,
            found.segments,
            secret=1,
            dedupe_buffer_bytes=1 << 14,
            now_ms=self._now_ms,
        )
        with closing(job.steps()) as steps:
            for step in steps:
                step()

    def _note_tombstones(self, log: FilePartitionLog) -> None:
        keyed = self.keyed
        for offset, records in keyed.written.items():
            if records[-1].value is None and offset < log.flushed_offset:
                first_ms = keyed.cleaned_ms.setdefault(offset, self._now_ms)
                if first_ms + DELETE_RETENTION_MS <= self._now_ms:
                    keyed.may_go.add(offset)


class JournaledCompactingBroker(CompactingBroker):
    """The same; its flushes go to a small journal whenever they can."""

    journal = SMALL_JOURNAL


def check_keys(directory: LogDirectory, keyed: KeyPromises) -> None:
    """Raises BrokenPromise if the log breaks one of its promises."""
    _require(not directory.report.failed, f"not loaded: {directory.report.failed}")
    log = directory.get(A)
    if log is None:
        _require(not keyed.acked, "I1: the log is gone")
        return
    report = directory.report.partitions.get(A)
    if report is not None:
        _require(not report.damage, f"I17: damage was invented: {report.damage}")
    found = {record.offset: record for record in _records(log)}
    for offset, record in found.items():
        _require(record in keyed.written.get(offset, []), f"I10: odd record at {offset}")
    for key, newest in keyed.acked.items():
        _check_key(found, key, newest, keyed)
    for batch in keyed.acked_batches:
        if keyed.is_in_window(batch):
            offset_now = try_find_repetition(log, batch.header)
            _require(
                offset_now == batch.header.base_offset,
                f"I18: the batch of offset {batch.header.base_offset} is taken for {offset_now}",
            )


def _check_key(found: dict[int, Record], key: bytes, newest: Record, keyed: KeyPromises) -> None:
    offsets = [offset for offset, record in found.items() if record.key == key]
    if any(offset >= newest.offset for offset in offsets):
        return
    _require(newest.value is None, f"I1: the value of {key!r} at {newest.offset} is lost")
    _require(newest.offset in keyed.may_go, f"I35: the tombstone {newest.offset} went too early")
    _require(not offsets, f"I35: {key!r} came back at {offsets}")


def _records(log: PartitionLog) -> list[Record]:
    records: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            found = log.read(offset, max_bytes=1 << 16, end_offset=log.log_end_offset)
            data = b"".join(found.chunks if found.load is None else found.load())
        except KafkaError as error:
            raise BrokenPromise(f"I17: {offset} cannot be read: {error}") from error
        _require(bool(data), f"I10: nothing can be read at {offset}")
        for position, header in iter_headers(data):
            _require(header.next_offset > offset, f"I10: {offset} leads back")
            offset = header.next_offset
            records += iter_records(data[position : position + header.size_bytes])
    return records


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenPromise(message)


# --- workload -------------------------------------------------------------------------------------


def compaction_workload(broker: CompactingBroker, disk: SimDisk, *, rng: Rng, rounds: int) -> None:
    """Writes, overwrites and deletes keys, with cleanings and process ends in between."""
    broker.create(A, 1, COMPACTED)
    for number in range(rounds):
        _put_some(broker, rng)
        if rng.below(4) == 0:
            broker.checkpoint()
        if rng.below(5) == 0:
            successor = disk.restart()
            broker.reopen(successor)
            disk = successor
            broker.flush()
        broker.clean()
        if number % 3 == 2:
            broker.wait(DELETE_RETENTION_MS)


def unflushed_workload(broker: CompactingBroker, _disk: SimDisk) -> None:
    """A newer value is in a closed segment that no flush has covered when the cleaning begins."""
    broker.create(A, 1, COMPACTED)
    broker.put((b"k", b"old"), (b"filler", b"x" * 600))
    broker.put((b"filler", b"x" * 600))
    broker.flush()
    for number in range(4):
        broker.put((b"k", b"new %d" % number), (b"filler", b"x" * 600))
    broker.clean()


def _put_some(broker: CompactingBroker, rng: Rng) -> None:
    for _ in range(4 + rng.below(4)):
        pairs = [_pair(broker, rng) for _ in range(1 + rng.below(3))]
        broker.put(*pairs, producer_id=rng.below(_PRODUCERS + 1) - 1)
        if rng.below(2) == 0:
            broker.flush()
    if rng.below(3):
        broker.flush()


def _pair(broker: CompactingBroker, rng: Rng) -> Pair:
    key = b"k%d" % rng.below(_KEYS)
    if rng.below(3) == 0:
        return key, None
    return key, b"%d|" % broker.log(A).log_end_offset * (1 + rng.below(30))
