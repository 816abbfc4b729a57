"""Planted bugs of the round journal: each must be found by the exploration of crash states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemill.core.rng import SeededRng
from tidemill.storage.directory import directory_start
from tidemill.storage.directory.directory_start import DirectoryStart
from tidemill.storage.files.disk import DiskFile
from tidemill.storage.files.live_laps import LiveLaps
from tidemill.storage.journal import journal_replay
from tidemill.storage.journal.journal_block import BlockHead, iter_candidates, try_read_head
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.crash_workloads import journal_workload, mixed_workload
from tidemill.testing.crash.mini_broker import JournaledBroker, MiniBroker
from tidemill.testing.crash.promises import BrokenPromise
from tidemill.testing.sim.disk import SimDisk

pytestmark = pytest.mark.slow

SEEDS_MAX = 12
STEPS = 24
NO_LAP = property(lambda _laps: 1 << 60, lambda _laps, _oldest: None)
"""In place of `LiveLaps.oldest`: logs believe that the journal has nothing of them."""


def finds(broker_class: type[MiniBroker] = JournaledBroker) -> bool:
    """Whether the exploration of the journal's workload, or of mixed ones, finds a mutant."""
    workloads = [journal_workload, *map(_mixed, range(SEEDS_MAX))]
    return any(_breaks(workload, broker_class, seed) for seed, workload in enumerate(workloads))


def _mixed(seed: int) -> Callable[[MiniBroker, SimDisk], None]:
    def workload(broker: MiniBroker, disk: SimDisk) -> None:
        mixed_workload(broker, disk, rng=SeededRng(seed), steps=STEPS)

    return workload


def _breaks(
    workload: Callable[[MiniBroker, SimDisk], None], broker_class: type[MiniBroker], seed: int
) -> bool:
    try:
        CrashExplorer(workload, fates=3, seed=seed, broker_class=broker_class).run()
    except BrokenPromise:
        return True
    return False


class AcksBeforeTheSync(JournaledBroker):
    """Acknowledges what is in the journal's page cache."""

    def sync(self, sync: Callable[[], None]) -> None:
        for partition, batch in self._waiting:
            self.ack(partition, batch)
        sync()


class FreesUnsynced(JournaledBroker):
    """Fills a file again before the segments of its last lap are synced."""

    def flush_settling(self) -> None:
        self.directory.journal._unsettled.clear()


class CutsUnsettled(JournaledBroker):
    """Cuts a log while the journal still has the bytes that are cut."""

    def before_cut(self, log: FilePartitionLog) -> None:
        return


class UsesWhatAReplayLeft(JournaledBroker):
    """Fills the files of the process before it, whose laps have the same numbers."""

    def make_journal(self) -> list[DiskFile]:
        disk, directory = self.directory._disk, self.directory.path
        paths = [f"{directory}/{name}" for name in journal_replay.JOURNAL_NAMES]
        return [disk.open(path) for path in paths if disk.exists(path)] or super().make_journal()


def test_mutant_ack_before_the_sync_of_the_journal_is_found():
    assert finds(AcksBeforeTheSync)


def test_mutant_reuse_before_the_sync_of_the_segments_is_found():
    assert finds(FreesUnsynced)


def test_mutant_replay_over_a_cut_tail_is_found(monkeypatch):
    monkeypatch.setattr(LiveLaps, "oldest", NO_LAP)
    assert finds(CutsUnsettled)


def test_mutant_replay_of_an_old_lap_is_found(monkeypatch):
    monkeypatch.setattr(journal_replay._LapReader, "_next_block", _any_block)
    assert finds()


def test_mutant_replay_into_a_topic_of_the_same_name_is_found(monkeypatch):
    def topic_id_of(*_arguments: object) -> Any:
        return _AnyTopic()

    monkeypatch.setattr(directory_start, "topic_id_of", topic_id_of)
    assert finds()


def test_mutant_no_replay_is_found(monkeypatch):
    monkeypatch.setattr(DirectoryStart, "_end_journal", lambda *_arguments: None)
    assert finds()


def test_mutant_a_journal_that_outlives_its_replay_is_found(monkeypatch):
    monkeypatch.setattr(journal_replay, "remove_journal", _keep)
    assert finds(UsesWhatAReplayLeft)


def _any_block(
    reader: journal_replay._LapReader, position: int, lap: int, _number: int
) -> tuple[int, BlockHead] | None:
    """Reads on into the laps before."""
    for at in iter_candidates(reader._data, position):
        for one in range(1, lap + 1):
            head = try_read_head(reader._data, at, reader._directory_id, one)
            if head is not None:
                return at, head
    return None


class _AnyTopic:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _keep(_disk: SimDisk, _directory: str, _names: object) -> None:
    return
