"""How a start loads each log of a data directory.

After a clean shutdown the checkpoint says what the files are. The log is built from it and two
small files; nothing else is opened, because a start may load eight thousand logs. A log that does
not match the checkpoint goes through recovery, as do all logs after an unclean end.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import DiskFull, KafkaError, StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.storage.directory.checkpoint import Checkpoint, CheckpointEntry, try_read_cap
from tidemill.storage.directory.directory_meta import try_read_topic_id, write_topic_id
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import DAMAGE_NAME, LOG_SUFFIX, offset_path
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import BeforeCut, FilePartitionLog, LoadedState
from tidemill.storage.recovery.clean_load import CheckpointedLog, try_load_clean
from tidemill.storage.recovery.log_recovery import recover
from tidemill.storage.recovery.recovery_report import PartitionReport
from tidemill.storage.state.log_damage import load_damage, store_damage
from tidemill.wire.batch import verify

__all__ = ["LoadedLog", "LogLoader"]


@final
@dataclass(slots=True)
class LoadedLog:
    """A log that is ready to serve, and what the start knows about it."""

    log: FilePartitionLog
    topic_id: TopicId
    high_watermark: int
    report: PartitionReport


@final
class LogLoader:
    """Loads the logs of one directory, for one start."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        checkpoint: Checkpoint,
        *,
        is_clean: bool,
        now_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        self._disk = disk
        self._files = files
        self._checkpoint = checkpoint
        self._is_clean = is_clean
        self._now_ms = now_ms
        self._producer_expiration_ms = producer_expiration_ms

    def load(
        self,
        partition: TopicPartition,
        path: str,
        config: LogConfig,
        before_cut: BeforeCut,
    ) -> LoadedLog | None:
        """The log in this directory; None if its creation did not finish.

        Raises StorageFault if it cannot be read, or if its topic is unknown.
        """
        entry = self._checkpoint.entries.get(partition)
        topic_id = self._identify(path, entry)
        if topic_id is None:
            return None
        if entry is not None and entry.topic_id != topic_id:
            entry = None
        state, report = self._load_state(path, entry, config)
        self._load_damage(path, state, report)
        state.is_stored = _is_stored(state, report)
        state.producers.expire(self._now_ms, self._producer_expiration_ms)
        stored = state.damage.encode()
        log = FilePartitionLog(self._disk, self._files, path, config, state, before_cut=before_cut)
        _forget_found_losses(log)
        if log.damage.encode() != stored:
            with suppress(DiskFull):  # the next start, or the mender, says the same
                store_damage(self._disk, path, log.damage.encode())
        high_watermark = entry.high_watermark if entry is not None else 0
        return LoadedLog(
            log,
            topic_id,
            min(high_watermark, log.log_end_offset),
            report,
        )

    def _identify(self, path: str, entry: CheckpointEntry | None) -> TopicId | None:
        """The topic that these files belong to; None if they are empty."""
        if self._is_clean and entry is not None:
            return entry.topic_id
        topic_id = try_read_topic_id(self._disk, path)
        if topic_id is not None:
            return topic_id
        names, first_segment = self._disk.list_names(path), offset_path(path, 0, LOG_SUFFIX)
        segments = [f"{path}/{name}" for name in names if name.endswith(LOG_SUFFIX)]
        has_data = any(self._disk.size(segment) for segment in segments)
        if entry is not None and (has_data or segments not in ([], [first_segment])):
            write_topic_id(self._disk, path, entry.topic_id)
            return entry.topic_id
        if has_data:
            raise StorageFault("its file 'partition' is lost, so its topic is unknown")
        return None  # what a creation leaves that was cut short, whatever had its name before

    def _load_state(
        self, path: str, entry: CheckpointEntry | None, config: LogConfig
    ) -> tuple[LoadedState, PartitionReport]:
        checkpointed = self._checkpointed(path, entry)
        interval_bytes = config.index_interval_bytes
        if self._is_clean and entry is not None:
            state = try_load_clean(
                self._disk, self._files, path, checkpointed, index_interval_bytes=interval_bytes
            )
            if state is not None:
                return state, PartitionReport()
        return recover(
            self._disk,
            self._files,
            path,
            checkpointed,
            index_interval_bytes=interval_bytes,
            now_ms=self._now_ms,
        )

    def _load_damage(self, path: str, state: LoadedState, report: PartitionReport) -> None:
        """What is known from before, and what recovery found: its next run may not look there."""
        if self._disk.exists(f"{path}/{DAMAGE_NAME}"):
            state.damage = load_damage(self._disk, path)
        replayed_from = 0 if report.rebuilt else max(state.snapshot_offsets, default=0)
        found = [damage.next_offset for damage in report.damage]
        if state.is_replayed:
            ranges = state.damage.to_mend
            found += [one.start_offset for one in ranges if one.end_offset > replayed_from]
        if not found:
            return
        report.is_suspect = True
        cut_offset = max(min(found), state.log_start_offset)
        if state.damage.cut_offset is None or cut_offset < state.damage.cut_offset:
            state.damage.cut_offset = cut_offset
            store_damage(self._disk, path, state.damage.encode())

    def _checkpointed(self, path: str, entry: CheckpointEntry | None) -> CheckpointedLog:
        """What the checkpoint says about a log, lowered by a cut since then."""
        if entry is None:
            return CheckpointedLog()
        cap = None if self._is_clean else self._read_cap(path)
        floor = entry.recovery_point if cap is None else cap
        return CheckpointedLog(
            recovery_point=min(entry.recovery_point, floor),
            log_start_offset=min(entry.log_start_offset, floor),
            size_bytes=entry.size_bytes,
            producers=entry.producers,
            is_capped=cap is not None,
        )

    def _read_cap(self, path: str) -> int | None:
        return try_read_cap(self._disk, path, sequence=self._checkpoint.sequence)


def _forget_found_losses(log: FilePartitionLog) -> None:
    """What was given up is not lost if its log was cut and written again since."""
    for lost in log.damage.given_up:
        if _has_records_at(log, lost.start_offset):
            log.damage.mended(lost.start_offset, lost.end_offset)


def _has_records_at(log: FilePartitionLog, offset: int) -> bool:
    segment = log.segments.holding(offset)
    try:
        position, header = segment.finder().locate(offset)
        if header is None or header.base_offset > offset:
            return False
        verify(memoryview(segment.file().pread(header.size_bytes, position)), header)
    except (KafkaError, StorageFault):
        return False
    return header.record_count > 0


def _is_stored(state: LoadedState, report: PartitionReport) -> bool:
    if report.scanned_bytes or report.rebuilt:
        return False
    log_end_offset = state.segments[-1].next_offset
    return not state.producers.fact_count or log_end_offset in state.snapshot_offsets
