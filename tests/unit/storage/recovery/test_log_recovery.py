"""Recovery of one log: what is kept, cut, reported and rebuilt."""

from __future__ import annotations

import pytest

from tests.support.batches import append, batch, drain, fill, header, read
from tests.support.directories import (
    ORDERS,
    ORDERS_PATH,
    SMALL,
    TOPIC_ID,
    flushed,
    log_of,
    opened,
)
from tidemill.core.errors import KafkaError
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.index import segment_index
from tidemill.storage.index.header_walk import walk_headers
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.recovery import segment_files
from tidemill.storage.recovery.recovery_report import PartitionReport
from tidemill.testing.sim.disk import SimDisk

SIZE = len(batch(0))
ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=2 * SIZE)


def promised(disk: SimDisk, batches: int, config: LogConfig = ONE_SEGMENT) -> LogDirectory:
    """A log whose first batches are below the recovery point."""
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, config), batches)
    flushed(directory)
    directory.write_checkpoint({ORDERS: batches})
    return directory


def report_of(directory: LogDirectory) -> PartitionReport:
    return directory.report.partitions.get(ORDERS, PartitionReport())


def segments(disk: SimDisk) -> list[str]:
    return [name for name in disk.list_names(ORDERS_PATH) if name.endswith(".log")]


def side_files(disk: SimDisk) -> dict[str, bytes]:
    names = [name for name in disk.list_names(ORDERS_PATH) if ".cut-" in name]
    return {name: disk.read_file(f"{ORDERS_PATH}/{name}") for name in names}


FIRST = f"{ORDERS_PATH}/{0:020d}.log"


def test_R11_only_what_follows_the_checkpoint_is_scanned(disk):
    directory = promised(disk, 20)
    fill(log_of(directory), 3)
    again = opened(disk.restart())
    assert again.report.scanned_bytes == 3 * SIZE
    assert log_of(again).log_end_offset == 23


def test_R11_the_log_is_cut_at_the_first_invalid_batch_and_the_bytes_are_kept(
    disk,
):
    directory = promised(disk, 5)
    tail = fill(log_of(directory), 1)
    junk = b"\x01junk" * 30
    disk.overwrite(FIRST, 6 * SIZE, junk)
    disk = disk.restart()
    again = opened(disk)
    assert drain(log_of(again), 5) == tail[0]
    cut = report_of(again).cut
    assert cut is not None
    assert (cut.offset, cut.size_bytes) == (6, len(junk))
    assert side_files(disk) == {f"{0:020d}.log.cut-6": junk}
    assert again.report.cut_bytes == len(junk)
    assert not report_of(again).is_suspect


def test_a_tail_of_zeros_is_cut_without_keeping_it(disk):
    promised(disk, 5)
    disk.overwrite(FIRST, 5 * SIZE, bytes(5000))
    disk = disk.restart()
    again = opened(disk)
    assert log_of(again).log_end_offset == 5
    assert side_files(disk) == {}
    assert disk.size(FIRST) == 5 * SIZE


def test_R11_a_valid_batch_after_the_hole_makes_the_partition_suspect(
    disk,
):
    directory = promised(disk, 5)
    fill(log_of(directory), 3)
    disk.flip_bit(FIRST, 6 * SIZE + SIZE - 2)
    again = opened(disk.restart())
    assert log_of(again).log_end_offset == 6
    assert again.report.suspects == [ORDERS]


def test_R11_damage_below_the_checkpoint_is_never_cut(disk):
    promised(disk, 12)
    disk.flip_bit(FIRST, 3 * SIZE + SIZE - 2)
    disk = disk.restart()
    again = opened(disk)
    assert log_of(again).log_end_offset == 12
    assert disk.size(FIRST) == 12 * SIZE
    assert side_files(disk) == {}


def test_R11_a_destroyed_header_below_the_checkpoint_is_reported_and_the_rest_is_served(
    disk,
):
    directory = promised(disk, 12)
    fill(log_of(directory), 2)
    disk.overwrite(FIRST, 11 * SIZE, bytes(61))
    again = opened(disk.restart())
    report = report_of(again)
    assert [(damage.position, damage.next_offset) for damage in report.damage] == [(11 * SIZE, 11)]
    assert report.is_suspect
    assert report.cut is None
    log = log_of(again)
    assert log.log_end_offset == 14
    assert read(log, 0, end_offset=11, max_bytes=SIZE) == batch(0)


def test_I17_reads_of_damaged_data_fail_loudly():
    disk = SimDisk(is_resident=False)
    promised(disk, 12)
    disk.flip_bit(FIRST, 3 * SIZE + SIZE - 2)
    disk = disk.restart()
    log = log_of(opened(disk))
    found = log.read(3, max_bytes=10, end_offset=12)
    assert found.load is not None
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        found.load()


def test_a_log_with_damage_in_its_last_segment_can_be_appended_to(disk):
    promised(disk, 12)
    disk.overwrite(FIRST, 11 * SIZE, bytes(61))
    again = opened(disk.restart())
    added = fill(log_of(again), 2)
    assert drain(log_of(again), 12) == b"".join(added)


def test_flushed_bytes_that_are_gone_leave_a_gap_and_no_offset_is_used_twice(
    disk,
):
    promised(disk, 12)
    disk.open(FIRST).truncate(4 * SIZE)
    again = opened(disk.restart())
    assert again.report.suspects == [ORDERS]
    assert log_of(again).log_end_offset == 12


def test_lost_segments_leave_a_gap_and_no_offset_is_used_twice(disk):
    promised(disk, 12)
    disk.unlink(FIRST)
    again = opened(disk.restart())
    assert again.report.suspects == [ORDERS]
    assert (log_of(again).log_start_offset, log_of(again).log_end_offset) == (0, 12)


def test_segments_after_a_gap_do_not_count(disk):
    directory = promised(disk, 1, SMALL)
    fill(log_of(directory), 15)
    names = segments(disk)
    assert len(names) > 3
    disk.unlink(f"{ORDERS_PATH}/{names[2]}")
    disk = disk.restart()
    again = opened(disk)
    assert log_of(again).log_end_offset == int(names[2][:20])
    assert segments(disk) == names[:2]
    assert len(side_files(disk)) == len(names) - 3
    assert again.report.suspects == [ORDERS]


def test_the_recovered_tail_is_durable_before_it_counts_as_flushed(disk):
    directory = promised(disk, 2)
    written = fill(log_of(directory), 3)
    disk = disk.restart()
    assert log_of(opened(disk)).flushed_offset == 5
    for seed in range(10):
        log = log_of(opened(disk.crash_image(SeededRng(seed))))
        assert drain(log, 2) == b"".join(written)


def test_recovering_twice_gives_the_same_log(disk):
    directory = promised(disk, 5, SMALL)
    fill(log_of(directory), 8)
    image = disk.crash(SeededRng(12))
    once = drain(log_of(opened(image)))
    assert drain(log_of(opened(image.restart()))) == once


@pytest.mark.parametrize("spoil", ["unlink", "flip", "old"])
def test_leader_epochs_that_are_lost_damaged_or_old_are_rebuilt(disk, spoil):
    directory = promised(disk, 2)
    path = f"{ORDERS_PATH}/leader-epochs"
    old = disk.read_file(path)
    append(log_of(directory), batch(2, epoch=4), batch(3, epoch=7))
    flushed(directory)
    directory.write_checkpoint()
    if spoil == "unlink":
        disk.unlink(path)
    elif spoil == "flip":
        disk.flip_bit(path, 20)
    else:
        disk.write_file_atomically(path, old)
    again = opened(disk.restart())
    assert log_of(again).epochs.entries() == ((0, 0), (4, 2), (7, 3))
    assert report_of(again).rebuilt == ["leader-epochs"]


def test_epochs_of_the_unflushed_tail_come_from_its_batches(disk):
    directory = promised(disk, 2)
    append(log_of(directory), batch(2, epoch=4))
    disk = disk.restart()
    assert log_of(opened(disk)).epochs.entries() == ((0, 0), (4, 2))
    assert log_of(opened(disk.crash(SeededRng(1)))).epochs.entries() == ((0, 0), (4, 2))


def with_producers(disk: SimDisk) -> LogDirectory:
    """Producer 5 wrote before the checkpoint, producer 6 after it."""
    directory = promised(disk, 2, SMALL)
    log = log_of(directory)
    append(log, batch(2, producer=(5, 0, 0)))
    stored(directory)
    directory.write_checkpoint()
    append(log, batch(3, producer=(6, 0, 0)))
    flushed(directory)
    return directory


def stored(directory: LogDirectory) -> None:
    flush_round = directory.collect_checkpoint(directory.changed_logs(), 10)
    assert flush_round is not None
    flush_round.sync()
    flush_round.apply()


def unlink_snapshots(disk: SimDisk) -> None:
    for name in disk.list_names(ORDERS_PATH):
        if name.endswith(".snapshot"):
            disk.unlink(f"{ORDERS_PATH}/{name}")


def spoil_snapshots(disk: SimDisk) -> None:
    for name in disk.list_names(ORDERS_PATH):
        if name.endswith(".snapshot"):
            disk.flip_bit(f"{ORDERS_PATH}/{name}", 20)


@pytest.mark.parametrize("spoil", [lambda _disk: None, unlink_snapshots, spoil_snapshots])
def test_I18_producers_are_recovered_with_and_without_their_snapshots(disk, spoil):
    with_producers(disk)
    spoil(disk)
    producers = log_of(opened(disk.restart())).producers
    for producer_id, offset in ((5, 2), (6, 3)):
        repeated = producers.check(header(0, producer=(producer_id, 0, 0)))
        assert repeated is not None
        assert repeated.base_offset == offset


def test_I18_a_snapshot_from_past_the_end_is_removed_durably(disk):
    directory = with_producers(disk)
    stale = log_of(directory).producers.encode(50)
    disk.write_file_atomically(f"{ORDERS_PATH}/{50:020d}.snapshot", stale)
    disk = disk.restart()
    opened(disk)
    assert not disk.crash(SeededRng(1)).exists(f"{ORDERS_PATH}/{50:020d}.snapshot")


@pytest.mark.parametrize("torn_bytes", [0, SIZE // 2])
def test_the_first_append_after_a_recovery_does_not_walk_the_segment(disk, monkeypatch, torn_bytes):
    monkeypatch.setattr(segment_files, "UNINDEXED_BYTES_MAX", 10 * SIZE)
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, ONE_SEGMENT)
    fill(log, 400)
    disk.open(FIRST).truncate(400 * SIZE - torn_bytes)
    disk = disk.restart()
    log = log_of(opened(disk))
    log.set_config(ONE_SEGMENT)
    end, walked = log.log_end_offset, []

    def walk(*arguments):
        for found in walk_headers(*arguments):
            walked.append(found)
            yield found

    monkeypatch.setattr(segment_index, "walk_headers", walk)
    fill(log, 1)
    assert len(log.segments) == 1
    assert len(walked) <= 3
    assert len(log.segments.active.load_index().offsets) > 150
    assert len(drain(log)) == (end + 1) * SIZE


def test_a_short_segment_is_not_indexed_by_its_recovery(disk):
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, ONE_SEGMENT), 20)
    disk = disk.restart()
    opened(disk)
    assert not disk.exists(FIRST.replace(".log", ".index"))


def test_R12_a_full_disk_does_not_keep_a_log_from_being_recovered(disk, monkeypatch):
    monkeypatch.setattr(segment_files, "UNINDEXED_BYTES_MAX", 0)
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, ONE_SEGMENT), 20)
    flushed(directory)
    disk.set_capacity(0)
    disk = disk.restart()
    assert log_of(opened(disk)).log_end_offset == 20


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_lost_index_costs_only_time(disk, suffix):
    directory = promised(disk, 12)
    stored(directory)
    directory.write_checkpoint()
    fill(log_of(directory), 2)
    disk.unlink(f"{ORDERS_PATH}/{0:020d}{suffix}")
    again = opened(disk.restart())
    assert again.report.scanned_bytes == 2 * SIZE
    assert len(drain(log_of(again))) == 14 * SIZE


def test_an_index_that_points_elsewhere_is_not_trusted(disk):
    directory = promised(disk, 12)
    stored(directory)
    directory.write_checkpoint()
    path = f"{ORDERS_PATH}/{0:020d}.index"
    index = disk.read_file(path)
    directory.delete_log(ORDERS)
    log = directory.create_log(ORDERS, TOPIC_ID, ONE_SEGMENT)
    for offset in range(12):
        append(log, batch(offset, value=b"longer value"))
    flushed(directory)
    directory.write_checkpoint()
    disk.write_file_atomically(path, index)
    again = opened(disk.restart())
    assert again.report.suspects == []
    assert log_of(again).log_end_offset == 12


def test_without_any_checkpoint_everything_is_scanned_and_kept(disk):
    promised(disk, 12)
    for name in ("checkpoint.0", "checkpoint.1"):
        disk.unlink(f"/data/{name}")
    again = opened(disk.restart())
    assert again.report.scanned_bytes == 12 * SIZE
    assert log_of(again).log_end_offset == 12


def test_a_truncated_log_is_not_reported_as_damaged(disk):
    directory = promised(disk, 12)
    log_of(directory).truncate_to(5)
    append(log_of(directory), batch(5, epoch=3))
    again = opened(disk.restart())
    assert again.report.suspects == []
    assert log_of(again).log_end_offset == 6
    assert log_of(again).epochs.entries() == ((0, 0), (3, 5))


def test_half_written_and_deleted_files_are_removed(disk):
    promised(disk, 2)
    for name in ("x.tmp", f"{0:020d}.log.deleted"):
        disk.open(f"{ORDERS_PATH}/{name}", create=True)
    disk = disk.restart()
    opened(disk)
    assert not [name for name in disk.list_names(ORDERS_PATH) if name.endswith((".tmp", "ted"))]
