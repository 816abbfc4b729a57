"""Making new logs, many at a time: a topic may want hundreds of them at once.

Theory of operation. A creation is put together on the loop, made in a thread, and its logs are
taken into service on the loop (`LogDirectory.begin_creation`, `adopt`). The steps of `make`:

    each log   what lies under its name is put aside; its directory, its first segment and its
               file `partition` are made
    each log   `partition` is synced, then the log's directory: whose it is
    once       the data directory is synced: all the names in it

All names before the first sync, because that sync then carries most of them with it. A log is
served after the last step only. A crash before that leaves any part of it, but never a batch: the
next start puts aside what does not say whose it is, and takes the rest for the empty logs they are.
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
    """A log that is to be made."""

    partition: TopicPartition
    topic_id: TopicId
    config: LogConfig


@final
class LogCreation:
    """Some new logs on their way. `make` in a thread, everything else on the loop."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        root: str,
        *,
        put_aside: Callable[[str], str],
        before_cut: Callable[[TopicPartition, int], None],
    ) -> None:
        """`put_aside` gives a directory another name, which it returns."""
        self._disk = disk
        self._files = files
        self._root = root
        self._put_aside = put_aside
        self._before_cut = before_cut
        self._wanted: dict[TopicPartition, WantedLog] = {}
        self._begun: set[TopicPartition] = set()
        """What lies under these names is ours."""
        self._unsynced: dict[TopicPartition, DiskFile] = {}
        """The file `partition` of each log that was begun."""
        self.made: dict[TopicPartition, FilePartitionLog] = {}
        self.failed: dict[TopicPartition, KafkaError | StorageFault] = {}
        """What was refused before or could not be made; nothing of it is left behind."""
        self.put_aside: list[str] = []
        """Where things went that lay in the way."""

    def add(self, wanted: WantedLog) -> None:
        self._wanted[wanted.partition] = wanted

    def topic_id(self, partition: TopicPartition) -> TopicId:
        return self._wanted[partition].topic_id

    def make(self) -> None:
        """Make them all, durably. Raises nothing: each log stands for itself in `failed`."""
        for partition, wanted in self._wanted.items():
            with self._noting_faults(partition):
                self._begin(wanted)
        for partition, file in self._unsynced.items():
            with self._noting_faults(partition):
                self._settle(partition, file)
        self._unsynced.clear()
        try:
            self._disk.sync_directory(self._root)
        except StorageFault as fault:
            for partition in list(self.made):
                self._give_up(partition, fault)

    def _begin(self, wanted: WantedLog) -> None:
        partition, path = wanted.partition, self._path(wanted.partition)
        if self._disk.exists(path):
            self.put_aside.append(self._put_aside(path))
        self._begun.add(partition)
        self.made[partition] = FilePartitionLog.create(
            self._disk,
            self._files,
            path,
            wanted.config,
            before_cut=partial(self._before_cut, partition),
        )
        self._unsynced[partition] = create_topic_id(self._disk, path, wanted.topic_id)

    def _settle(self, partition: TopicPartition, file: DiskFile) -> None:
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
        """It will be tried again: litter would gather, on a disk that may be full."""
        self.failed[partition] = fault
        log = self.made.pop(partition, None)
        if log is not None:
            log.close()
        if partition in self._begun:
            with suppress(StorageFault):
                self._remove(self._path(partition))

    def _remove(self, path: str) -> None:
        for name in self._disk.list_names(path):
            self._disk.unlink(f"{path}/{name}")
        self._disk.remove_directory(path)

    def _path(self, partition: TopicPartition) -> str:
        return f"{self._root}/{partition}"
