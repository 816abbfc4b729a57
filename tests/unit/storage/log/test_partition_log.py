"""Behaviour of the file log alone; tests/contract/test_partition_log.py covers both logs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.batches import (
    NOW_MS,
    append,
    batch,
    data_of,
    drain,
    fill,
    flush,
    header,
    offsets_of,
    read,
)
from tidemill.core.errors import DiskFull, KafkaError, StorageFault
from tidemill.core.rng import SeededRng
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, try_parse_offset
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog, LoadedState
from tidemill.storage.log.segment import Segment
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.testing.sim.disk import SimDisk, SimulatedCrash

PATH = "/data/topic-0"
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)
BATCHES_PER_SEGMENT = 300 // len(batch(0))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/data")
    disk.sync_directory("/")
    return disk


def new_log(
    disk: SimDisk, config: LogConfig = SMALL, *, before_cut: Callable[[int], None] | None = None
) -> FilePartitionLog:
    return FilePartitionLog.create(disk, FileCache(disk), PATH, config, before_cut=before_cut)


def reopened(disk: SimDisk, log: FilePartitionLog) -> FilePartitionLog:
    """The log as the next process finds it after a clean shutdown."""
    files = FileCache(disk)
    names = disk.list_names(PATH)
    bases = [try_parse_offset(name, LOG_SUFFIX) for name in names]
    bases = sorted(base for base in bases if base is not None)
    ends = [*bases[1:], log.log_end_offset]
    segments = [
        Segment(
            disk,
            files,
            PATH,
            base_offset=base,
            size_bytes=disk.size(f"{PATH}/{base:020d}.log"),
            next_offset=end,
            index_interval_bytes=100,
            is_closed=base != bases[-1],
        )
        for base, end in zip(bases, ends, strict=True)
    ]
    stored = [try_parse_offset(name, SNAPSHOT_SUFFIX) for name in names]
    snapshot_offsets = [offset for offset in stored if offset is not None]
    snapshots = ProducerSnapshots(disk, PATH, snapshot_offsets)
    found = snapshots.try_load_newest(log.log_end_offset)
    state = LoadedState(
        segments=segments,
        log_start_offset=log.log_start_offset,
        flushed_offset=log.log_end_offset,
        epochs=LeaderEpochs.decode(disk.read_file(f"{PATH}/leader-epochs")),
        producers=found[0] if found is not None else ProducerStates(),
        snapshot_offsets=snapshot_offsets,
    )
    return FilePartitionLog(disk, files, PATH, log.config, state)


def checkpoint(log: FilePartitionLog) -> None:
    point = log.progress.take_checkpoint()
    assert point is not None
    point.sync()
    log.flushed(point)


def recorded(disk: SimDisk) -> list[tuple[str, str]]:
    """The changing calls from now on: name and path within the log."""
    calls: list[tuple[str, str]] = []
    disk.on_call = lambda _, call, path: calls.append((call, path.removeprefix(PATH).lstrip("/")))
    return calls


def names(disk: SimDisk, suffix: str = "") -> list[str]:
    return [name for name in disk.list_names(PATH) if name.endswith(suffix)]


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


# --- flushing -------------------------------------------------------------------------------------


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


# --- retention ------------------------------------------------------------------------------------


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
