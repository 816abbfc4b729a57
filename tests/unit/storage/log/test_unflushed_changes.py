"""A flush on a disk without room for the small files beside the batches."""

from __future__ import annotations

from dataclasses import replace

from tests.support.batches import append, batch, fill
from tests.support.directories import (
    ORDERS,
    ORDERS_PATH,
    SMALL,
    TOPIC_ID,
    flushed,
    log_of,
    opened,
    stored,
)
from tidemill.storage.index.offset_index import OffsetIndex
from tidemill.testing.sim.disk import SimDisk


def test_R12_a_disk_without_room_for_epochs_and_snapshots_still_flushes_batches():
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    append(log, batch(0, 10, epoch=3))
    disk.set_capacity(0)
    flushed(directory)
    assert log.flushed_offset == log.log_end_offset
    assert directory.failure is None
    disk.set_capacity(None)
    append(log, batch(10, epoch=3))
    flushed(directory)
    directory.close()
    assert log_of(opened(disk)).epochs.latest == log.epochs.latest


def test_R12_index_entries_that_found_no_room_are_written_by_a_later_flush():
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, replace(SMALL, segment_bytes=1 << 20))
    fill(log, 10)
    disk.set_capacity(0)
    stored(directory)
    disk.set_capacity(None)
    fill(log, 10)
    stored(directory)
    path = f"{ORDERS_PATH}/{0:020d}.index"
    index, _ = OffsetIndex.decode(disk.read_file(path), base_offset=0, name=path)
    assert list(index.offsets) == list(log.segments.active.load_index().offsets.offsets)


def test_I18_a_snapshot_that_is_out_of_date_goes_although_the_index_finds_no_room():
    """Nobody would remove it when the log is cut below it, and it would describe lost batches."""
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, replace(SMALL, segment_bytes=1 << 20))
    for number in range(3):
        append(log, batch(number, producer=(5, 0, number)))
        stored(directory)
    fill(log, 10)
    disk.on_call = lambda disk, call, path: (
        disk.set_capacity(0) if call == "pwrite" and path.endswith(".index") else None
    )
    stored(directory)
    names = [name for name in disk.list_names(ORDERS_PATH) if name.endswith(".snapshot")]
    assert names == [f"{3:020d}.snapshot", f"{13:020d}.snapshot"]
    assert log.flushed_offset == 13
