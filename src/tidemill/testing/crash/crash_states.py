"""Crash states: a workload is stopped before every disk call, and every promise is checked.

Theory of operation. `CrashExplorer` runs a `MiniBroker` on a `SimDisk`. Before each call that
changes the disk it builds what a power loss at that moment could leave, several times with
different fates for the unsynced pages, starts a broker on each result, and compares what it finds
with what was promised so far:

    I1   an acknowledged batch is found, byte for byte, unless its removal was begun
    I9   the log start is at least the one that was acknowledged, and no removal was invented
    I10  every batch is one that was appended at its offset, and offsets follow each other
    I11  the epochs are those of the batches
    I17  nothing is reported as damaged when nothing was; damage changes nothing else
    I18  a repeated batch gets its first offset, the next one in line is accepted
    I23  the open and the aborted transactions are those of the batches

Some of the states crash a second time, during or right after their recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import IDEMPOTENCE_WINDOW_BATCHES
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import PartitionLog
from tidemill.testing.crash.mini_broker import MiniBroker, open_directory
from tidemill.testing.crash.promises import BrokenPromise, Promises, is_next
from tidemill.testing.sim.disk import SimDisk, SimulatedCrash
from tidemill.wire.batch import BatchHeader, iter_headers, read_header
from tidemill.wire.transaction_marker import read_marker

__all__ = ["CrashExplorer", "check_promises", "try_find_repetition"]


@final
class CrashExplorer:
    """Checks what could be left at each disk call of a workload."""

    def __init__(
        self,
        workload: Callable[[MiniBroker, SimDisk], None],
        *,
        fates: int = 3,
        seed: int = 0,
        broker_class: Callable[[SimDisk, dict[TopicPartition, Promises]], MiniBroker] = MiniBroker,
        check: Callable[[LogDirectory, dict[TopicPartition, Promises]], None] | None = None,
    ) -> None:
        """`check` replaces `check_promises`."""
        self._workload = workload
        self._fates = fates
        self._seed = seed
        self._broker_class = broker_class
        self._promises: dict[TopicPartition, Promises] = {}
        self._check = check or check_promises
        self._chance = SeededRng(seed)
        self.calls = 0
        """Disk calls at which the workload was stopped."""
        self.states = 0
        """Crash states that were checked."""

    def run(self) -> None:
        """Raises BrokenPromise at the first state that breaks one."""
        disk = SimDisk(on_call=self._check_call)
        broker = self._broker_class(disk, self._promises)
        self._workload(broker, disk)

    def _check_call(self, disk: SimDisk, call: str, path: str) -> None:
        self.calls += 1
        for fate in range(self._fates):
            seed = (self._seed * 1_000_003 + self.calls) * 1_009 + fate
            try:
                self._check_state(disk.crash_image(SeededRng(seed)), twice=fate == 0)
            except BrokenPromise as error:
                where = f"call {self.calls}, {call} of {path}, seed {self._seed}, fate {seed}"
                raise BrokenPromise(f"{error} ({where})") from error

    def _check_state(self, image: SimDisk, *, twice: bool) -> None:
        if twice:
            image = self._crash_during_recovery(image)
        self.states += 1
        directory = open_directory(image)
        self._check(directory, self._promises)
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
        """What a recovery kept counts as flushed: the next power loss must not lose it."""
        ends = {at: log.log_end_offset for at, log in directory.logs().items()}
        later = open_directory(image.crash(SeededRng(self._chance.below(1 << 30))))
        self.states += 1
        for partition, end in ends.items():
            log = later.get(partition)
            if log is None or log.log_end_offset < end:
                raise BrokenPromise(f"I1: {partition}: recovered up to {end}, then lost")
        self._check(later, self._promises)


def check_promises(directory: LogDirectory, promises: dict[TopicPartition, Promises]) -> None:
    """Raises BrokenPromise if the directory breaks one of these promises."""
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
        if report is not None and not promised.damaged and not promised.is_restarting:
            _require(not report.damage, f"I17: {partition}: damage was invented: {report.damage}")


def _check_log(name: str, log: PartitionLog, promised: Promises) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    _require(start >= promised.start_promised, f"I9: {name} starts at {start} again")
    _require(start <= promised.start_allowed, f"I9: {name} starts at {start} without a request")
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
    if not promised.damaged and not promised.is_restarting:
        _check_transactions(name, log, found)


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
    newest: dict[int, BatchHeader] = {}
    sent: dict[int, list[int]] = {}
    for offset, data in found.items():
        header = read_header(data)
        if header.is_control:
            continue
        newest[header.producer_id] = header
        sent.setdefault(header.producer_id, []).append(offset)
    for producer_id, batch in promised.last_acked.items():
        acked_offset = batch.header.base_offset
        since = [offset for offset in sent.get(producer_id, []) if offset > acked_offset]
        if len(since) < IDEMPOTENCE_WINDOW_BATCHES:
            taken_for = try_find_repetition(log, batch.header)
            _require(
                taken_for == acked_offset,
                f"I18: {name}: the batch of offset {acked_offset} is taken for {taken_for}",
            )
    for producer_id, header in newest.items():
        if producer_id >= 0:
            _require(
                is_next(log, producer_id, header.last_sequence + 1),
                f"I18: {name}: producer {producer_id} cannot continue after {header.last_sequence}",
            )


def _check_transactions(name: str, log: PartitionLog, found: dict[int, bytes]) -> None:
    """What the batches say, one by one, against what the log knows."""
    opened: dict[int, int] = {}
    aborted = []
    for offset, data in found.items():
        header = read_header(data)
        if header.is_control:
            opened.pop(header.producer_id, None)
            marker = read_marker(memoryview(data), header)
            if marker.aborts_records:
                aborted.append((header.producer_id, marker.first_offset, offset))
        elif header.is_transactional:
            opened.setdefault(header.producer_id, offset)
    start, end = log.log_start_offset, log.log_end_offset
    stable = log.producers.stable_offset(end)
    undecided = min([end, *opened.values()])
    # A transaction that began below the log start holds more than its batches show.
    _require(
        stable == undecided if stable >= start else stable <= undecided,
        f"I23: {name} is stable up to {stable}, the batches say {undecided}",
    )
    known = [
        (one.producer_id, one.first_offset, one.last_offset) for one in log.find_aborted(start, end)
    ]
    _require(known == aborted, f"I23: {name}: {known} were aborted, the markers say {aborted}")


def try_find_repetition(log: PartitionLog, header: BatchHeader) -> int | None:
    """The offset at which the log already has this batch; None if it does not know it."""
    try:
        duplicate = log.producers.check(header)
    except KafkaError:
        return None
    return duplicate.base_offset if duplicate is not None else None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenPromise(message)
