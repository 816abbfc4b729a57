"""Behaviour of the file log alone; tests/contract/test_partition_log.py covers both logs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.batches import (
    NOW_MS,
    append,
    batch,
    drain,
    fill,
    flush,
    header,
    offsets_of,
    read,
)
from tests.unit.storage.log.small_log import (
    PATH,
    SMALL,
    checkpoint,
    names,
    new_log,
    reopened,
)
from tidemill.core.errors import DiskFull, StorageFault
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.state.leader_epochs import LeaderEpochs

# --- rolling --------------------------------------------------------------------------------------


def test_F23_F33_a_segment_rolls_before_it_gets_too_large(disk):
    log = new_log(disk)
    fill(log, 20)
    sizes = [segment.size_bytes for segment in log.segments]
    assert len(sizes) == 5
    assert max(sizes) <= 300


def test_a_batch_larger_than_a_segment_gets_its_own_segment(disk):
    log = new_log(disk)
    fill(log, 1)
    fill(log, 1, value=b"x" * 1_000)
    fill(log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_a_segment_rolls_by_the_time_since_its_first_batch(disk):
    log = new_log(disk, LogConfig(segment_ms=1_000))
    append(log, batch(0), now_ms=NOW_MS)
    append(log, batch(1), now_ms=NOW_MS + 1_000)
    append(log, batch(2), now_ms=NOW_MS + 1_001)
    append(log, batch(3), now_ms=NOW_MS + 2_001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_of_an_earlier_process_rolls_by_the_time_of_its_first_batch(
    disk,
):
    log = new_log(disk, LogConfig(segment_ms=1_000))
    append(log, batch(0))
    flush(log)
    log = reopened(disk, log)
    append(log, batch(1), now_ms=NOW_MS + 1_000)
    append(log, batch(2), now_ms=NOW_MS + 1_001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_S24_a_first_batch_from_the_future_does_not_decide_when_to_roll(disk):
    log = new_log(disk, LogConfig(segment_ms=1_000))
    append(log, batch(0, times=[2**62]))
    flush(log)
    log = reopened(disk, log)
    append(log, batch(1), now_ms=NOW_MS)
    append(log, batch(2), now_ms=NOW_MS + 1_001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_rolls_before_its_offsets_exceed_the_index(disk):
    log = new_log(disk, LogConfig())
    append(log, batch(0))
    append(log, batch(2**31 - 2))
    append(log, batch(2**31 - 1))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 - 1]


def test_a_roll_that_fails_leaves_the_log_as_it_was(disk):
    log = new_log(disk)
    written = fill(log, 3)
    disk.fail("create")
    with pytest.raises(StorageFault):
        fill(log, 1, value=b"x" * 250)
    assert (log.log_end_offset, len(log.segments)) == (3, 1)
    fill(log, 1, value=b"x" * 250)
    assert drain(log).startswith(b"".join(written))


# --- checkpoints and reopening --------------------------------------------------------------------


def test_after_a_checkpoint_reopening_reads_only_small_files(disk):
    log = new_log(disk)
    for number in range(20):
        append(log, batch(number, producer=(9, 0, number)))
    checkpoint(log)
    assert log.flushed_offset == 20
    again = reopened(disk, log)
    original = again.producers.check(header(0, producer=(9, 0, 17)))
    assert original is not None
    assert original.base_offset == 17
    assert drain(again) == drain(log)
    assert again.epochs.entries() == log.epochs.entries()


def test_an_unchanged_log_needs_no_checkpoint(disk):
    log = new_log(disk)
    fill(log, 4)
    checkpoint(log)
    assert log.progress.take_checkpoint() is None
    assert reopened(disk, log).progress.take_checkpoint() is None


def test_a_checkpoint_after_a_flush_still_stores_snapshot_and_index(disk):
    log = new_log(disk)
    fill(log, 3)
    flush(log)
    checkpoint(log)
    assert names(disk, ".snapshot") == [f"{3:020d}.snapshot"]
    assert names(disk, ".index") == [f"{0:020d}.index"]


def test_indexes_of_closed_segments_are_stored_by_the_next_flush(disk):
    log = new_log(disk)
    fill(log, 3)
    flush(log)
    fill(log, 3)
    flush(log)
    assert f"{0:020d}.index" in names(disk)


def test_R10_a_log_without_its_indexes_reads_the_same(disk):
    log = new_log(disk)
    fill(log, 40)
    checkpoint(log)
    expected = drain(log)
    for name in names(disk, "index"):
        disk.unlink(f"{PATH}/{name}")
    again = reopened(disk, log)
    assert drain(again) == expected
    assert again.offset_by_time(NOW_MS, end_offset=40) == log.offset_by_time(NOW_MS, end_offset=40)


def test_a_reopened_log_continues_where_it_ended(disk):
    log = new_log(disk)
    fill(log, 7)
    checkpoint(log)
    again = reopened(disk, log)
    fill(again, 7)
    assert offsets_of(drain(again)) == list(range(14))


# --- cutting --------------------------------------------------------------------------------------


def test_I13_the_owner_is_called_before_a_cut_below_the_flushed_offset(
    disk,
):
    told: list[tuple[int, int]] = []

    def before_cut(offset: int) -> Callable[[], None]:
        told.append((offset, log.log_end_offset))
        return lambda: None

    log = new_log(disk, before_cut=before_cut)
    fill(log, 10)
    flush(log)
    fill(log, 5)
    log.truncate_to(12)
    assert told == []
    log.truncate_to(6)
    log.restart_at(2)
    assert told == [(6, 12), (2, 6)]
    assert log.flushed_offset == 2


def test_a_truncated_log_is_the_same_after_reopening(disk):
    log = new_log(disk)
    append(log, batch(0, 4, epoch=1), batch(4, 4, epoch=2))
    fill(log, 0)
    for number in range(10):
        append(log, batch(8 + number, epoch=3, producer=(9, 0, number)))
    checkpoint(log)
    log.truncate_to(11)
    again = reopened(disk, log)
    assert again.epochs.entries() == ((1, 0), (2, 4), (3, 8))
    assert drain(again) == drain(log)
    assert [name for name in names(disk) if name.endswith((".deleted", ".tmp"))] == []


def test_I18_producers_are_rebuilt_from_a_snapshot_and_the_batches_after_it(
    disk,
):
    log = new_log(disk)
    for number in range(40):
        append(log, batch(number, producer=(9, 0, number)))
        if number % 7 == 0:
            flush(log)
    for cut_at in (33, 21, 4):
        log.truncate_to(cut_at)
        for number in range(max(0, cut_at - 5), cut_at):
            original = log.producers.check(header(0, producer=(9, 0, number)))
            assert original is not None, (cut_at, number)
            assert original.base_offset == number


def test_the_epoch_file_follows_a_cut_at_once(disk):
    log = new_log(disk)
    append(log, batch(0, epoch=1), batch(1, epoch=2))
    flush(log)
    log.truncate_to(1)
    stored = LeaderEpochs.decode(disk.read_file(f"{PATH}/leader-epochs"))
    assert stored.entries() == ((1, 0),)


# --- faults and bounds ----------------------------------------------------------------------------


def test_R12_a_full_disk_refuses_writes_but_not_reads(disk):
    log = new_log(disk)
    written = fill(log, 5)
    disk.set_capacity(log.size_bytes)
    with pytest.raises(DiskFull):
        fill(log, 1)
    assert drain(log) == b"".join(written)
    assert log.log_end_offset == 5
    disk.set_capacity(None)
    fill(log, 2)
    assert offsets_of(drain(log)) == list(range(7))


def test_many_logs_share_few_files(disk):
    files = FileCache(disk, files_max=4)
    logs = [
        FilePartitionLog.create(disk, files, f"/data/topic-{number}", SMALL) for number in range(20)
    ]
    for log in logs:
        fill(log, 5)
        flush(log)
    assert len(files) <= 4
    for log in logs:
        assert offsets_of(read(log, 0) + read(log, 4)) == [0, 1, 2, 3, 4]


def test_a_closed_log_holds_no_file(disk):
    files = FileCache(disk)
    log = FilePartitionLog.create(disk, files, PATH, SMALL)
    fill(log, 9)
    log.close()
    assert len(files) == 0
