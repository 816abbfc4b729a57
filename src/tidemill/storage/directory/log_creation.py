"""Creates new logs, many at a time: a topic may need hundreds at once.

Theory of operation. A creation is prepared on the loop, made in a thread, and its logs are put into
service on the loop (`LogDirectory.begin_creation`, `adopt`). The steps of `make`:

    each log   files that have its name are put aside; its directory, its first segment and its
               file `partition` are created; before the last two a cap, if a checkpoint may
               name an earlier log of the topic: what that had flushed this one does not have
    each log   `partition` is synced, then the log's directory: the log's topic id is durable
    once       the data directory is synced: all the names in it are durable

All names are created before the first sync, because that sync then carries most of them. A log is
served only after the last step. A crash before that may leave any part of it, but never a batch:
the next start puts aside logs without a topic id and takes the others for the empty logs they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import final

from tidemill.core.errors import KafkaError, StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.storage.directory.directory_meta import create_topic_id
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog

__all__ = ["LogCreation", "WantedLog"]


@final
@dataclass(slots=True)
class WantedLog:
    """A log to create."""

    partition: TopicPartition
    topic_id: TopicId
    config: LogConfig
    cap: Callable[[], None] | None = None
    """Tells on disk that checkpoints claim too much of this log; None: none of them names it."""


@final
class LogCreation:
    """New logs being created. `make` runs in a thread, everything else on the loop."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        root: str,
        *,
        put_aside: Callable[[str], str],
        before_cut: Callable[[TopicPartition, int], Callable[[], None]],
    ) -> None:
        """`put_aside` gives a directory another name and returns that name."""
        self._disk = disk
        self._files = files
        self._root = root
        self._put_aside = put_aside
        self._before_cut = before_cut
        self._wanted: dict[TopicPartition, WantedLog] = {}
        self._started: set[TopicPartition] = set()
        """Directories that this creation made."""
        self._unsynced: dict[TopicPartition, DiskFile] = {}
        """The file `partition` of each log that was started."""
        self.made: dict[TopicPartition, FilePartitionLog] = {}
        self.failed: dict[TopicPartition, KafkaError | StorageFault] = {}
        """Logs that were refused or could not be made; nothing of them is left behind."""
        self.put_aside: list[str] = []
        """New paths of directories that were in the way."""

    def add(self, wanted: WantedLog) -> None:
        self._wanted[wanted.partition] = wanted

    def topic_id(self, partition: TopicPartition) -> TopicId:
        return self._wanted[partition].topic_id

    def make(self) -> None:
        """Make them all, durably. Raises nothing: `failed` has the outcome of each log."""
        for partition, wanted in self._wanted.items():
            with self._noting_faults(partition):
                self._make_log(wanted)
        for partition, file in self._unsynced.items():
            with self._noting_faults(partition):
                self._sync_log(partition, file)
        self._unsynced.clear()
        try:
            self._disk.sync_directory(self._root)
        except StorageFault as fault:
            for partition in list(self.made):
                self._give_up(partition, fault)

    def _make_log(self, wanted: WantedLog) -> None:
        partition, path = wanted.partition, self._path(wanted.partition)
        if self._disk.exists(path):
            self.put_aside.append(self._put_aside(path))
        self._started.add(partition)
        if wanted.cap is not None:
            self._disk.make_directories(path)
            wanted.cap()
        self.made[partition] = FilePartitionLog.create(
            self._disk,
            self._files,
            path,
            wanted.config,
            before_cut=partial(self._before_cut, partition),
        )
        self._unsynced[partition] = create_topic_id(self._disk, path, wanted.topic_id)

    def _sync_log(self, partition: TopicPartition, file: DiskFile) -> None:
        try:
            file.sync()
        finally:
            file.close()
        self._disk.sync_directory(self._path(partition))

    @contextmanager
    def _noting_faults(self, partition: TopicPartition) -> Iterator[None]:
        try:
            yield
        except StorageFault as fault:
            self._give_up(partition, fault)

    def _give_up(self, partition: TopicPartition, fault: StorageFault) -> None:
        """Remove what was made: the creation is retried, and the disk may be full."""
        self.failed[partition] = fault
        log = self.made.pop(partition, None)
        if log is not None:
            log.close()
        if partition in self._started:
            with suppress(StorageFault):
                self._remove(self._path(partition))

    def _remove(self, path: str) -> None:
        for name in self._disk.list_names(path):
            self._disk.unlink(f"{path}/{name}")
        self._disk.remove_directory(path)

    def _path(self, partition: TopicPartition) -> str:
        return f"{self._root}/{partition}"
