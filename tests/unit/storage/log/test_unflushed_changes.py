"""A flush on a disk without room for the small files beside the batches."""

from __future__ import annotations

from tests.support.batches import append, batch
from tests.support.directories import ORDERS, SMALL, TOPIC_ID, flushed, log_of, opened
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
