"""One start of a data directory: what the last run left, and the logs that can be served.

    the clean mark     taken first: it means that the files are exactly what the checkpoint says
    the journal        its bytes go to the segments; nothing of it outlives this step
    each directory     a log is loaded, or kept unloaded while its topic may exist; a log whose
                       creation did not finish is removed, one that was removed is purged

All of it waits for the disk: see `LogDirectory.open`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import final
from uuid import UUID

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.storage.directory.checkpoint import Checkpoint, read_newest, try_take_clean_mark
from tidemill.storage.directory.directory_meta import try_parse_partition, try_read_topic_id
from tidemill.storage.directory.log_loading import LoadedLog, LogLoader
from tidemill.storage.directory.removed_logs import RemovedLogs
from tidemill.storage.directory.unloaded_logs import UnloadedLogs
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import DELETED_SUFFIX
from tidemill.storage.journal.journal_replay import remove_journal, replay_journal
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.recovery.recovery_report import RecoveryReport

__all__ = ["ConfigOf", "DirectoryStart", "topic_id_of"]

ConfigOf = Callable[[TopicPartition], LogConfig]
CapOf = Callable[[TopicPartition, int], Callable[[], None]]
"""Takes a log that is cut and the offset that is left; returns what caps the checkpoints."""


@final
class DirectoryStart:
    """Finds out what a data directory holds."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        directory_id: UUID,
        *,
        removed: RemovedLogs,
        unloaded: UnloadedLogs,
    ) -> None:
        """Takes the clean mark and replays the journal. `removed`, `unloaded`: to be filled."""
        self._disk = disk
        self._path = path
        self._removed = removed
        self._unloaded = unloaded
        self.checkpoint = read_newest(disk, path)
        mark = try_take_clean_mark(disk, path)
        self.is_clean = mark is not None and mark == self.checkpoint.sequence
        """False: unflushed records may be lost."""
        self.report = RecoveryReport(was_clean=self.is_clean)
        self._end_journal(directory_id)

    def _end_journal(self, directory_id: UUID) -> None:
        """Give the segments what only the journal has; nothing of it outlives this step."""
        disk, path = self._disk, self._path
        if self.is_clean:  # a version that knows no journal may have left an old one
            remove_journal(disk, path)
        find_topic_id = partial(topic_id_of, disk, path, self.checkpoint)
        self.report.replayed = replay_journal(disk, path, directory_id, find_topic_id)

    def load(
        self,
        files: FileCache,
        config_of: ConfigOf,
        before_cut: CapOf,
        *,
        now_ms: int,
        producer_expiration_ms: int,
    ) -> Iterator[tuple[TopicPartition, LoadedLog]]:
        """Each log that can be served, as soon as it is loaded."""
        loader = LogLoader(
            self._disk,
            files,
            self.checkpoint,
            is_clean=self.is_clean,
            now_ms=now_ms,
            producer_expiration_ms=producer_expiration_ms,
        )
        for name in self._disk.list_names(self._path):
            partition = try_parse_partition(name)
            if name.endswith(DELETED_SUFFIX):
                self._removed.add_purgeable([f"{self._path}/{name}"])
            elif partition is not None:
                cap = partial(before_cut, partition)
                loaded = self._try_load(loader, partition, config_of(partition), cap)
                if loaded is not None:
                    yield partition, loaded
        if not self.is_clean:
            self._disk.sync_directory(self._path)
        self._removed.settle()

    def _try_load(
        self,
        loader: LogLoader,
        partition: TopicPartition,
        config: LogConfig,
        before_cut: Callable[[int], Callable[[], None]],
    ) -> LoadedLog | None:
        path = f"{self._path}/{partition}"
        try:
            self.report.replayed.check(str(partition))
            loaded = loader.load(partition, path, config, before_cut)
        except StorageFault as error:
            self.report.failed[partition] = str(error)
            self._keep_unloaded(partition, path, str(error))
            return None
        if loaded is None:
            self._removed.add(path)
        else:
            self.report.add(partition, loaded.report)
        return loaded

    def _keep_unloaded(self, partition: TopicPartition, path: str, why: str) -> None:
        entry = self.checkpoint.entries.get(partition)
        topic_id = None
        with suppress(StorageFault):
            topic_id = try_read_topic_id(self._disk, path)
        if topic_id is None and entry is not None:
            topic_id = entry.topic_id
        self._unloaded.add(partition, why, topic_id=topic_id, entry=entry)


def topic_id_of(disk: Disk, path: str, checkpoint: Checkpoint, name: str) -> TopicId | None:
    """As the loader finds it: a log without its file `partition` is in the checkpoint."""
    partition = try_parse_partition(name)
    if partition is None:
        return None
    entry = checkpoint.entries.get(partition)
    found = try_read_topic_id(disk, f"{path}/{name}")
    return entry.topic_id if found is None and entry is not None else found
