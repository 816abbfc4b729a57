"""A data directory on a simulated disk whose rounds go to a small journal."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.journal.round_journal import JournalLimits
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import assign_offsets, read_header
from tidemill.wire.records import Record, build_batch

ROOT = "/data"
LIMITS = JournalLimits(bytes_max=32_768, file_bytes_min=8_192, logs_min=2, settle_after_ms=1_000)


class JournaledDirectory:
    """A `LogDirectory`, and what its owner does with it."""

    def __init__(self, disk: SimDisk, limits: JournalLimits = LIMITS) -> None:
        self.disk = disk
        self.directory = LogDirectory.open(
            disk,
            ROOT,
            cluster_id="c",
            broker_id=1,
            rng=SeededRng(1),
            now_ms=1_000,
            journal=limits,
        )
        self.journal = self.directory.journal

    def create(self, count: int, topic: int = 1) -> list[FilePartitionLog]:
        topic_id = TopicId(UUID(int=topic))
        logs = [
            self.directory.create_log(TopicPartition("t", number), topic_id, LogConfig())
            for number in range(count)
        ]
        self.flush(logs)  # stores their epochs, in their own files
        return logs

    def log(self, number: int) -> FilePartitionLog:
        log = self.directory.get(TopicPartition("t", number))
        assert log is not None
        return log

    def append(self, log: FilePartitionLog, size: int = 50) -> None:
        view = build_batch([Record(b"v" * size, timestamp=1_000)])
        assign_offsets(view, log.log_end_offset, 0)
        log.append([view], [read_header(view)], now_ms=1_000)

    def flush(self, logs: Sequence[FilePartitionLog], now_ms: int = 0, size: int = 50) -> bool:
        """Append to these logs and flush them; whether the journal was used."""
        for log in logs:
            self.append(log, size)
            self.directory.dirty.request(log)
        flush_round = self.directory.dirty.collect(now_ms=now_ms)
        assert flush_round is not None
        flush_round.sync()
        flush_round.apply()
        return flush_round.block is not None

    def make_journal(self) -> None:
        self.journal.use(self.journal.make())

    def settle(self) -> None:
        assert self.journal.try_begin_settling()
        while (flush_round := self.directory.collect_settling()) is not None:
            flush_round.sync()
            flush_round.apply()
        self.journal.free().write_now()
        self.journal.grow()
        self.journal.freed()

    def crash(self) -> JournaledDirectory:
        """Power loss: the next start finds what was synced, and part of the rest."""
        return JournaledDirectory(self.disk.crash(SeededRng(3)))
