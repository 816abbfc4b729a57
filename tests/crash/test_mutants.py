"""Planted bugs: an exploration that misses them would prove nothing.

Each mutant replaces correct code with a plausible mistake, and the exploration must find it within
a few workloads. Production code knows nothing about them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory import checkpoint, directory_start, log_directory
from tidemill.storage.directory.log_creation import LogCreation
from tidemill.storage.directory.log_loading import LogLoader
from tidemill.storage.directory.removed_logs import RemovedLogs
from tidemill.storage.log.unflushed_changes import FlushWork
from tidemill.storage.recovery import log_recovery as recovery
from tidemill.storage.recovery.clean_load import CheckpointedLog
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.crash_workloads import (
    creation_workload,
    damage_workload,
    failing_disk_workload,
    kill_workload,
    mixed_workload,
    truncation_workload,
)
from tidemill.testing.crash.mini_broker import MiniBroker
from tidemill.testing.crash.promises import BrokenPromise, SentBatch
from tidemill.testing.sim.disk import SimDisk

pytestmark = pytest.mark.slow

SEEDS_MAX = 12
STEPS = 16

Workload = Callable[[MiniBroker, SimDisk], None]


def mixed(seed: int) -> Workload:
    def workload(broker: MiniBroker, disk: SimDisk) -> None:
        mixed_workload(broker, disk, rng=SeededRng(seed), steps=STEPS)

    return workload


def finds(workload: Workload, broker_class: type[MiniBroker] = MiniBroker, seed: int = 0) -> bool:
    try:
        CrashExplorer(workload, fates=2, seed=seed, broker_class=broker_class).run()
    except BrokenPromise:
        return True
    return False


def finds_by_chance(broker_class: type[MiniBroker] = MiniBroker) -> bool:
    return any(finds(mixed(seed), broker_class, seed) for seed in range(SEEDS_MAX))


class AcksBeforeFlush(MiniBroker):
    def after_append(self, partition: TopicPartition, batch: SentBatch) -> None:
        self.ack(partition, batch)


class AcksDuplicatesBeforeFlush(MiniBroker):
    def after_duplicate(self, partition: TopicPartition, batch: SentBatch) -> None:
        self.ack(partition, batch)


class RetriesAfterFailedSync(MiniBroker):
    def sync(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except StorageFault:
            sync()


def test_mutant_ack_before_flush_is_found():
    assert finds_by_chance(AcksBeforeFlush)


def test_mutant_duplicate_answered_before_flush_is_found():
    assert finds_by_chance(AcksDuplicatesBeforeFlush)


def test_mutant_logs_served_before_their_names_are_durable_are_found(
    monkeypatch,
):
    def make(creation: LogCreation) -> None:
        for wanted in creation._wanted.values():
            creation._make_log(wanted)

    monkeypatch.setattr(LogCreation, "make", make)
    assert finds(creation_workload)


def test_mutant_logs_whose_own_directories_are_not_synced_are_found(
    monkeypatch,
):
    monkeypatch.setattr(LogCreation, "_sync_log", lambda _creation, _partition, file: file.sync())
    assert finds(creation_workload)


def test_mutant_unlinking_files_before_their_deletion_is_durable_is_found(
    monkeypatch,
):
    """The log comes back without the file that names its topic."""

    def settle(removed: RemovedLogs) -> None:
        while removed._unnamed:
            removed._rename(removed._unnamed.popleft())
        removed._purgeable.extend(removed._renamed)
        removed._renamed.clear()

    monkeypatch.setattr(RemovedLogs, "settle", settle)
    assert any(finds(creation_workload, seed=seed) for seed in range(SEEDS_MAX))


def test_mutant_retry_after_a_failed_sync_is_found():
    assert finds(failing_disk_workload, RetriesAfterFailedSync)


def test_mutant_no_directory_sync_after_a_roll_is_found(monkeypatch):
    def finish(work: FlushWork) -> None:
        for path, encode in work.contents:
            work.disk.unlink(path)
            file = work.disk.open(path, create=True)
            file.pwrite([encode()], 0)
            file.sync()

    monkeypatch.setattr(FlushWork, "finish", finish)
    assert finds_by_chance()


def test_mutant_producer_snapshot_ignored_is_found(monkeypatch):
    monkeypatch.setattr(ProducerSnapshots, "try_load_newest", lambda _snapshots, _offset: None)
    assert finds_by_chance()


def test_mutant_cut_at_the_first_bad_checksum_anywhere_is_found(
    monkeypatch,
):
    monkeypatch.setattr(LogLoader, "_checkpointed", lambda *_arguments: CheckpointedLog())
    assert finds(damage_workload)


def test_mutant_recovered_tail_is_only_synced_is_found(monkeypatch):
    """After a failed sync of the previous process, its pages are clean but not on disk."""

    def only_sync(work: recovery._Recovery, place: int, _position: int) -> None:
        for segment in work._walk.segments[place:]:
            work._files.get(segment.path).sync()
        work._disk.sync_directory(work._directory)

    monkeypatch.setattr(recovery._Recovery, "_rewrite_and_sync", only_sync)
    assert finds(failing_disk_workload)


def test_mutant_recovered_tail_counts_as_flushed_is_found(monkeypatch):
    monkeypatch.setattr(recovery._Recovery, "_rewrite_and_sync", lambda *_arguments: None)
    assert finds(kill_workload)


def test_mutant_truncation_leaves_the_recovery_point_is_found(
    monkeypatch,
):
    monkeypatch.setattr(log_directory, "write_cap", lambda *_arguments, **_keywords: None)
    assert finds(truncation_workload)


def test_mutant_clean_mark_stays_after_the_start_is_found(monkeypatch):
    monkeypatch.setattr(directory_start, "try_take_clean_mark", lambda *_arguments: 1 << 40)
    take = checkpoint.read_newest

    def read_newest(disk: SimDisk, path: str) -> checkpoint.Checkpoint:
        found = take(disk, path)
        monkeypatch.setattr(directory_start, "try_take_clean_mark", lambda *_: found.sequence)
        return found

    monkeypatch.setattr(directory_start, "read_newest", read_newest)
    assert finds_by_chance()


def test_mutant_snapshot_past_the_end_is_used_is_found(monkeypatch):
    monkeypatch.setattr(ProducerSnapshots, "forget_after", lambda _snapshots, _offset: [])
    assert finds(truncation_workload)
