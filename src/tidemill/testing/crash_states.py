"""Crash states: a workload is stopped before every disk call, and every promise is checked.

Theory of operation. `MiniBroker` does what a leader does with its logs, without network and loop:
produce with and without idempotence, flush rounds, acknowledgements, checkpoints, retention,
DeleteRecords, truncation, topic deletion, clean and unclean ends. It writes down what it promised
(`Promises`): which batch was acknowledged, how far the log start was moved, which bytes were ever
appended at which offset.

`CrashExplorer` lets it run on a `SimDisk`. Before each call that changes the disk it builds what a
power loss at that moment could leave, several times with different fates for the unsynced pages,
starts a broker on each of them, and compares what it finds with the promises:

    I1   an acknowledged batch is there, byte for byte, unless its removal was begun
    I9   the log start is at least the one that was acknowledged, and no removal was invented
    I10  every batch is one that was appended at its offset, and offsets follow each other
    I11  the epochs are those of the batches
    I17  nothing is reported as damaged when nothing was; damage changes nothing else
    I18  a repeated batch gets its first offset, the next one in line is accepted

A part of the states crashes a second time, during or right after its recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final
from uuid import UUID

from tidemill.core.errors import StorageFault
from tidemill.core.ids import BrokerId, TopicId, TopicPartition
from tidemill.core.rng import Rng, SeededRng
from tidemill.storage.log import LogConfig, PartitionLog
from tidemill.storage.log_directory import LogDirectory
from tidemill.storage.partition_log import FilePartitionLog
from tidemill.testing.sim_disk import SimDisk, SimulatedCrash
from tidemill.wire.batch import BatchHeader, assign_offsets, iter_headers, read_header
from tidemill.wire.records import Record, build_batch

__all__ = ["BrokenPromise", "CrashExplorer", "MiniBroker", "Promises", "run_workload"]

ROOT = "/data"
SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=300, delete_delay_ms=0)
"""Segments and index intervals of a few batches, so that a short workload has many of them."""


class BrokenPromise(AssertionError):  # noqa: N818 - it says what it is
    """A crash state in which a promise does not hold."""


@final
@dataclass(slots=True)
class _Batch:
    """One appended batch, as bytes and as an identity for retries."""

    data: bytes
    header: BatchHeader


@final
@dataclass(slots=True)
class Promises:
    """What a client or the cluster was told about one log."""

    topic_id: TopicId
    acked: dict[int, bytes] = field(default_factory=dict)
    """Base offset -> batch; removed before a truncation that may take it begins."""
    possible: dict[int, list[bytes]] = field(default_factory=dict)
    """Base offset -> every batch that may be found there."""
    start_promised: int = 0
    """The log start that a client was told."""
    start_allowed: int = 0
    """The highest log start that anything asked for."""
    last_acked: dict[int, _Batch] = field(default_factory=dict)
    """Producer -> its newest acknowledged batch; a retry of it must find it."""
    damaged: set[int] = field(default_factory=set)
    """Base offsets of batches that the disk spoiled; they may be unreadable."""
    is_gone: bool = False
    """Its deletion was begun."""
    is_promised: bool = False
    """Something of it was acknowledged, so it must be there."""


@final
class MiniBroker:
    """A leader's way with its logs, on one data directory."""

    def __init__(self, disk: SimDisk, promises: dict[TopicPartition, Promises]) -> None:
        self.promises = promises
        self.directory = open_directory(disk)
        self._now_ms = 1_000
        self._epoch = 0
        self._sequences: dict[tuple[TopicPartition, int], int] = {}
        self._waiting: list[tuple[TopicPartition, _Batch]] = []
        """Appended or recognised as a repetition; the acknowledgement waits for a flush."""

    # --- what clients ask for -------------------------------------------------------------------

    def create(self, partition: TopicPartition, number: int, config: LogConfig = SMALL) -> None:
        topic_id = TopicId(UUID(int=number))
        self.promises[partition] = Promises(topic_id)
        self.directory.create_log(partition, topic_id, config)

    def produce(self, partition: TopicPartition, *, size: int, producer_id: int = -1) -> _Batch:
        """Append one batch; it is acknowledged by a later `flush`."""
        log = self.log(partition)
        sequence = self._sequences.get((partition, producer_id), 0)
        view = build_batch(
            [Record(b"%d|" % log.log_end_offset * (size // 4), timestamp=self._now_ms)],
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else sequence,
        )
        self._sequences[partition, producer_id] = sequence + 1
        assign_offsets(view, log.log_end_offset, self._epoch)
        batch = _Batch(bytes(view), read_header(view))
        self._possible(partition, batch)
        log.append([view], [batch.header], now_ms=self._now_ms)
        self.directory.dirty.appended(log, len(view), now_ms=self._now_ms)
        self._waiting.append((partition, batch))
        self._now_ms += 10
        self.after_append(partition, batch)
        return batch

    def retry(self, partition: TopicPartition, batch: _Batch) -> None:
        """Send a batch again whose answer was lost: a duplicate waits like the original."""
        found = self.log(partition).producers.check(batch.header)
        if found is None or found.base_offset != batch.header.base_offset:
            raise BrokenPromise(f"I18: {partition}: a repetition was taken for {found}")
        self._waiting.append((partition, batch))
        self.after_duplicate(partition, batch)

    def after_append(self, partition: TopicPartition, batch: _Batch) -> None:
        """Where a planted bug acknowledges too early."""

    def after_duplicate(self, partition: TopicPartition, batch: _Batch) -> None:
        """Where a planted bug acknowledges too early."""

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

    def sync(self, sync: Callable[[], None]) -> None:
        """Where a planted bug tries again after a failure."""
        sync()

    def acknowledge(self) -> None:
        waiting, self._waiting = self._waiting, []
        for partition, batch in waiting:
            if batch.header.next_offset <= self.log(partition).flushed_offset:
                self.ack(partition, batch)
            else:
                self._waiting.append((partition, batch))

    def ack(self, partition: TopicPartition, batch: _Batch) -> None:
        promises = self.promises[partition]
        promises.is_promised = True
        promises.acked[batch.header.base_offset] = batch.data
        producer_id = batch.header.producer_id
        newest = promises.last_acked.get(producer_id)
        if producer_id >= 0 and (
            newest is None or newest.header.base_offset < batch.header.base_offset
        ):
            promises.last_acked[producer_id] = batch

    def delete_records(self, partition: TopicPartition, offset: int) -> None:
        promises = self.promises[partition]
        promises.start_allowed = max(promises.start_allowed, offset)
        self.log(partition).advance_start(offset)
        self.directory.write_checkpoint(self._high_watermarks())
        promises.start_promised = max(promises.start_promised, offset)

    # --- what a broker does by itself -------------------------------------------------------------

    def checkpoint(self) -> None:
        flush_round = self.directory.collect_checkpoint(100)
        if flush_round is not None:
            self.sync(flush_round.sync)
            flush_round.apply()
        self.directory.write_checkpoint(self._high_watermarks())

    def apply_retention(self, partition: TopicPartition, *, keep_bytes: int) -> None:
        log = self.log(partition)
        self.promises[partition].start_allowed = max(
            self.promises[partition].start_allowed, log.flushed_offset
        )
        log.set_config(LogConfig(**{**_as_dict(SMALL), "retention_bytes": keep_bytes}))
        log.apply_retention(now_ms=self._now_ms, high_watermark=log.flushed_offset)
        log.set_config(SMALL)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """As a follower that diverged: what is cut was promised by another leader's mistake."""
        promises = self.promises[partition]
        self._unpromise(promises, offset)
        self.log(partition).truncate_to(offset)
        for at in [at for at in promises.possible if at >= offset]:
            del promises.possible[at]
        self._next_epoch_forgets_sequences(partition)

    def restart_log(self, partition: TopicPartition, offset: int) -> None:
        promises = self.promises[partition]
        self._unpromise(promises, 0)
        promises.last_acked.clear()
        promises.start_promised = 0
        promises.start_allowed = max(promises.start_allowed, offset)
        self.log(partition).restart_at(offset)
        promises.possible.clear()
        self._next_epoch_forgets_sequences(partition)

    def new_leader_epoch(self) -> None:
        self._epoch += 1

    def delete(self, partition: TopicPartition) -> None:
        self.promises[partition].is_gone = True
        self._waiting = [entry for entry in self._waiting if entry[0] != partition]
        self.directory.delete_log(partition)
        self._sequences = {key: at for key, at in self._sequences.items() if key[0] != partition}

    def purge(self) -> None:
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
        self.directory = open_directory(disk)
        self.new_leader_epoch()
        for partition in self.promises:
            self._next_epoch_forgets_sequences(partition)

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition: log.flushed_offset for partition, log in self.directory.logs().items()}

    def _possible(self, partition: TopicPartition, batch: _Batch) -> None:
        possible = self.promises[partition].possible
        possible.setdefault(batch.header.base_offset, []).append(batch.data)

    def _unpromise(self, promises: Promises, offset: int) -> None:
        for at in [at for at in promises.acked if at >= offset]:
            del promises.acked[at]
        for producer_id, batch in list(promises.last_acked.items()):
            if batch.header.base_offset >= offset:
                del promises.last_acked[producer_id]
        self._waiting = [
            (partition, batch)
            for partition, batch in self._waiting
            if self.promises[partition] is not promises or batch.header.base_offset < offset
        ]

    def _next_epoch_forgets_sequences(self, partition: TopicPartition) -> None:
        """After a cut or a restart each producer goes on where the log says it stands."""
        log = self.directory.get(partition)
        for key in [key for key in self._sequences if key[0] == partition]:
            self._sequences[key] = _next_sequence(log, key[1]) if log is not None else 0


def open_directory(disk: SimDisk) -> LogDirectory:
    return LogDirectory.open(
        disk,
        ROOT,
        cluster_id="crash",
        broker_id=BrokerId(1),
        rng=SeededRng(1),
        now_ms=1_000_000,
        config_of=lambda _partition: SMALL,
    )


@final
class CrashExplorer:
    """Checks what could be left at each call of a workload."""

    def __init__(
        self,
        workload: Callable[[MiniBroker, SimDisk], None],
        *,
        fates: int = 3,
        seed: int = 0,
        broker_class: Callable[[SimDisk, dict[TopicPartition, Promises]], MiniBroker] = MiniBroker,
    ) -> None:
        self._workload = workload
        self._fates = fates
        self._seed = seed
        self._broker_class = broker_class
        self._promises: dict[TopicPartition, Promises] = {}
        self._disk = SimDisk()
        self._chance = SeededRng(seed)
        self.states = 0
        """Crash states that were checked."""

    def run(self) -> None:
        """Raises BrokenPromise at the first state that breaks one."""
        self._watch(self._disk)
        broker = self._broker_class(self._disk, self._promises)
        self._workload(broker, self._disk)
        self._check_states(self._disk, self._disk.calls + 1, "the end")

    def _watch(self, disk: SimDisk) -> None:
        def look(number: int, call: str, path: str) -> None:
            self._check_states(disk, number, f"{call} of {path}")

        disk.on_call = look

    def _check_states(self, disk: SimDisk, number: int, where: str) -> None:
        for fate in range(self._fates):
            seed = (self._seed * 1_000_003 + number) * 1_009 + fate
            try:
                self._check_state(disk.crash_image(SeededRng(seed)), twice=fate == 0)
            except BrokenPromise as error:
                raise BrokenPromise(f"{error} (call {number}: {where}, fate {seed})") from error

    def _check_state(self, image: SimDisk, *, twice: bool) -> None:
        if twice:
            image = self._crash_during_recovery(image)
        self.states += 1
        directory = open_directory(image)
        check_promises(directory, self._promises)
        if twice:
            self._check_after_second_crash(image, directory)

    def _crash_during_recovery(self, image: SimDisk) -> SimDisk:
        image.stop_at_call(1 + self._chance.below(30))
        try:
            open_directory(image)
        except SimulatedCrash:
            self.states += 1
        return image.crash(SeededRng(self._chance.below(1 << 30)))

    def _check_after_second_crash(self, image: SimDisk, directory: LogDirectory) -> None:
        """What a recovery kept counts as flushed: the next power loss must not take it."""
        ends = {at: log.log_end_offset for at, log in directory.logs().items()}
        later = open_directory(image.crash(SeededRng(self._chance.below(1 << 30))))
        self.states += 1
        for partition, end in ends.items():
            log = later.get(partition)
            if log is None or log.log_end_offset < end:
                raise BrokenPromise(f"I1: {partition}: recovered up to {end}, then lost")
        check_promises(later, self._promises)


def check_promises(directory: LogDirectory, promises: dict[TopicPartition, Promises]) -> None:
    """Raises BrokenPromise where the directory does not keep one of them."""
    _require(not directory.report.failed, f"not loaded: {directory.report.failed}")
    for partition, promised in promises.items():
        log = directory.get(partition, promised.topic_id)
        if promised.is_gone:
            continue
        if log is None:
            _require(not promised.is_promised, f"I1: {partition} is gone")
            continue
        _check_log(str(partition), log, promised)
        report = directory.report.partitions.get(partition)
        if report is not None and not promised.damaged:
            _require(not report.damage, f"I17: {partition}: damage was invented: {report.damage}")


def _check_log(name: str, log: FilePartitionLog, promised: Promises) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    _require(start >= promised.start_promised, f"I9: {name} starts at {start} again")
    _require(start <= promised.start_allowed, f"I9: {name} starts at {start}, nobody asked")
    _require(log.flushed_offset == end, f"{name}: recovered but not flushed")
    found = {}
    for data in _batches(log, promised):
        header = read_header(data)
        offset = header.base_offset
        known = promised.possible.get(offset, [])
        _require(data in known or offset in promised.damaged, f"I10: {name}: odd batch at {offset}")
        found[offset] = data
    for offset, data in promised.acked.items():
        if offset >= start and offset not in promised.damaged:
            _require(found.get(offset) == data, f"I1: {name}: acked batch {offset} is lost")
    _check_epochs(name, log, found)
    _check_producers(name, log, promised, found)


def _batches(log: PartitionLog, promised: Promises) -> Iterator[bytes]:
    """Every readable batch that starts in the log; offsets must follow each other."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        while offset in promised.damaged:
            offset += 1
        found = log.read(offset, max_bytes=1, end_offset=log.log_end_offset)
        chunks = found.chunks if found.load is None else found.load()
        data = b"".join(chunks)
        if not data:
            return
        for position, header in iter_headers(data):
            _require(header.base_offset <= offset, f"I10: {offset} is missing")
            offset = header.next_offset
            if header.base_offset >= log.log_start_offset:
                yield data[position : position + header.size_bytes]


def _check_epochs(name: str, log: PartitionLog, found: dict[int, bytes]) -> None:
    for offset, data in found.items():
        epoch = read_header(data).partition_leader_epoch
        known = log.epochs.epoch_at(offset)
        _require(known == epoch, f"I11: {name}: offset {offset} has epoch {epoch}, not {known}")


def _check_producers(
    name: str, log: PartitionLog, promised: Promises, found: dict[int, bytes]
) -> None:
    for batch in promised.last_acked.values():
        duplicate = log.producers.check(batch.header)
        offset = duplicate.base_offset if duplicate is not None else None
        _require(
            offset == batch.header.base_offset,
            f"I18: {name}: the batch of offset {batch.header.base_offset} is taken for {offset}",
        )
    newest: dict[int, BatchHeader] = {}
    for data in found.values():
        header = read_header(data)
        newest[header.producer_id] = header
    for producer_id, header in newest.items():
        if producer_id >= 0:
            expected = _next_sequence(log, producer_id)
            _require(
                expected == header.last_sequence + 1,
                f"I18: {name}: producer {producer_id} stands at {expected}, "
                f"its last batch ends at {header.last_sequence}",
            )


def _next_sequence(log: PartitionLog, producer_id: int) -> int:
    """What the log expects of this producer next; found by asking, as a client would."""
    for sequence in range(1_000):
        probe = build_batch(
            [Record(b"")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        try:
            if log.producers.check(read_header(probe)) is None:
                return sequence
        except Exception:  # noqa: BLE001, S112 - any refusal means: not this one
            continue
    raise BrokenPromise(f"I18: no sequence of producer {producer_id} is accepted")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenPromise(message)


def _as_dict(config: LogConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in config.__slots__}


def run_workload(broker: MiniBroker, disk: SimDisk, *, rng: Rng, steps: int) -> None:
    """A mixture of everything, chosen by chance."""
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    broker.create(a, 1)
    broker.create(b, 2)
    _opening(broker, a, b)
    for _ in range(steps):
        disk = _random_step(broker, disk, rng, a if rng.below(2) else b)
    broker.flush()


def _opening(broker: MiniBroker, a: TopicPartition, b: TopicPartition) -> None:
    """What every run has to contain: a producer that falls silent, a roll, a checkpoint."""
    silent = broker.produce(a, size=200, producer_id=9)
    broker.produce(b, size=200)
    broker.flush()
    for _ in range(4):
        broker.produce(a, size=900, producer_id=1)
    broker.retry(a, broker.produce(a, size=100, producer_id=2))
    broker.flush()
    broker.checkpoint()
    broker.apply_retention(a, keep_bytes=1_000)
    broker.retry(a, silent)
    broker.flush()


def _random_step(
    broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition
) -> SimDisk:
    log = broker.log(partition)
    match rng.below(20):
        case 0 | 1 | 2 | 3 | 4 | 5:
            for _ in range(1 + rng.below(3)):
                size = [60, 300, 900, 5_000][rng.below(4)]
                broker.produce(partition, size=size, producer_id=rng.below(4) - 1)
        case 6:
            broker.retry(partition, broker.produce(partition, size=80, producer_id=1))
        case 7 | 8 | 9 | 10:
            broker.flush()
        case 11 | 12:
            broker.checkpoint()
        case 13:
            broker.apply_retention(partition, keep_bytes=2_500)
        case 14:
            span = log.flushed_offset - log.log_start_offset
            broker.delete_records(partition, log.log_start_offset + rng.below(span + 1))
        case 15:
            span = log.log_end_offset - log.log_start_offset
            broker.truncate(partition, log.log_end_offset - rng.below(span // 2 + 1))
            broker.new_leader_epoch()
        case 16:
            broker.restart_log(partition, log.log_end_offset + rng.below(20) - 5)
            broker.new_leader_epoch()
        case 17:
            broker.close()
            disk = _replace(broker, disk)
        case 18:
            disk = _replace(broker, disk)
        case _:
            broker.delete(partition)
            broker.create(partition, 100 + rng.below(1 << 30))
            broker.purge()
    return disk


def _replace(broker: MiniBroker, disk: SimDisk) -> SimDisk:
    """The process ends here; the next one finds the page cache as it was."""
    watcher = disk.on_call
    successor = disk.restart()
    broker.reopen(successor)
    successor.on_call = watcher
    return successor
