"""Retention walks over all logs in slices, and drops only segments that nothing depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.batches import NOW_MS, append, batch, fill, header
from tests.support.directories import ORDERS, SMALL, TOPIC_ID, flushed, log_of, opened, stored
from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.retention import RetentionPass

HOUR_MS = 3_600_000
BY_TIME = replace(SMALL, retention_ms=HOUR_MS)
LATER_MS = NOW_MS + 2 * HOUR_MS


@pytest.fixture
def directory() -> LogDirectory:
    return opened(SimDisk())


def no_limit(_partition: TopicPartition) -> int:
    return 1 << 60


def run_slice(retention: RetentionPass, now_ms: int, logs_max: int) -> bool:
    """One slice to its end, as the broker runs it; whether it completed a pass."""
    part = retention.next_slice(now_ms, logs_max)
    part.look()
    while part.plan():
        part.drop()
        part.finish()
        part.look()
    return part.is_last


def test_a_pass_looks_at_every_log_in_slices(directory):
    partitions = [TopicPartition("t", number) for number in range(5)]
    for partition in partitions:
        fill(directory.create_log(partition, TOPIC_ID, BY_TIME), 10)
    stored(directory)
    retention = RetentionPass(directory, no_limit)
    assert [run_slice(retention, LATER_MS, 2) for _ in range(3)] == [False, False, True]
    assert all(log.log_start_offset == 10 for log in directory.logs().values())


def test_F25_young_segments_stay(directory):
    fill(directory.create_log(ORDERS, TOPIC_ID, BY_TIME), 10)
    stored(directory)
    run_slice(RetentionPass(directory, no_limit), NOW_MS + HOUR_MS // 2, 10)
    assert log_of(directory).log_start_offset == 0


def test_nothing_at_or_above_the_high_watermark_is_dropped(directory):
    fill(directory.create_log(ORDERS, TOPIC_ID, BY_TIME), 10)
    stored(directory)
    run_slice(RetentionPass(directory, lambda _partition: 5), LATER_MS, 10)
    assert log_of(directory).log_start_offset == 4


def test_nothing_unflushed_is_dropped(directory):
    fill(directory.create_log(ORDERS, TOPIC_ID, BY_TIME), 10)
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    assert log_of(directory).log_start_offset == 0


def test_the_last_segment_stays_until_a_checkpoint_has_stored_its_producers(
    directory,
):
    log = directory.create_log(ORDERS, TOPIC_ID, BY_TIME)
    append(log, batch(0, producer=(5, 0, 0)))
    flushed(directory)
    retention = RetentionPass(directory, no_limit)
    run_slice(retention, LATER_MS, 10)
    assert log.log_start_offset == 0
    stored(directory)
    run_slice(retention, LATER_MS, 10)
    assert log.log_start_offset == 1


def test_I18_the_last_segment_stays_while_a_full_disk_keeps_its_producers_from_being_stored():
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, BY_TIME)
    append(log, batch(0, producer=(5, 0, 0)))
    disk.set_capacity(0)
    stored(directory)
    assert log.flushed_offset == 1
    assert not log.progress.is_stored
    disk.set_capacity(None)
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    assert log.log_start_offset == 0
    stored(directory)
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    assert log.log_start_offset == 1
    repeated = log_of(opened(disk.restart())).producers.check(header(0, producer=(5, 0, 0)))
    assert repeated is not None


def test_I18_a_producer_is_known_after_its_last_segment_was_dropped_and_power_was_lost():
    disk = SimDisk()
    directory = opened(disk)
    append(directory.create_log(ORDERS, TOPIC_ID, BY_TIME), batch(0, producer=(5, 0, 0)))
    stored(directory)
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    for seed in range(10):
        log = log_of(opened(disk.crash_image(SeededRng(seed))))
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)
        repeated = log.producers.check(header(0, producer=(5, 0, 0)))
        assert repeated is not None
        assert repeated.base_offset == 0


def test_a_log_that_is_deleted_during_a_pass_is_skipped(directory):
    partitions = [TopicPartition("t", number) for number in range(3)]
    for partition in partitions:
        directory.create_log(partition, TOPIC_ID, BY_TIME)
    retention = RetentionPass(directory, no_limit)
    run_slice(retention, NOW_MS, 1)
    directory.delete_log(partitions[1])
    assert run_slice(retention, NOW_MS, 10)


def test_deleted_logs_are_purged_in_slices(directory):
    fill(directory.create_log(ORDERS, TOPIC_ID, BY_TIME), 10)
    directory.delete_log(ORDERS)
    directory.settle_removals()
    outcomes = [directory.purge_slice(2) for _ in range(10)]
    assert outcomes[0] is False
    assert outcomes[-1] is True


@pytest.mark.parametrize("rolls", [False, True])
def test_I1_a_record_that_came_after_the_look_at_the_ages_is_not_dropped(directory, rolls):
    log = directory.create_log(ORDERS, TOPIC_ID, BY_TIME)
    append(log, batch(0))
    stored(directory)
    part = RetentionPass(directory, no_limit).next_slice(LATER_MS, 10)
    part.look()
    append(log, batch(1, times=[LATER_MS]), now_ms=LATER_MS)
    if rolls:
        fill(log, 10)
    stored(directory)
    while part.plan():
        part.drop()
        part.finish()
        part.look()
    assert log.log_start_offset == 0


def test_I18_closed_segments_stay_while_a_full_disk_keeps_their_producers_from_being_stored():
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, BY_TIME)
    fill(log, 5)
    flushed(directory)
    append(log, batch(5, producer=(5, 0, 0)))
    fill(log, 5)
    disk.set_capacity(0)
    flushed(directory)
    disk.set_capacity(None)
    assert log.flushed_offset == 11
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    assert log.log_start_offset == 4, "older segments make room"
    repeated = log_of(opened(disk.restart())).producers.check(header(5, producer=(5, 0, 0)))
    assert repeated is not None


@pytest.mark.parametrize(("call", "base_offset"), [("pread", 10), ("create", 15), ("rename", 10)])
def test_a_log_that_fails_keeps_no_other_log_from_retention(call, base_offset):
    disk = SimDisk()
    directory = opened(disk)
    partitions = [TopicPartition("t", number) for number in range(3)]
    for partition in partitions:
        log = directory.create_log(partition, TOPIC_ID, replace(BY_TIME, delete_delay_ms=1_000))
        fill(log, 10)
    stored(directory)
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    for partition in partitions:
        fill(log_of(directory, partition), 5)
    stored(directory)
    directory.close()
    directory = opened(disk)
    for log in directory.logs().values():
        log.set_config(BY_TIME)
    disk.fail(call, f"{partitions[1]}/{base_offset:020d}.log")
    retention = RetentionPass(directory, no_limit)
    part = retention.next_slice(LATER_MS + 2_000, 10)
    part.look()
    while part.plan():
        part.drop()
        part.finish()
        part.look()
    assert list(part.faults) == [partitions[1]]
    starts = [log.log_start_offset for log in directory.logs().values()]
    assert starts[::2] == [15, 15]
    run_slice(retention, LATER_MS + 3_000, 10)
    assert log_of(directory, partitions[1]).log_start_offset == 15


def test_files_that_are_due_to_be_unlinked_are_not_forgotten_when_the_log_finds_no_room():
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, replace(BY_TIME, delete_delay_ms=1_000))
    fill(log, 10)
    stored(directory)
    run_slice(RetentionPass(directory, no_limit), LATER_MS, 10)
    fill(log, 1)
    stored(directory)
    disk.fail("create", str(ORDERS))
    for minutes in (1, 2, 3):
        run_slice(RetentionPass(directory, no_limit), LATER_MS + minutes * 60_000, 10)
    names = disk.list_names(f"/data/{ORDERS}")
    assert not [name for name in names if name.endswith(".deleted")]


def test_a_removed_log_that_cannot_be_renamed_or_unlinked_holds_up_no_other_one():
    disk = SimDisk()
    directory = opened(disk)
    partitions = [TopicPartition("t", number) for number in range(3)]
    for partition in partitions:
        fill(directory.create_log(partition, TOPIC_ID, BY_TIME), 1)
    directory.free_names(partitions)
    disk.fail("rename", str(partitions[0]))
    with pytest.raises(StorageFault):
        directory.settle_removals()
    stuck, *_ = [name for name in disk.list_names("/data") if name.endswith(".deleted")]
    disk.fail("unlink", stuck, times=2)
    for _ in range(2):
        with pytest.raises(StorageFault):
            directory.purge_slice(100)
    left = [name for name in disk.list_names("/data") if name.endswith((".deleted", "-0"))]
    assert left == [stuck, str(partitions[0])]
