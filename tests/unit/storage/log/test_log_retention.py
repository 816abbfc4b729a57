"""How the file log drops its oldest segments."""

from __future__ import annotations

import pytest

from tests.support.batches import (
    NOW_MS,
    append,
    batch,
    data_of,
    drain,
    fill,
    flush,
)
from tests.unit.storage.log.small_log import (
    BATCHES_PER_SEGMENT,
    PATH,
    names,
    new_log,
    recorded,
    reopened,
)
from tidemill.core.errors import KafkaError, StorageFault
from tidemill.core.rng import SeededRng
from tidemill.storage.files.log_file_names import LOG_SUFFIX, try_parse_offset
from tidemill.storage.log.interface import LogConfig
from tidemill.testing.sim.disk import SimulatedCrash


def test_a_dropped_segment_is_renamed_first_and_unlinked_later(disk):
    log = new_log(disk, LogConfig(segment_bytes=300, retention_bytes=300, delete_delay_ms=500))
    fill(log, 12)
    flush(log)
    calls = recorded(disk)
    dropped = log.apply_retention(now_ms=NOW_MS, high_watermark=12)
    assert [call for call, _ in calls].count("rename") == dropped
    assert calls[-1] == ("sync_directory", "")
    assert len(names(disk, ".deleted")) == dropped
    log.apply_retention(now_ms=NOW_MS + 499, high_watermark=12)
    assert len(names(disk, ".deleted")) == dropped
    log.apply_retention(now_ms=NOW_MS + 500, high_watermark=12)
    assert names(disk, ".deleted") == []


def test_a_drop_that_fails_midway_is_taken_up_again(disk):
    log = new_log(disk, LogConfig(segment_bytes=300, retention_bytes=200, delete_delay_ms=0))
    fill(log, 12)
    flush(log)
    disk.fail("rename", f"{BATCHES_PER_SEGMENT:020d}")
    with pytest.raises(StorageFault):
        log.apply_retention(now_ms=NOW_MS, high_watermark=12)
    assert log.log_start_offset == BATCHES_PER_SEGMENT
    assert log.size_bytes == len(drain(log))
    disk.fail("unlink", ".deleted")
    with pytest.raises(StorageFault):
        log.apply_retention(now_ms=NOW_MS, high_watermark=12)
    log.apply_retention(now_ms=NOW_MS, high_watermark=12)
    log.apply_retention(now_ms=NOW_MS, high_watermark=12)
    assert names(disk, ".deleted") == []
    assert log.log_start_offset == 2 * BATCHES_PER_SEGMENT
    assert log.size_bytes == len(drain(log))


@pytest.mark.parametrize("is_resident", [True, False])
def test_readers_find_segments_until_their_drop_has_ended(disk, is_resident):
    """Also one whose read waits for a thread, and one whose file was closed meanwhile."""
    disk.is_resident = is_resident
    log = new_log(disk, LogConfig(segment_bytes=300, retention_bytes=200))
    written = b"".join(fill(log, 12))
    flush(log)
    started = log.read(0, max_bytes=100, end_offset=12)
    drop = log.front.plan_drop({}, now_ms=NOW_MS, high_watermark=12, segments_max=10)
    assert drop is not None
    drop.run()
    assert log.log_start_offset == 0
    assert drain(log) == written
    assert data_of(started) == written[: started.size_bytes]
    assert log.front.end_drop(drop, NOW_MS) == 2
    assert drain(log) == written[-log.size_bytes :]
    with pytest.raises(KafkaError):
        log.read(0, max_bytes=100, end_offset=12)


def test_a_drop_is_bounded(disk):
    log = new_log(disk, LogConfig(segment_bytes=300, retention_bytes=0))
    fill(log, 30)
    flush(log)
    drop = log.front.plan_drop({}, now_ms=NOW_MS, high_watermark=30, segments_max=2)
    assert drop is not None
    calls = recorded(disk)
    drop.run()
    assert [call for call, _ in calls].count("sync_directory") == 2


def test_a_flush_during_a_drop_writes_no_index_of_a_segment_that_leaves(disk):
    log = new_log(disk, LogConfig(segment_bytes=300, index_interval_bytes=100, retention_bytes=0))
    fill(log, 3)
    flush(log)
    drop = log.front.plan_drop({}, now_ms=NOW_MS, high_watermark=3, segments_max=10)
    assert drop is not None
    drop.run()
    fill(log, 1)
    flush(log)
    log.front.end_drop(drop, NOW_MS)
    assert [name for name in disk.list_names(PATH) if name.startswith(f"{0:020d}")] == [
        f"{0:020d}.log.deleted"
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_power_loss_during_retention_leaves_no_hole(disk, seed):
    log = new_log(disk, LogConfig(segment_bytes=300, retention_bytes=0))
    fill(log, 30)
    flush(log)
    disk.stop_at_call(disk.calls + 3 + seed)
    with pytest.raises(SimulatedCrash):
        log.apply_retention(now_ms=NOW_MS, high_watermark=30)
    after = disk.crash(SeededRng(seed))
    bases = [try_parse_offset(name, LOG_SUFFIX) for name in after.list_names(PATH)]
    left = sorted(base for base in bases if base is not None)
    old = [base for base in left if base < 30]
    assert old == list(range(left[0], 30, BATCHES_PER_SEGMENT))


def test_retention_drops_segments_below_the_start_offset(disk):
    log = new_log(disk)
    fill(log, 12)
    log.advance_start(9)
    assert log.apply_retention(now_ms=NOW_MS, high_watermark=12) == 2
    assert log.log_start_offset == 9
    assert log.segments.oldest.base_offset == 2 * BATCHES_PER_SEGMENT


def test_I17_a_damaged_segment_is_not_dropped_before_its_time(disk):
    log = new_log(disk, LogConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=1_000))
    for offset in range(6):
        append(log, batch(offset, times=[NOW_MS + offset]))
    flush(log)
    disk.overwrite(f"{PATH}/{0:020d}.log", 80, bytes(50))
    for name in names(disk, "index"):
        disk.unlink(f"{PATH}/{name}")
    log = reopened(disk, log)
    assert log.apply_retention(now_ms=NOW_MS + 900, high_watermark=6) == 0
    assert log.apply_retention(now_ms=NOW_MS + 1_500, high_watermark=6) == 0
    assert log.apply_retention(now_ms=NOW_MS + 1_901, high_watermark=6) > 0
