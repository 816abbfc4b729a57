"""The compaction loop: which log it picks, how it rests, and how it handles faults."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from tests.support.batches import NOW_MS
from tests.support.compacting import CONFIG, pairs, put, seal
from tests.support.coroutines import run
from tests.support.directories import flushed, opened
from tidemill.core.config.broker_config import broker_config
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.core.telemetry import Telemetry
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep import cleaner as cleaner_module
from tidemill.upkeep.cleaner import NO_ROOM_REST_S, Cleaner

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Place:
    """A data directory with compacted logs, and its cleaner."""

    def __init__(self, *settings: str) -> None:
        self.disk = SimDisk()
        self.directory = opened(self.disk)
        self.limits: dict[tuple[str, int], int] = {}
        self.telemetry = Telemetry()
        self.log_changes = asyncio.Lock()
        self.room = DiskRoom()
        self.clock = ManualClock(wall_ms=NOW_MS)
        self.cleaner = Cleaner(
            self.disk,
            self.directory,
            self,  # type: ignore[arg-type] # it only calls `find`
            clock=self.clock,
            rng=SeededRng(1),
            telemetry=self.telemetry,
            config=LiveConfig(broker_config(flags=settings)),
            log_changes=self.log_changes,
            room=self.room,
        )

    def find(self, topic: str, index: int) -> SimpleNamespace:
        limit = self.limits.get((topic, index), 1 << 40)
        return SimpleNamespace(compactable_offset=lambda: limit)

    def log(
        self, name: TopicPartition = A, *, keys: int = 10, config: LogConfig = CONFIG
    ) -> FilePartitionLog:
        """A log with ten versions of one key and `keys` others."""
        log = self.directory.create_log(name, TopicId(UUID(int=hash(name) & 0xFFFF)), config)
        for number in range(10):
            put(log, (b"k", b"%d" % number))
        for number in range(keys):
            put(log, (b"k%d" % number, b"v"))
        seal(log)
        return log

    def set_free(self, free_bytes: int) -> None:
        """What is free on the disk, where a reserve of 100 bytes is kept."""
        self.room.end_look(
            self.room.begin_look(), total_bytes=1 << 30, free_bytes=free_bytes, reserve_bytes=100
        )

    def clean(self) -> bool:
        return run(self.cleaner.clean_dirtiest())


def values(log: FilePartitionLog) -> list[bytes | None]:
    return [value for _, key, value in pairs(log) if key == b"k"]


def test_F26_a_dirty_log_is_cleaned_once():
    place = Place()
    log = place.log()
    assert place.clean()
    assert values(log) == [b"9"]
    assert not place.clean()
    assert place.telemetry.cleanings == 1
    assert place.telemetry.cleaned_segments > 0
    assert place.telemetry.cleaned_bytes > 0


def test_a_topic_without_compaction_is_not_cleaned():
    place = Place()
    log = place.log(config=replace(CONFIG, compacts=False))
    assert not place.clean()
    assert len(values(log)) == 10


def test_a_topic_is_cleaned_after_its_policy_changed_to_compact():
    place = Place()
    log = place.log(config=replace(CONFIG, compacts=False))
    log.set_config(CONFIG)
    assert place.clean()
    assert values(log) == [b"9"]


def test_the_dirtiest_log_comes_first():
    place = Place()
    first, second = place.log(A), place.log(B)
    place.clean()
    place.clean()
    for log, versions in ((first, 1), (second, 30)):
        for number in range(versions):
            put(log, (b"k", b"again %d" % number))
        seal(log)
    place.clean()
    assert values(second) == [b"again 29"]
    assert values(first) == [b"9", b"again 0"]


def test_a_log_below_the_dirty_ratio_is_not_cleaned_but_reported():
    place = Place()
    log = place.log(config=replace(CONFIG, min_cleanable_dirty_ratio=1))
    place.clean()
    put(log, (b"k", b"10"))
    seal(log)
    assert not place.clean()
    assert 0 < place.telemetry.dirtiest_log_percent < 100


def test_I35_nothing_above_the_partitions_mark_is_cleaned():
    place = Place()
    log = place.log()
    place.limits[A] = 0
    assert not place.clean()
    assert len(values(log)) == 10


def test_a_log_is_cleaned_although_no_replica_has_some_of_it():
    place = Place()
    log = place.log()
    log.damage.note(DamagedRange(1, 2))
    assert not place.clean()
    log.damage.give_up(DamagedRange(1, 2))
    assert place.clean()
    assert log.damage.given_up == [DamagedRange(1, 2)]


def test_a_damaged_log_is_reported_once_and_others_are_cleaned(
    caplog,
):
    place = Place()
    damaged, healthy = place.log(A), place.log(B)
    place.disk.flip_bit(damaged.segments.oldest.path, 100)
    with caplog.at_level(logging.ERROR):
        while place.clean():
            pass
        place.clean()
    assert len(caplog.records) == 1
    assert place.telemetry.cleaning_failures == 1
    assert values(healthy) == [b"9"]
    assert place.directory.failure is None


def test_a_full_disk_stops_a_cleaning_and_nothing_else():
    place = Place()
    log = place.log()
    place.disk.set_capacity(0)
    assert place.clean()
    assert place.telemetry.cleaning_failures == 1
    assert place.directory.failure is None
    place.disk.set_capacity(None)
    place.clock.advance(NO_ROOM_REST_S)
    assert place.clean()
    assert values(log) == [b"9"]


def test_R12_compaction_leaves_half_of_the_reserve():
    place = Place()
    log = place.log()
    names = place.disk.list_names(log.directory)
    place.set_free(50)
    place.clean()
    assert place.disk.list_names(log.directory) == names
    assert len(values(log)) == 10
    place.set_free(51 + 4096)
    place.clock.advance(NO_ROOM_REST_S)
    place.clean()
    assert values(log) == [b"9"]


def test_a_dirty_log_for_which_there_is_no_room_does_not_stop_the_others():
    place = Place()
    small = place.log(A, keys=1)
    place.clean()
    for number in range(10):
        put(small, (b"k", b"again %d" % number))
    seal(small)
    place.log(B, keys=400)  # large, and dirtier: it was never cleaned
    place.set_free(50 + 3_000)
    assert place.clean()
    assert place.telemetry.cleaning_failures == 1
    assert len(values(small)) == 11
    place.set_free(50 + 3_000)  # the files of the attempt are gone
    assert place.clean()
    assert values(small) == [b"again 9"]
    assert not place.clean()
    assert place.telemetry.dirtiest_log_percent == 100


def test_many_logs_without_room_write_one_line_a_minute(caplog):
    place = Place()
    for index in range(5):
        place.log(TopicPartition("a", index))
    place.set_free(0)
    while place.clean():
        pass
    assert place.telemetry.cleaning_failures == 5
    assert sum("failed" in record.getMessage() for record in caplog.records) == 1


def test_a_failed_sync_takes_the_directory_offline():
    place = Place()
    place.log()
    place.disk.fail("sync", ".cleaned")
    assert not place.clean()
    assert place.directory.failure is not None
    assert not place.clean()


def test_deleting_a_log_while_it_is_cleaned_is_not_a_failure():
    place = Place()
    place.log()
    run, steps = place.disk.run, 0

    async def run_and_delete(operation: object, work: DiskWork) -> object:
        nonlocal steps
        steps += 1
        if steps == 5:
            place.directory.delete_log(A)
        return await run(operation, work)  # type: ignore[arg-type]

    place.disk.run = run_and_delete  # type: ignore[method-assign,assignment]
    assert place.clean()
    assert steps == 6, "the next step finds the log closed"
    assert place.telemetry.cleaning_failures == 0
    assert not place.clean()


def test_a_byte_rate_slows_cleaning_down(monkeypatch):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(cleaner_module, "asyncio", SimpleNamespace(sleep=sleep))
    place = Place("log.cleaner.io.max.bytes.per.second=1024")
    place.log()
    place.clean()
    assert sum(waited) == pytest.approx(place.telemetry.cleaned_bytes / 1024)


def test_nothing_else_changes_the_files_of_logs_while_a_new_segment_is_put_in_place(monkeypatch):
    place = Place("log.cleaner.io.max.bytes.per.second=1024")
    renamed_alone = []
    held_in_pauses = []

    async def sleep(_seconds: float) -> None:
        held_in_pauses.append(place.log_changes.locked())

    monkeypatch.setattr(cleaner_module, "asyncio", SimpleNamespace(sleep=sleep))
    log = place.log()
    place.disk.on_call = lambda _disk, call, path: (
        renamed_alone.append(place.log_changes.locked())
        if call == "rename" and ".log" in path
        else None
    )
    place.clean()
    assert values(log) == [b"9"]
    assert renamed_alone
    assert all(renamed_alone)
    assert not any(held_in_pauses)
    assert not place.log_changes.locked()


def test_other_changes_of_files_go_on_after_a_cleaning_that_could_not_be_tidied_up():
    place = Place()
    place.log()
    place.disk.fail("sync", ".cleaned")
    place.disk.on_call = lambda disk, call, path: (
        disk.fail("unlink", ".cleaned") if call == "sync" and path.endswith(".cleaned") else None
    )
    assert not place.clean()
    assert not place.log_changes.locked()


def test_I9_a_clean_restart_keeps_the_cleaned_log():
    place = Place()
    log = place.log()
    place.clean()
    end = log.log_end_offset
    flushed(place.directory, A)
    place.directory.close({A: end})
    again = opened(place.disk)
    assert again.started_clean
    found = again.get(A)
    assert found is not None
    assert (values(found), found.log_end_offset) == ([b"9"], end)
