"""What a flush of the file log covers, and what it syncs."""

from __future__ import annotations

import pytest

from tests.support.batches import (
    append,
    batch,
    fill,
    flush,
)
from tests.unit.storage.log.small_log import (
    PATH,
    names,
    new_log,
    recorded,
)
from tidemill.core.errors import StorageFault
from tidemill.core.rng import SeededRng
from tidemill.storage.files.log_file_names import LOG_SUFFIX
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.state.leader_epochs import LeaderEpochs


def test_a_flush_covers_exactly_what_was_written_before_it(disk):
    log = new_log(disk)
    fill(log, 3)
    point = log.take_flush_point()
    assert point is not None
    fill(log, 2)
    point.sync()
    assert log.flushed_offset == 0
    log.flushed(point)
    assert (log.flushed_offset, log.log_end_offset) == (3, 5)
    flush(log)
    assert log.flushed_offset == 5


def test_a_flush_syncs_every_dirty_file_then_the_new_names(disk):
    log = new_log(disk)
    fill(log, 8)
    bases = [segment.base_offset for segment in log.segments]
    point = log.take_flush_point()
    assert point is not None
    calls = recorded(disk)
    point.sync()
    syncs = [call for call in calls if call[0].startswith("sync")]
    files = [("sync", f"{base:020d}.log") for base in bases]
    assert syncs[: len(bases) + 2] == [*files, ("sync_directory", ""), ("sync_directory", "data")]


def test_a_directory_without_new_names_is_not_synced(disk):
    log = new_log(disk)
    fill(log, 1)
    flush(log)
    fill(log, 1)
    point = log.take_flush_point()
    assert point is not None
    calls = recorded(disk)
    point.sync()
    assert calls == [("sync", f"{0:020d}.log")]


def test_a_name_created_during_a_flush_is_synced_by_the_next(disk):
    log = new_log(disk)
    fill(log, 3)
    point = log.take_flush_point()
    assert point is not None
    fill(log, 3)
    assert len(log.segments) == 2
    point.sync()
    log.flushed(point)
    calls = recorded(disk)
    flush(log)
    assert ("sync_directory", "") in calls


@pytest.mark.parametrize("seed", range(20))
def test_flushed_batches_survive_a_power_loss(disk, seed):
    log = new_log(disk)
    written = b"".join(fill(log, 10))
    flush(log)
    fill(log, 5)
    after = disk.crash(SeededRng(seed))
    found = b"".join(
        after.read_file(f"{PATH}/{name}")
        for name in after.list_names(PATH)
        if name.endswith(LOG_SUFFIX)
    )
    assert found.startswith(written)
    assert LeaderEpochs.decode(after.read_file(f"{PATH}/leader-epochs")).entries() == ((0, 0),)


def test_a_failed_sync_moves_nothing(disk):
    log = new_log(disk)
    fill(log, 3)
    point = log.take_flush_point()
    assert point is not None
    disk.fail("sync", LOG_SUFFIX)
    with pytest.raises(StorageFault):
        point.sync()
    assert log.flushed_offset == 0


def test_a_flush_that_a_truncation_overtook_proves_nothing(disk):
    log = new_log(disk)
    fill(log, 5)
    point = log.take_flush_point()
    assert point is not None
    log.truncate_to(2)
    fill(log, 5)
    point.sync()
    log.flushed(point)
    assert log.flushed_offset == 0
    flush(log)
    assert log.flushed_offset == 7


def test_new_leader_epochs_are_stored_with_their_batches(disk):
    log = new_log(disk)
    append(log, batch(0, epoch=3))
    assert "leader-epochs" not in names(disk)
    flush(log)
    append(log, batch(1, epoch=5))
    flush(log)
    stored = LeaderEpochs.decode(disk.read_file(f"{PATH}/leader-epochs"))
    assert stored.entries() == ((3, 0), (5, 1))


def test_an_epoch_without_batches_costs_no_flush(disk):
    log = new_log(disk)
    log.epochs.assign(1, 0)
    assert log.take_flush_point() is None


def test_a_full_disk_does_not_fail_a_flush_for_an_index(disk):
    log = new_log(disk, LogConfig(index_interval_bytes=100))
    fill(log, 30)
    point = log.progress.take_checkpoint()
    assert point is not None
    disk.set_capacity(log.size_bytes + 300)
    point.sync()
    log.flushed(point)
    assert log.flushed_offset == 30
