"""A broker in miniature: what a leader does with its logs, and a record of what it promised.

No network and no loop: produce with and without idempotence, flush rounds, acknowledgements,
checkpoints, retention, DeleteRecords, truncation, topic deletion, clean and unclean ends. A promise
is recorded before the call that makes it returns, and withdrawn before work begins that may break
it. So a crash at any disk call finds the record right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID
from zlib import crc32

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.limits import SEGMENTS_PER_DROP
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.log_creation import WantedLog
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import DiskFile
from tidemill.storage.journal.round_journal import JournalLimits
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment_drop import SegmentDrop
from tidemill.testing.crash.promises import BrokenPromise, Promises, SentBatch, next_sequence
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import assign_offsets, read_header
from tidemill.wire.records import Record, build_batch
from tidemill.wire.transaction_marker import TransactionMarker, build_marker

__all__ = ["SMALL", "SMALL_JOURNAL", "JournaledBroker", "MiniBroker", "open_directory"]

ROOT = "/data"
SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=300, delete_delay_ms=0)
"""Segments and index intervals of a few batches, so that a short workload has many of them."""

NO_JOURNAL = JournalLimits(bytes_max=0)
SMALL_JOURNAL = JournalLimits(
    bytes_max=16_384, file_bytes_min=4_096, logs_min=1, settle_after_ms=300
)
"""Full after a few rounds, and used by every round that can."""


class MiniBroker:
    """A leader and its logs in one data directory."""

    journal = NO_JOURNAL

    def __init__(self, disk: SimDisk, promises: dict[TopicPartition, Promises]) -> None:
        self.promises = promises
        self.directory = open_directory(disk, self.journal)
        self._now_ms = 1_000
        self._epoch = 0
        self._sequences: dict[tuple[TopicPartition, int], int] = {}
        self._waiting: list[tuple[TopicPartition, SentBatch]] = []
        """Appended, or recognised as a repetition; the acknowledgement waits for a flush."""

    # --- requests from clients -------------------------------------------------------------------

    def create(self, partition: TopicPartition, number: int, config: LogConfig = SMALL) -> None:
        self.create_all([partition], number, config)

    def create_all(
        self, partitions: Sequence[TopicPartition], number: int, config: LogConfig = SMALL
    ) -> None:
        """Create logs, all at once; their existence is a promise of its own."""
        topic_id = TopicId(UUID(int=number))
        wanted = [WantedLog(partition, topic_id, config) for partition in partitions]
        for partition in partitions:
            self.promises[partition] = Promises(topic_id)
        self.directory.free_names(partitions)
        self.directory.settle_removals()
        creation = self.directory.begin_creation(wanted)
        creation.make()
        self.directory.adopt(creation)
        for partition in creation.made:
            self.promises[partition].is_promised = True

    def produce(
        self, partition: TopicPartition, *, size: int, producer_id: int = -1, records: int = 1
    ) -> SentBatch:
        """Append one batch; a later `flush` acknowledges it."""
        value = (b"%d|" % self.log(partition).log_end_offset * size)[:size]
        made = [Record(value, timestamp=self._now_ms)] * records
        return self.append(partition, made, producer_id=producer_id)

    def transact(self, partition: TopicPartition, *, size: int, producer_id: int) -> SentBatch:
        """Append one batch of the producer's transaction, which it may open."""
        record = Record(b"t" * size, timestamp=self._now_ms)
        return self.append(partition, [record], producer_id=producer_id, transactional=True)

    def end(self, partition: TopicPartition, producer_id: int, *, commit: bool) -> SentBatch:
        """Append the marker that ends the producer's transaction."""
        log = self.log(partition)
        span = log.producers.span_ended_at(producer_id, log.log_end_offset)
        marker = TransactionMarker(commit, 0, *span)
        view = build_marker(
            marker, producer_id=producer_id, producer_epoch=0, timestamp=self._now_ms
        )
        return self._append(partition, view)

    def append(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        *,
        producer_id: int,
        transactional: bool = False,
    ) -> SentBatch:
        """Append one batch of these records."""
        sequence = self._sequences.get((partition, producer_id), 0)
        view = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else sequence,
            base_offset=max(0, records[0].offset),
            transactional=transactional,
        )
        self._sequences[partition, producer_id] = sequence + len(records)
        return self._append(partition, view)

    def _append(self, partition: TopicPartition, view: bytearray) -> SentBatch:
        log = self.log(partition)
        assign_offsets(view, log.log_end_offset, self._epoch)
        batch = SentBatch(bytes(view), read_header(view))
        self._note_possible(partition, batch)
        log.append([view], [batch.header], now_ms=self._now_ms)
        self.directory.dirty.appended(log, len(view), now_ms=self._now_ms)
        self._waiting.append((partition, batch))
        self._now_ms += 10
        self.after_append(partition, batch)
        return batch

    def retry(self, partition: TopicPartition, batch: SentBatch) -> None:
        """Repeat a batch whose answer was lost: a duplicate waits like the original."""
        found = self.log(partition).producers.check(batch.header)
        if found is None or found.base_offset != batch.header.base_offset:
            raise BrokenPromise(f"I18: {partition}: a repetition was taken for {found}")
        self._waiting.append((partition, batch))
        self.after_duplicate(partition, batch)

    def after_append(self, partition: TopicPartition, batch: SentBatch) -> None:
        """A planted bug acknowledges too early here."""

    def after_duplicate(self, partition: TopicPartition, batch: SentBatch) -> None:
        """A planted bug acknowledges too early here."""

    def flush(self) -> None:
        """A flush round, then the acknowledgements that waited for it."""
        for partition, _ in self._waiting:
            self.directory.dirty.request(self.log(partition))
        flush_round = self.directory.dirty.collect(now_ms=self._now_ms)
        if flush_round is not None:
            try:
                self.sync(flush_round.sync)
            except StorageFault as error:
                flush_round.fail(error)
                return
            flush_round.apply()
        self.acknowledge()
        self._tend_journal()

    def sync(self, sync: Callable[[], None]) -> None:
        """A planted bug retries after a failure here."""
        sync()

    def acknowledge(self) -> None:
        waiting, self._waiting = self._waiting, []
        for partition, batch in waiting:
            if batch.header.next_offset <= self.log(partition).flushed_offset:
                self.ack(partition, batch)
            else:
                self._waiting.append((partition, batch))

    def ack(self, partition: TopicPartition, batch: SentBatch) -> None:
        promises = self.promises[partition]
        promises.acked[batch.header.base_offset] = batch.data
        producer_id = batch.header.producer_id
        if producer_id < 0 or batch.header.is_control:
            return
        newest = promises.last_acked.get(producer_id)
        if newest is None or newest.header.base_offset < batch.header.base_offset:
            promises.last_acked[producer_id] = batch

    def delete_records(self, partition: TopicPartition, offset: int) -> None:
        promises = self.promises[partition]
        promises.start_allowed = max(promises.start_allowed, offset)
        self.log(partition).advance_start(offset)
        self.directory.write_checkpoint(self._high_watermarks())
        promises.start_promised = max(promises.start_promised, offset)

    def spoil(self, disk: SimDisk, partition: TopicPartition, batch: SentBatch) -> None:
        """Bit rot in the middle of a batch."""
        self.promises[partition].damaged.add(batch.header.base_offset)
        segment = self.log(partition).segments.holding(batch.header.base_offset)
        position, _ = segment.finder().locate(batch.header.base_offset)
        disk.flip_bit(segment.path, position + len(batch.data) // 2)

    # --- the broker's own work --------------------------------------------------------------------

    def checkpoint(self) -> None:
        flush_round = self.directory.collect_checkpoint(self.directory.changed_logs(), 100)
        if flush_round is not None:
            self.sync(flush_round.sync)
            flush_round.apply()
        self.directory.write_checkpoint(self._high_watermarks())

    def _tend_journal(self) -> None:
        journal = self.directory.journal
        if journal.is_wanted:
            journal.use(self.make_journal())
        elif journal.wants_settling(self._now_ms):
            self.settle()

    def make_journal(self) -> list[DiskFile]:
        """A planted bug takes what a replay left."""
        return self.directory.journal.make()

    def settle(self) -> None:
        """Sync what is in the journal, and end its lap."""
        if not self.directory.journal.try_begin_settling():
            return
        self.flush_settling()
        self.end_lap()

    def flush_settling(self) -> None:
        """A planted bug leaves it out."""
        while (flush_round := self.directory.collect_settling()) is not None:
            flush_round.sync()
            flush_round.apply()

    def end_lap(self) -> None:
        journal = self.directory.journal
        journal.free().write_now()
        journal.grow()
        journal.freed()

    def before_cut(self, log: FilePartitionLog) -> None:
        """A planted bug leaves it out."""
        if log.progress.is_in_journal:
            self.settle()

    def apply_retention(self, partition: TopicPartition, *, keep_bytes: int) -> None:
        promises, log = self.promises[partition], self.log(partition)
        promises.start_allowed = max(promises.start_allowed, log.flushed_offset)
        log.set_config(replace(SMALL, retention_bytes=keep_bytes))
        promises.is_restarting = len(log.segments) == 1
        while (drop := self._plan_drop(log)) is not None:
            drop.run()
            log.front.end_drop(drop, self._now_ms)
        promises.is_restarting = False
        log.set_config(SMALL)

    def _plan_drop(self, log: FilePartitionLog) -> SegmentDrop | None:
        return self.directory.plan_drop(
            log,
            log.front.look_at_ages(self._now_ms, SEGMENTS_PER_DROP),
            now_ms=self._now_ms,
            high_watermark=log.flushed_offset,
            segments_max=SEGMENTS_PER_DROP,
        )

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """As a diverged follower does: the batches that are cut were another leader's mistake."""
        promises, log = self.promises[partition], self.log(partition)
        self._withdraw(promises, offset)
        for producer_id, batch in list(promises.last_acked.items()):
            if batch.header.base_offset < log.log_start_offset:
                del promises.last_acked[producer_id]  # only snapshots knew it; they may be dropped
        self.before_cut(log)
        log.truncate_to(offset)
        for at in [at for at in promises.possible if at >= log.log_end_offset]:
            del promises.possible[at]
        self._resume_sequences(partition)

    def restart_log(self, partition: TopicPartition, offset: int) -> None:
        """As a follower does that is too far behind."""
        promises, log = self.promises[partition], self.log(partition)
        self._withdraw(promises, 0)
        promises.last_acked.clear()
        promises.start_promised = 0
        promises.start_allowed = max(promises.start_allowed, log.log_end_offset, offset)
        promises.is_restarting = True
        self.before_cut(log)
        log.restart_at(offset)
        promises.is_restarting = False
        promises.start_promised = promises.start_allowed = offset
        promises.possible.clear()
        self._resume_sequences(partition)

    def new_leader_epoch(self) -> None:
        self._epoch += 1

    def delete(self, partition: TopicPartition) -> None:
        self.promises[partition].is_gone = True
        self._waiting = [entry for entry in self._waiting if entry[0] != partition]
        self.directory.delete_log(partition)
        self._sequences = {key: at for key, at in self._sequences.items() if key[0] != partition}

    def purge(self) -> None:
        self.directory.settle_removals()
        while not self.directory.purge_slice(3):
            pass

    def close(self) -> None:
        self.directory.close(self._high_watermarks())
        self.acknowledge()

    def log(self, partition: TopicPartition) -> FilePartitionLog:
        log = self.directory.get(partition)
        assert log is not None
        return log

    def reopen(self, disk: SimDisk) -> None:
        """A new process on the same directory. Unanswered batches stay unanswered."""
        self._waiting.clear()
        self.directory = open_directory(disk, self.journal)
        self.new_leader_epoch()
        for partition in self.promises:
            self._resume_sequences(partition)

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition: log.flushed_offset for partition, log in self.directory.logs().items()}

    def _note_possible(self, partition: TopicPartition, batch: SentBatch) -> None:
        possible = self.promises[partition].possible
        possible.setdefault(batch.header.base_offset, []).append(batch.data)

    def _withdraw(self, promises: Promises, offset: int) -> None:
        for at in [at for at, data in promises.acked.items() if _reaches(data, offset)]:
            del promises.acked[at]
        for producer_id, batch in list(promises.last_acked.items()):
            if _reaches(batch.data, offset):
                del promises.last_acked[producer_id]
        self._waiting = [
            (partition, batch)
            for partition, batch in self._waiting
            if self.promises[partition] is not promises or not _reaches(batch.data, offset)
        ]

    def _resume_sequences(self, partition: TopicPartition) -> None:
        """After a cut or a restart each producer continues with the log's next sequence."""
        log = self.directory.get(partition)
        for key in [key for key in self._sequences if key[0] == partition]:
            self._sequences[key] = next_sequence(log, key[1]) if log is not None else 0


class JournaledBroker(MiniBroker):
    """The same; its flushes go to a small journal whenever they can."""

    journal = SMALL_JOURNAL


def open_directory(disk: SimDisk, journal: JournalLimits = NO_JOURNAL) -> LogDirectory:
    return LogDirectory.open(
        disk,
        ROOT,
        cluster_id="crash",
        broker_id=1,
        rng=SeededRng(_seed_of(disk)),
        now_ms=1_000_000,
        config_of=lambda _partition: SMALL,
        journal=journal,
    )


def _seed_of(disk: SimDisk) -> int:
    """Another one for each start: two processes must not choose the same unused name."""
    names = disk.list_names(ROOT) if disk.exists(ROOT) else []
    return crc32("/".join(names).encode())


def _reaches(data: bytes, offset: int) -> bool:
    return read_header(data).next_offset > offset
