"""A data directory: its logs, who may use it, and what it remembers from start to start.

    .lock             held while a broker runs here
    meta              cluster, broker and directory id
    checkpoint.0, .1  recovery point, log start and high watermark of every log
    clean-shutdown    exists between a clean shutdown and the next start
    round-journal.*   flushed bytes whose segments are not synced yet
    TOPIC-PARTITION/  one log; its file `partition` names the topic id
    UUID.deleted/     a removed log whose files wait to be unlinked

Theory of operation. A directory serves until the first fault of its disk: after a failed flush it
is unknown what is on the disk, so the directory goes offline for good (`fail`), and its owner
answers every partition in it with KAFKA_STORAGE_ERROR. A full disk is not such a fault: it refuses
the append.

The checkpoint only promises what was flushed. Cutting a log makes a promise too high, so the cut
first caps it on disk. A clean shutdown flushes everything, writes a last checkpoint and, as its
very last step, the mark; the next start removes the mark before anything else. So the mark means:
the files are exactly what the checkpoint says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault, UserError, invariant
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.limits import (
    CHECKPOINT_PRODUCERS_PER_SLICE,
    JOURNAL_SETTLE_LOGS,
    OPEN_FILES_MAX,
)
from tidemill.core.rng import Rng
from tidemill.storage.directory.checkpoint import (
    Checkpoint,
    mark_clean,
    place_of,
    read_generations,
    write_cap,
    write_generation,
)
from tidemill.storage.directory.directory_meta import (
    DirectoryMeta,
    claim_directory,
    try_parse_partition,
)
from tidemill.storage.directory.directory_start import ConfigOf, DirectoryStart
from tidemill.storage.directory.flush_round import DirtyLogs, FlushRound
from tidemill.storage.directory.hosted_log import HostedLog, droppable_end
from tidemill.storage.directory.log_creation import LogCreation, WantedLog
from tidemill.storage.directory.lost_logs import LostLogs
from tidemill.storage.directory.removed_logs import RemovedLogs
from tidemill.storage.directory.unloaded_logs import UnloadedLogs
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import LOG_SUFFIX, try_parse_offset
from tidemill.storage.journal.journal_block import encode_log_name
from tidemill.storage.journal.journal_replay import remove_journal
from tidemill.storage.journal.round_journal import JournalLimits, RoundJournal
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.interface import LogConfig, PartitionLog
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment_drop import Ages, SegmentDrop
from tidemill.storage.recovery.recovery_report import RecoveryReport
from tidemill.storage.state.producer_bound import ProducerBound, ProducerLimits

__all__ = ["LOCK_NAME", "LogDirectory"]

LOCK_NAME = ".lock"

DEFAULT_PRODUCERS = ProducerLimits()
DEFAULT_JOURNAL = JournalLimits()


def _default_config(_partition: TopicPartition) -> LogConfig:
    return LogConfig()


@final
class LogDirectory:
    """One directory with logs, for one broker at a time."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        rng: Rng,
        lock: DiskFile,
        files_max: int,
        producers: ProducerLimits,
    ) -> None:
        """Use `open`."""
        self._disk = disk
        self._lock = lock
        self._files = FileCache(disk, files_max=files_max)
        self._hosted: dict[TopicPartition, HostedLog] = {}
        self._unloaded = UnloadedLogs()
        self._checkpoint = Checkpoint()
        """The newest one, written or being written."""
        self._generations: list[Checkpoint | None] = []
        """What the two files have; None while one is being written, or a fault has left it open."""
        self.lost = LostLogs(self._checkpoint, ())
        self._sequence = 0
        """Of the newest checkpoint, written or being written."""
        self._removed = RemovedLogs(disk, path, rng)
        self._busy: dict[str, FlushRound] = {}
        """Paths of removed logs that a running flush round may still write to."""
        self.path = path
        self.meta: DirectoryMeta
        self.producer_expiration_ms = producers.expiration_ms
        self._producer_bound = ProducerBound(entries_max=producers.entries_max)
        self.dirty: DirtyLogs
        self.journal: RoundJournal
        self.report = RecoveryReport()
        self.started_clean = False
        """False: records may be lost, and leaders must take new epochs."""
        self.failure: StorageFault | None = None
        self.on_failure: Callable[[StorageFault], None] | None = None
        """Called once when the directory goes offline."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        cluster_id: str,
        broker_id: int,
        rng: Rng,
        now_ms: int,
        config_of: ConfigOf = _default_config,
        files_max: int = OPEN_FILES_MAX,
        producers: ProducerLimits = DEFAULT_PRODUCERS,
        journal: JournalLimits = DEFAULT_JOURNAL,
        lock: DiskFile | None = None,
    ) -> LogDirectory:
        """Lock the directory, check whose it is, and load every log in it.

        `lock`: its lock, if this process has it already; it is given up if the open fails.
        Raises UserError if the directory belongs to another broker, StorageFault if its disk fails.
        Call it through `Disk.run`: after an unclean end it reads every log's unflushed tail.
        """
        if not disk.exists(path):
            disk.make_directories(path)
            disk.sync_directory(path.rpartition("/")[0] or ".")
        lock = lock or _lock(disk, path)
        directory = cls(disk, path, rng=rng, lock=lock, files_max=files_max, producers=producers)
        try:
            directory.meta = claim_directory(
                disk, path, cluster_id=cluster_id, broker_id=broker_id, rng=rng
            )
            directory._use_journal(journal)
            directory._load(config_of, now_ms)
        except BaseException:
            lock.close()
            raise
        return directory

    # --- the logs ---------------------------------------------------------------------------------

    def logs(self) -> dict[TopicPartition, FilePartitionLog]:
        """Every log that is served from here, always in the same order."""
        return {partition: hosted.log for partition, hosted in self._hosted.items()}

    def get(
        self, partition: TopicPartition, topic_id: TopicId | None = None
    ) -> FilePartitionLog | None:
        """The log of this partition; with a topic id, only if it belongs to that topic (I34)."""
        hosted = self._hosted.get(partition)
        if hosted is None or (topic_id is not None and hosted.topic_id != topic_id):
            return None
        return hosted.log

    def topic_id(self, partition: TopicPartition) -> TopicId | None:
        hosted = self._hosted.get(partition)
        return hosted.topic_id if hosted is not None else None

    def topic_ids(self) -> dict[TopicPartition, TopicId]:
        """The topic of each log, also of one that could not be loaded, where it is known."""
        hosted = {partition: hosted.topic_id for partition, hosted in self._hosted.items()}
        return hosted | self._unloaded.topic_ids()

    def high_watermark(self, partition: TopicPartition) -> int:
        """From the last checkpoint; a lower bound."""
        return self._hosted[partition].high_watermark

    def paths(self) -> list[tuple[TopicPartition, str]]:
        """Every log and its directory, for the scrub."""
        return [(partition, hosted.path) for partition, hosted in self._hosted.items()]

    def doubt(self, segments: Iterable[str]) -> None:
        """These files may be damaged: for the mender."""
        self._files.suspects.extend(segments)

    def take_doubtful(self) -> list[tuple[TopicPartition, int]]:
        """The logs and segments in which reads have found damage since the last call."""
        found = []
        suspects = self._files.suspects
        while suspects:
            directory, _, name = suspects.popleft().rpartition("/")
            partition = try_parse_partition(directory.rpartition("/")[2])
            base_offset = try_parse_offset(name, LOG_SUFFIX)
            if partition is not None and base_offset is not None:
                found.append((partition, base_offset))
        return found

    def begin_creation(self, wanted: Iterable[WantedLog]) -> LogCreation:
        """Prepare new, empty logs: `make` them through `Disk.run`, then `adopt` them.

        One creation at a time. `free_names` first; a name that is not free yet is refused. Files
        that another topic left under a name are put aside (I34).
        """
        creation = LogCreation(
            self._disk,
            self._files,
            self.path,
            put_aside=self._removed.put_aside,
            before_cut=self._before_cut,
        )
        for one in wanted:
            try:
                self._clear_path(one.partition, one.topic_id)
            except KafkaError as error:
                creation.failed[one.partition] = error
            else:
                creation.add(replace(one, cap=self._cap_of_earlier_log(one)))
        return creation

    def _cap_of_earlier_log(self, wanted: WantedLog) -> Callable[[], None] | None:
        """A replica that left and returns has the same topic: checkpoints may name its former log.

        The older generation counts too: it is read if the newer one gets damaged.
        """
        if not any(
            one is None or one.names(wanted.partition, wanted.topic_id) for one in self._generations
        ):
            return None
        path = f"{self.path}/{wanted.partition}"
        return partial(write_cap, self._disk, path, sequence=self._sequence, offset=0)

    def _clear_path(self, partition: TopicPartition, topic_id: TopicId) -> None:
        self._check_online()
        self._unloaded.check_replaceable(partition, topic_id)
        self.delete_log(partition)
        self._check_not_busy(f"{self.path}/{partition}", encode_log_name(str(partition), topic_id))
        # Now, not when it is made: from here on the path is that of the new log (I34).
        self._unloaded.forget(partition)

    def adopt(self, creation: LogCreation) -> None:
        """Serve the new logs. KafkaError if the disk failed meanwhile: then none is served."""
        self._check_online()
        self._removed.add_purgeable(creation.put_aside)
        for partition, log in creation.made.items():
            topic_id = creation.topic_id(partition)
            self._host(partition, HostedLog(log, topic_id, log.directory, 0))

    def _host(self, partition: TopicPartition, hosted: HostedLog) -> None:
        self._hosted[partition] = hosted
        journal_name = encode_log_name(str(partition), hosted.topic_id)
        hosted.log.progress.use_journal(journal_name, self.journal.live_laps)
        self._producer_bound.adopt(hosted.log.producers)

    def create_log(
        self, partition: TopicPartition, topic_id: TopicId, config: LogConfig
    ) -> FilePartitionLog:
        """The log of this partition, created in this call if it does not exist; blocks."""
        self._check_online()
        log = self.get(partition, topic_id)
        if log is not None:
            return log
        self.free_names([partition])
        self.settle_removals()
        creation = self.begin_creation([WantedLog(partition, topic_id, config)])
        creation.make()
        self.adopt(creation)
        for error in creation.failed.values():
            raise error
        return creation.made[partition]

    def delete_log(self, partition: TopicPartition) -> None:
        """Take the log out of service; `settle_removals` and `purge_slice` do the rest."""
        hosted = self._hosted.pop(partition, None)
        if hosted is None:
            return
        running = self.dirty.running
        if running is not None and running.covers(hosted.log):
            self._busy[hosted.path] = running
        self.dirty.forget(hosted.log)
        self._producer_bound.release(hosted.log.producers)
        hosted.log.close()
        self._removed.add(hosted.path)

    def free_names(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete the logs of these names: other topics have the names now (I34).

        New logs can be created under them after the next `settle_removals`.
        """
        for partition in partitions:
            self.delete_log(partition)

    def delete_unloaded(self, partition: TopicPartition, topic_id: TopicId) -> bool:
        """Remove the log of a deleted topic that could not be loaded; whether there was one."""
        is_unloaded = self._unloaded.try_release(partition, topic_id)
        if is_unloaded:
            self._removed.add(f"{self.path}/{partition}")
        return is_unloaded

    @property
    def has_unsettled_removals(self) -> bool:
        return not self._removed.is_settled

    def settle_removals(self) -> None:
        """Rename all removed logs durably: for `Disk.run`."""
        self._removed.settle()

    def plan_drop(
        self,
        log: FilePartitionLog,
        ages: Ages,
        *,
        now_ms: int,
        high_watermark: int,
        segments_max: int,
    ) -> SegmentDrop | None:
        """What retention takes out of one log now; see `LogFront.plan_drop`."""
        return log.front.plan_drop(
            ages,
            now_ms=now_ms,
            high_watermark=min(high_watermark, droppable_end(log, self.dirty.running)),
            segments_max=segments_max,
        )

    def purge_slice(self, files_max: int) -> bool:
        """Unlink up to this many files of removed logs: for `Disk.run`. True when none is left."""
        return self._removed.purge_slice(files_max)

    # --- checkpoints ------------------------------------------------------------------------------

    def changed_logs(self) -> deque[FilePartitionLog]:
        """The logs that a checkpoint has to store: for `collect_checkpoint`."""
        return deque(one.log for one in self._hosted.values() if not one.log.progress.is_stored)

    def collect_checkpoint(
        self, changed: deque[FilePartitionLog], logs_max: int
    ) -> FlushRound | None:
        """A round for up to this many of the logs that stores what makes the next start short.

        Takes them out of `changed`: a checkpoint stores each log once, however fast it grows or
        full the disk is. Run it like any other round. None if all are done, or a round is running.
        """
        if self.dirty.running is not None or self.failure is not None:
            return None
        points: list[tuple[PartitionLog, FlushPoint]] = []
        producers = 0
        while changed and len(points) < logs_max and producers < CHECKPOINT_PRODUCERS_PER_SLICE:
            log = changed.popleft()
            point = None if log.is_closed else log.progress.take_checkpoint()
            if point is not None:
                points.append((log, point))
                producers += len(log.producers)
        return self.dirty.begin_round(points)

    def collect_settling(self) -> FlushRound | None:
        """A round for the next logs whose bytes are in the journal file that is being settled.

        Run it like any other round. None if all are done, or the disk failed.
        """
        if self.dirty.running is not None or self.failure is not None:
            return None
        return self.dirty.begin_round(self.journal.take_unsettled(JOURNAL_SETTLE_LOGS))

    def take_checkpoint(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> Callable[[], None]:
        """Capture what is synced now; returns its writer: for `Disk.run`, one at a time."""
        self._check_online()
        self._sequence += 1
        entries = self._unloaded.entries()
        for partition, hosted in self._hosted.items():
            if high_watermarks is not None:
                known = high_watermarks.get(partition, hosted.high_watermark)
                hosted.high_watermark = min(known, hosted.log.log_end_offset)
            entries[partition] = hosted.checkpointed()
        self._checkpoint = Checkpoint(self._sequence, entries)
        self._generations[place_of(self._checkpoint)] = None
        return partial(self._write_generation, self._checkpoint)

    def _write_generation(self, checkpoint: Checkpoint) -> None:
        write_generation(self._disk, self.path, checkpoint)
        self._generations[place_of(checkpoint)] = checkpoint

    def write_checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """`take_checkpoint` and write it. After this its log start offsets never go back (I9)."""
        self.take_checkpoint(high_watermarks)()

    # --- failure and shutdown ---------------------------------------------------------------------

    def fail(self, error: StorageFault) -> None:
        """The disk failed: offline until an operator restarts the broker."""
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(error)

    def release_lock(self) -> None:
        """Let another process open the directory, as the end of this one would."""
        self._lock.close()

    def close(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None, *, is_clean: bool = True
    ) -> None:
        """Flush everything and leave the mark of a clean shutdown; neither if the disk failed.

        Not `is_clean`: no mark, since an earlier unclean end is still to be told.
        """
        invariant(self.dirty.running is None, "a flush round outlived the broker")
        try:
            if self.failure is None:
                self._flush_everything(high_watermarks, is_clean=is_clean)
        except StorageFault as error:
            self.fail(error)
        finally:
            for hosted in self._hosted.values():
                hosted.log.close()
            self._lock.close()

    def _flush_everything(
        self, high_watermarks: Mapping[TopicPartition, int] | None, *, is_clean: bool
    ) -> None:
        self.settle_removals()
        for hosted in self._hosted.values():
            hosted.log.settle_swap()
        changed = self.changed_logs()
        while (last := self.collect_checkpoint(changed, len(self._hosted))) is not None:
            last.sync()
            last.apply()
        logs = [hosted.log for hosted in self._hosted.values()]
        points = [(log, point) for log in logs if (point := log.take_sync_point()) is not None]
        rest = self.dirty.begin_round(points)
        if rest is not None:
            rest.sync()
            rest.apply()
        self.write_checkpoint(high_watermarks)
        is_synced = all(log.progress.synced_offset == log.log_end_offset for log in logs)
        if is_clean and is_synced and not any(log.is_being_cut for log in logs):
            remove_journal(self._disk, self.path)
            mark_clean(self._disk, self.path, self._sequence)

    # --- loading ----------------------------------------------------------------------------------

    def _use_journal(self, limits: JournalLimits) -> None:
        directory_id = self.meta.directory_id
        self.journal = RoundJournal(self._disk, self.path, directory_id, limits)
        self.dirty = DirtyLogs(on_failure=self.fail, journal=self.journal)

    def _load(self, config_of: ConfigOf, now_ms: int) -> None:
        start = DirectoryStart(
            self._disk,
            self.path,
            self.meta.directory_id,
            removed=self._removed,
            unloaded=self._unloaded,
        )
        self._checkpoint = start.checkpoint
        self._generations = [*read_generations(self._disk, self.path)]
        self._sequence = start.checkpoint.sequence
        self.started_clean = start.is_clean
        self.report = start.report
        for partition, loaded in start.load(
            self._files,
            config_of,
            self._before_cut,
            now_ms=now_ms,
            producer_expiration_ms=self.producer_expiration_ms,
        ):
            log = loaded.log
            hosted = HostedLog(log, loaded.topic_id, log.directory, loaded.high_watermark)
            self._host(partition, hosted)
        self.lost = LostLogs(self._checkpoint, self._hosted.keys() | self._unloaded.names())
        if self.lost or self.report.suspects:
            self.started_clean = False  # the mark says more than the files have (I14)

    # --- helpers ----------------------------------------------------------------------------------

    def _before_cut(self, partition: TopicPartition, kept_end: int) -> Callable[[], None]:
        """A log is about to be cut below what checkpoints promise: what caps them."""
        path = self._hosted[partition].path
        return partial(write_cap, self._disk, path, sequence=self._sequence, offset=kept_end)

    def _check_online(self) -> None:
        if self.failure is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} is offline: {self.failure}"
            )

    def _check_not_busy(self, path: str, journal_name: bytes) -> None:
        self._busy = {
            busy_path: flush_round
            for busy_path, flush_round in self._busy.items()
            if flush_round is self.dirty.running
        }
        is_leaving = path in self._busy or self._removed.is_leaving(path)
        # A replica that left and returns has the same topic: a replay must not meet its new files.
        if is_leaving or self.journal.has(journal_name):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is still being deleted; try again"
            )


def _lock(disk: Disk, path: str) -> DiskFile:
    try:
        return disk.lock(f"{path}/{LOCK_NAME}")
    except UserError as error:
        raise UserError(
            f"{path} is in use ({error}): stop that broker or choose another data directory"
        ) from None
