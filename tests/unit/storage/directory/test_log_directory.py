"""A data directory: who may use it, what it remembers, and how it goes offline."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.batches import append, batch, drain, fill
from tests.support.directories import (
    ORDERS,
    ORDERS_PATH,
    ROOT,
    SMALL,
    TOPIC_ID,
    flushed,
    log_of,
    opened,
    stored,
)
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault, UserError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory import log_directory
from tidemill.storage.directory.checkpoint import CHECKPOINT_NAMES, CLEAN_NAME, read_newest
from tidemill.storage.directory.log_creation import WantedLog
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.testing.sim.disk import SimDisk

OTHER_ID = TopicId(UUID(int=8))


def with_log(disk: SimDisk, batches: int = 10) -> LogDirectory:
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, SMALL), batches)
    flushed(directory)
    return directory


def test_a_second_broker_is_refused_with_one_clear_line(disk):
    opened(disk)
    with pytest.raises(UserError, match=r"^/data is in use .*choose another data directory$"):
        opened(disk.beside())


def test_a_failed_start_leaves_the_directory_unlocked(disk):
    opened(disk).close()
    with pytest.raises(UserError, match="belongs to cluster"):
        opened(disk, cluster_id="another")
    assert opened(disk).meta.cluster_id == "c"


def test_a_clean_end_is_recognised_once(disk):
    with_log(disk).close()
    again = opened(disk)
    assert again.started_clean
    assert not disk.exists(f"{ROOT}/{CLEAN_NAME}")
    assert not opened(disk.restart()).started_clean


def test_a_fresh_directory_does_not_count_as_a_clean_start(disk):
    assert not opened(disk).started_clean


@pytest.mark.parametrize("lost", ["the newest segment", "all segments", "the directory"])
def test_I14_a_start_that_misses_what_was_flushed_does_not_count_as_clean(disk, lost):
    with_log(disk).close()
    names = sorted(disk.list_names(ORDERS_PATH))
    segments = [name for name in names if name.endswith(".log")]
    for name in {"the newest segment": segments[-1:], "all segments": segments}.get(lost, names):
        disk.unlink(f"{ORDERS_PATH}/{name}")
    if lost == "the directory":
        disk.remove_directory(ORDERS_PATH)
    assert not opened(disk).started_clean


def test_a_killed_broker_did_not_end_cleanly(disk):
    with_log(disk)
    assert not opened(disk.restart()).started_clean


def test_logs_come_back_with_their_batches_after_a_clean_end(disk):
    directory = opened(disk)
    written = fill(directory.create_log(ORDERS, TOPIC_ID, SMALL), 10)
    directory.close()
    log = log_of(opened(disk.crash(SeededRng(1))))
    assert drain(log) == b"".join(written)
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (0, 10, 10)


def test_a_clean_start_reads_no_segment(disk):
    directory = with_log(disk)
    append(log_of(directory), batch(10, producer=(5, 0, 0)))
    directory.close()
    disk = disk.restart()
    disk.fail("pread", ".log", times=100)
    reopened = opened(disk)
    assert reopened.report.logs_loaded == 1
    assert reopened.report.scanned_bytes == 0


def test_a_clean_start_does_not_trust_files_of_another_size(disk):
    with_log(disk).close()
    last = [name for name in disk.list_names(ORDERS_PATH) if name.endswith(".log")][-1]
    disk.open(f"{ORDERS_PATH}/{last}").truncate(5)
    reopened = opened(disk)
    assert reopened.report.suspects == [ORDERS]


def test_create_log_returns_the_log_that_is_there(disk):
    directory = with_log(disk)
    assert directory.create_log(ORDERS, TOPIC_ID, SMALL) is log_of(directory)


def test_I34_a_recreated_topic_never_sees_the_old_data(disk):
    directory = with_log(disk)
    assert directory.get(ORDERS, OTHER_ID) is None
    log = directory.create_log(ORDERS, OTHER_ID, SMALL)
    assert log.log_end_offset == 0
    written = fill(log, 1)
    flushed(directory)
    again = opened(disk.crash(SeededRng(2)))
    assert again.topic_id(ORDERS) == OTHER_ID
    assert drain(log_of(again)) == written[0]


def test_I34_the_checkpoint_of_the_old_topic_does_not_apply_to_the_new_one(disk):
    directory = with_log(disk)
    directory.write_checkpoint({ORDERS: 10})
    fill(directory.create_log(ORDERS, OTHER_ID, SMALL), 1)
    flushed(directory)
    again = opened(disk.crash(SeededRng(2)))
    assert log_of(again).log_end_offset == 1
    assert again.high_watermark(ORDERS) == 0
    assert not again.report.suspects


def test_a_deleted_log_is_gone_at_once_and_its_files_in_slices(disk):
    directory = with_log(disk)
    directory.delete_log(ORDERS)
    assert directory.get(ORDERS) is None
    directory.settle_removals()
    assert not disk.exists(ORDERS_PATH)
    slices = 1
    while not directory.purge_slice(2):
        slices += 1
    assert slices > 2
    assert not [name for name in disk.list_names(ROOT) if name.endswith(".deleted")]


def test_a_deletion_survives_a_crash_and_is_finished_by_the_next_start(disk):
    directory = with_log(disk)
    directory.delete_log(ORDERS)
    directory.settle_removals()
    disk = disk.crash(SeededRng(4))
    directory = opened(disk)
    assert directory.logs() == {}
    while not directory.purge_slice(100):
        pass
    assert not [name for name in disk.list_names(ROOT) if name.endswith(".deleted")]


def test_the_files_of_a_deleted_log_stay_until_its_deletion_is_durable(disk):
    """Otherwise a crash could bring the log back with half of its files, which looks damaged."""
    directory = with_log(disk)
    directory.delete_log(ORDERS)
    assert directory.has_unsettled_removals
    assert directory.purge_slice(100)
    for seed in range(10):
        again = opened(disk.crash_image(SeededRng(seed)))
        assert again.report.failed == {}
        assert not again.report.suspects


def test_deletions_become_durable_with_one_sync(disk):
    directory = opened(disk)
    partitions = [TopicPartition("t", number) for number in range(5)]
    for partition in partitions:
        directory.create_log(partition, TOPIC_ID, SMALL)
    for partition in partitions:
        directory.delete_log(partition)
    calls = []
    disk.on_call = lambda _disk, call, _path: calls.append(call)
    directory.settle_removals()
    assert calls == ["rename"] * 5 + ["sync_directory"]
    assert opened(disk.crash(SeededRng(1))).logs() == {}


def test_a_log_deleted_under_a_running_round_cannot_be_created_before_it_ends(
    disk,
):
    directory = with_log(disk)
    fill(log_of(directory), 1)
    directory.dirty.request(log_of(directory))
    flush_round = directory.dirty.collect(now_ms=0)
    assert flush_round is not None
    directory.delete_log(ORDERS)
    with pytest.raises(KafkaError, match="still being deleted"):
        directory.create_log(ORDERS, OTHER_ID, SMALL)
    flush_round.sync()
    flush_round.apply()
    assert directory.create_log(ORDERS, OTHER_ID, SMALL).log_end_offset == 0


def test_R10_two_generations_of_checkpoints_are_kept(disk):
    directory = with_log(disk)
    for _ in range(3):
        directory.write_checkpoint()
    assert set(CHECKPOINT_NAMES) <= set(disk.list_names(ROOT))
    assert read_newest(disk, ROOT).sequence == 3


def test_a_checkpoint_promises_only_what_is_flushed(disk):
    directory = with_log(disk)
    fill(log_of(directory), 5)
    directory.write_checkpoint()
    assert read_newest(disk, ROOT).entries[ORDERS].recovery_point == 10


def test_high_watermarks_come_back_from_the_checkpoint(disk):
    directory = with_log(disk)
    directory.write_checkpoint({ORDERS: 8})
    assert opened(disk.restart()).high_watermark(ORDERS) == 8


def test_I9_a_log_start_in_a_checkpoint_never_goes_back(disk):
    directory = with_log(disk)
    log_of(directory).advance_start(6)
    directory.write_checkpoint()
    for seed in range(10):
        again = opened(disk.crash_image(SeededRng(seed)))
        assert log_of(again).log_start_offset == 6


def test_I9_a_log_start_after_all_surviving_batches_starts_an_empty_log(disk):
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, SMALL), 1)
    flushed(directory)
    fill(log_of(directory), 9)
    log_of(directory).advance_start(10)
    directory.write_checkpoint()
    for seed in range(10):
        log = log_of(opened(disk.crash_image(SeededRng(seed))))
        assert (log.log_start_offset, log.log_end_offset) == (10, 10)


def test_collect_checkpoint_takes_changed_logs_in_slices(disk):
    directory = opened(disk)
    partitions = [TopicPartition("t", number) for number in range(5)]
    for partition in partitions:
        fill(directory.create_log(partition, TOPIC_ID, SMALL), 1)
    sizes = []
    changed = directory.changed_logs()
    while (flush_round := directory.collect_checkpoint(changed, 2)) is not None:
        sizes.append(len(flush_round.logs))
        flush_round.sync()
        flush_round.apply()
    assert sizes == [2, 2, 1]
    assert all(log.flushed_offset == 1 for log in directory.logs().values())


def test_a_checkpoint_ends_although_its_logs_go_on_growing(disk):
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    fill(log, 1)
    changed, rounds = directory.changed_logs(), 0
    while (flush_round := directory.collect_checkpoint(changed, 2)) is not None:
        fill(log, 1)
        flush_round.sync()
        flush_round.apply()
        rounds += 1
    assert rounds == 1
    assert not log.progress.is_stored


def test_a_round_of_a_checkpoint_captures_a_bounded_number_of_producers(disk, monkeypatch):
    monkeypatch.setattr(log_directory, "CHECKPOINT_PRODUCERS_PER_SLICE", 3)
    directory = opened(disk)
    for number in range(4):
        log = directory.create_log(TopicPartition("t", number), TOPIC_ID, SMALL)
        for producer_id in (1, 2):
            append(log, batch(log.log_end_offset, producer=(producer_id, 0, 0)))
    changed = directory.changed_logs()
    flush_round = directory.collect_checkpoint(changed, 100)
    assert flush_round is not None
    assert (len(flush_round.logs), len(changed)) == (2, 2)


def test_a_log_that_is_deleted_during_a_checkpoint_is_left_out(disk):
    directory = with_log(disk)
    fill(log_of(directory), 1)
    changed = directory.changed_logs()
    directory.delete_log(ORDERS)
    assert directory.collect_checkpoint(changed, 100) is None
    assert not changed


def test_a_log_that_grew_back_to_its_stored_end_after_a_cut_is_not_stored(disk):
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    fill(log, 3)
    stored(directory)
    assert log.progress.is_stored
    log.truncate_to(2)
    fill(log, 1)
    assert not log.progress.is_stored


def test_a_failed_flush_takes_the_directory_offline_for_good(disk):
    directory = with_log(disk)
    failures: list[StorageFault] = []
    directory.on_failure = failures.append
    fill(log_of(directory), 1)
    directory.dirty.request(log_of(directory))
    flush_round = directory.dirty.collect(now_ms=0)
    assert flush_round is not None
    disk.fail("sync", ".log")
    with pytest.raises(StorageFault) as raised:
        flush_round.sync()
    flush_round.fail(raised.value)
    assert failures == [raised.value]
    with pytest.raises(KafkaError) as refused:
        directory.create_log(TopicPartition("new", 0), OTHER_ID, SMALL)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_directory_that_failed_does_not_end_cleanly(disk):
    directory = with_log(disk)
    directory.fail(StorageFault("EIO"))
    directory.close()
    assert not opened(disk).started_clean


def test_a_flush_that_fails_at_the_end_leaves_no_clean_mark(disk):
    directory = with_log(disk)
    fill(log_of(directory), 1)
    disk.fail("sync", ".log")
    directory.close()
    assert directory.failure is not None
    assert not opened(disk).started_clean


def test_a_log_that_cannot_be_read_is_not_served_and_not_forgotten(disk):
    directory = with_log(disk)
    directory.write_checkpoint()
    disk = disk.restart()
    disk.fail("pread", "orders-0", times=1)
    directory = opened(disk)
    assert list(directory.report.failed) == [ORDERS]
    with pytest.raises(KafkaError, match="was not loaded"):
        directory.create_log(ORDERS, TOPIC_ID, SMALL)
    directory.write_checkpoint()
    directory.write_checkpoint()
    again = opened(disk.restart())
    assert log_of(again).log_end_offset == 10
    assert read_newest(disk.beside(), ROOT).entries[ORDERS].recovery_point == 10


def test_a_log_of_a_deleted_topic_that_cannot_be_read_leaves_its_name_to_a_new_topic(disk):
    directory = with_log(disk)
    directory.write_checkpoint()
    disk = disk.restart()
    disk.fail("pread", "orders-0", times=1)
    directory = opened(disk)
    log = directory.create_log(ORDERS, OTHER_ID, SMALL)
    fill(log, 3)
    directory.close()
    again = opened(disk.restart())
    assert again.topic_id(ORDERS) == OTHER_ID
    assert log_of(again).log_end_offset == 3


def test_data_of_an_unknown_topic_goes_when_the_topic_of_its_name_is_deleted(disk):
    with_log(disk)
    disk.unlink(f"{ORDERS_PATH}/partition")
    directory = opened(disk.restart())
    with pytest.raises(KafkaError, match="was not loaded"):
        directory.create_log(ORDERS, OTHER_ID, SMALL)
    directory.delete_unloaded(ORDERS, TOPIC_ID)
    directory.settle_removals()
    assert directory.purge_slice(100)
    assert directory.create_log(ORDERS, OTHER_ID, SMALL).log_end_offset == 0


def test_the_deletion_of_another_topic_leaves_a_log_that_was_not_loaded(disk):
    directory = with_log(disk)
    directory.write_checkpoint()
    disk = disk.restart()
    disk.fail("pread", "orders-0", times=1)
    directory = opened(disk)
    directory.delete_unloaded(ORDERS, OTHER_ID)
    assert disk.exists(ORDERS_PATH)
    directory.write_checkpoint()
    assert log_of(opened(disk.restart())).log_end_offset == 10


def test_I34_a_log_that_is_being_made_is_not_taken_for_the_one_that_was_not_loaded(disk):
    with_log(disk).write_checkpoint()
    disk = disk.restart()
    disk.fail("pread", "orders-0", times=1)
    directory = opened(disk)
    creation = directory.begin_creation([WantedLog(ORDERS, OTHER_ID, SMALL)])
    creation.make()
    directory.delete_unloaded(ORDERS, TOPIC_ID)
    directory.adopt(creation)
    fill(log_of(directory), 3)
    flushed(directory)
    directory.settle_removals()
    while not directory.purge_slice(100):
        pass
    directory.write_checkpoint()
    assert log_of(opened(disk.restart())).log_end_offset == 3


def test_a_lost_partition_file_is_rebuilt_from_the_checkpoint(disk):
    with_log(disk).write_checkpoint()
    disk.flip_bit(f"{ORDERS_PATH}/partition", 18)
    disk = disk.restart()
    assert opened(disk).topic_id(ORDERS) == TOPIC_ID
    assert opened(disk.restart()).topic_id(ORDERS) == TOPIC_ID


def test_data_of_an_unknown_topic_is_neither_served_nor_deleted(disk):
    with_log(disk)
    disk.unlink(f"{ORDERS_PATH}/partition")
    disk = disk.restart()
    directory = opened(disk)
    assert "topic is unknown" in directory.report.failed[ORDERS]
    assert disk.exists(ORDERS_PATH)


def test_a_creation_that_was_cut_short_is_put_aside(disk):
    opened(disk)
    disk.make_directories(ORDERS_PATH)
    disk.open(f"{ORDERS_PATH}/{0:020d}.log", create=True)
    directory = opened(disk.restart())
    assert directory.logs() == {}
    assert directory.report.failed == {}


def test_the_report_has_one_line_for_each_finding(disk):
    directory = with_log(disk)
    directory.write_checkpoint()
    disk.flip_bit(f"{ORDERS_PATH}/leader-epochs", 20)
    lines = opened(disk.restart()).report.lines()
    assert lines == ["orders-0: rebuilt leader-epochs"]


@pytest.mark.parametrize("seed", range(20))
def test_a_log_is_appended_to_after_power_was_lost_behind_DeleteRecords(seed):
    """What it deleted was never flushed, and the crash left any part of it."""
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    fill(log, 2)
    stored(directory)
    fill(log, 1)
    log.advance_start(3)
    directory.write_checkpoint({ORDERS: 3})
    log = log_of(opened(disk.crash(SeededRng(seed))))
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    (written,) = fill(log, 1)
    assert drain(log) == written
