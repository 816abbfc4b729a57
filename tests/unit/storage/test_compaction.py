from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.unit.storage.batches import NOW_MS, drain, flush, read
from tests.unit.storage.compacting import CONFIG, PATH, clean, make_log, pairs, put, records, seal
from tidemill.core.errors import KafkaError, StorageFault
from tidemill.storage.compaction import Compaction, LogChanged
from tidemill.storage.file_cache import FileCache
from tidemill.storage.partition_log import FilePartitionLog
from tidemill.storage.recovery import Remembered, recover
from tidemill.testing.sim_disk import SimDisk
from tidemill.wire import compression
from tidemill.wire.batch import iter_headers, read_header
from tidemill.wire.records import Record


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> FilePartitionLog:
    return make_log(disk)


def headers_of(log: FilePartitionLog) -> list[tuple[int, int, int]]:
    """(base offset, last offset, record count) of every batch."""
    return [(h.base_offset, h.last_offset, h.record_count) for _, h in iter_headers(drain(log))]


def reopened(disk: SimDisk, log: FilePartitionLog, recovery_point: int = 0) -> FilePartitionLog:
    """The log as a start after an unclean end finds it."""
    files = FileCache(disk)
    state, report = recover(
        disk,
        files,
        PATH,
        Remembered(recovery_point=recovery_point),
        index_interval_bytes=200,
        now_ms=NOW_MS,
    )
    assert report.cut is None
    assert not report.damage
    return FilePartitionLog(disk, files, PATH, log.config, state)


def test_I35_the_newest_record_of_each_key_stays_at_its_offset(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for version in (b"1", b"2", b"3"):
        put(log, (b"a", version), (b"b", version))
        put(log, (b"c", version))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(6, b"a", b"3"), (7, b"b", b"3"), (8, b"c", b"3")]


def test_I35_timestamps_and_headers_stay(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert records(log) == [
        Record(b"1", b"b", offset=1, timestamp=NOW_MS + 1, headers=[("h", b"1")]),
        Record(b"2", b"a", offset=2, timestamp=NOW_MS + 2, headers=[("h", b"2")]),
    ]


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
def test_I35_a_compressed_batch_is_rewritten_with_its_codec(
    disk: SimDisk, log: FilePartitionLog, codec: int
) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), codec=codec)
    put(log, (b"a", b"2"), codec=codec)
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", b"2")]
    assert [header.codec for _, header in iter_headers(drain(log))][:2] == [codec, codec]


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_a_batch_that_loses_nothing_keeps_its_bytes(
    disk: SimDisk, log: FilePartitionLog, codec: int
) -> None:
    put(log, (b"a", b"1"))
    whole = put(log, (b"b", b"1"), (b"c", b"1"), codec=codec)
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert read(log, 1, max_bytes=1) == whole


def test_I35_the_active_segment_is_left_alone(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    flush(log)
    assert clean(disk, log) is None
    assert pairs(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_I35_nothing_at_or_above_the_given_offset_replaces_anything(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    put(log, (b"a", b"old"), (b"x", b"y" * 600))
    put(log, (b"a", b"new"))
    seal(log)
    clean(disk, log, end_offset=2)
    assert pairs(log)[0] == (0, b"a", b"old")


def test_what_is_not_flushed_is_not_cleaned(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"a", b"1"), (b"x", b"y" * 600))
    put(log, (b"a", b"2"), (b"x", b"y" * 600))
    put(log, (b"z", b"1"))
    assert clean(disk, log) is None


def test_a_record_without_a_key_stays(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (None, b"1"), (None, b"2"), (b"a", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(0, None, b"1"), (1, None, b"2"), (3, b"a", b"2")]


def test_an_empty_key_is_a_key(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"", b"1"), (b"", b"2"))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(1, b"", b"2")]


# --- tombstones -----------------------------------------------------------------------------------


def test_I35_a_tombstone_removes_its_key_and_stays_itself(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", None)]


def test_I35_a_tombstone_stays_until_its_horizon_and_goes_then(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"1"))
    seal(log)
    clean(disk, log, now_ms=NOW_MS)
    for now_ms, stays in ((NOW_MS + 999, True), (NOW_MS + 1_000, False)):
        seal(log)
        clean(disk, log, now_ms=now_ms)
        assert ((1, b"a", None) in pairs(log)) == stays
    assert pairs(log) == [(2, b"b", b"1")]


def test_the_delete_horizon_stands_in_the_header_and_timestamps_stay(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    put(log, (b"a", None), (b"b", b"1"))
    seal(log)
    clean(disk, log, now_ms=NOW_MS + 7)
    header = next(header for _, header in iter_headers(drain(log)))
    assert header.delete_horizon_ms == NOW_MS + 7 + 1_000
    assert header.max_timestamp == NOW_MS + 1
    assert [record.timestamp for record in records(log)] == [NOW_MS, NOW_MS + 1]


def test_a_later_cleaning_leaves_the_delete_horizon_as_it_is(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    put(log, (b"a", None))
    seal(log)
    clean(disk, log, now_ms=NOW_MS)
    seal(log)
    clean(disk, log, now_ms=NOW_MS + 500)
    header = next(header for _, header in iter_headers(drain(log)))
    assert header.delete_horizon_ms == NOW_MS + 1_000


def test_the_longest_possible_retention_of_tombstones_is_for_ever(disk: SimDisk) -> None:
    log = make_log(disk, replace(CONFIG, delete_retention_ms=2**63 - 1))
    put(log, (b"a", None))
    seal(log)
    clean(disk, log)
    seal(log)
    clean(disk, log, now_ms=2**62)
    assert pairs(log) == [(0, b"a", None)]
    assert records(log)[0].timestamp == NOW_MS


def test_a_key_that_comes_back_replaces_its_tombstone(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"a", None))
    seal(log)
    clean(disk, log)
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert [pair[1:] for pair in pairs(log)] == [(b"a", b"2")]


# --- what stays although it is empty --------------------------------------------------------------


def test_I18_a_retry_is_recognised_after_compaction_without_a_snapshot(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    sent = [put(log, (b"a", b"%d" % n), producer=(7, 0, n)) for n in range(5)]
    put(log, (b"a", b"last"))
    seal(log)
    clean(disk, log)
    for name in disk.list_names(PATH):
        if name.endswith(".snapshot"):
            disk.unlink(f"{PATH}/{name}")
    found = reopened(disk, log)
    for offset, batch in enumerate(sent):
        duplicate = found.producers.check(read_header(batch))
        assert duplicate is not None
        assert duplicate.base_offset == offset
    assert pairs(found) == [(5, b"a", b"last")]


def test_batches_behind_a_producers_window_go(disk: SimDisk, log: FilePartitionLog) -> None:
    for number in range(9):
        put(log, (b"a", b"%d" % number), producer=(7, 0, number))
    seal(log)
    clean(disk, log)
    empty = [first for first, _, count in headers_of(log) if count == 0]
    assert set(range(4, 8)) <= set(empty)
    assert not {1, 2, 3} & set(empty)


def test_I11_the_epochs_can_be_told_from_the_batches_that_are_left(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for epoch in range(4):
        put(log, (b"a", b"1"), epoch=epoch)
        put(log, (b"a", b"2"), epoch=epoch)
    put(log, (b"filler", b"x" * 600), epoch=4)
    put(log, (b"filler", b"x" * 600), epoch=4)
    put(log, (b"filler", b"x"), epoch=4)
    flush(log)
    before = log.epochs.entries()
    clean(disk, log)
    disk.unlink(f"{PATH}/leader-epochs")
    assert reopened(disk, log).epochs.entries() == before


def test_every_segment_still_ends_where_the_next_one_begins(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for number in range(60):
        put(log, (b"k%d" % (number % 3), b"%d" % number))
    seal(log)
    clean(disk, log)
    found = reopened(disk, log)
    assert found.log_end_offset == log.log_end_offset
    assert pairs(found) == pairs(log)


# --- segments -------------------------------------------------------------------------------------


def test_segments_that_got_small_are_merged(disk: SimDisk, log: FilePartitionLog) -> None:
    for number in range(100):
        put(log, (b"a", b"%d" % number))
    seal(log)
    before = len(log.segments)
    clean(disk, log)
    seal(log)
    clean(disk, log)
    assert before > 10
    assert len(log.segments) <= 6
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)


def test_a_merged_segment_is_not_larger_than_segment_bytes(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for number in range(100):
        put(log, (b"k%d" % number, b"v"))
    seal(log)
    for _ in range(3):
        clean(disk, log)
        seal(log)
    big = [s.size_bytes for s in log.segments if s.base_offset < 100 and s.next_offset <= 100]
    assert max(big) <= CONFIG.segment_bytes


def test_a_segment_in_which_nothing_changes_keeps_its_file(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for number in range(8):
        put(log, (b"k%d" % number, b"v" * 30))
    seal(log)
    row = list(log.segments)
    clean(disk, log)
    assert next(iter(log.segments)) is row[0]


def test_reading_by_offset_finds_the_next_record_that_is_left(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for number in range(40):
        put(log, (b"k%d" % (number % 2), b"%d" % number))
    seal(log)
    clean(disk, log)
    for offset in range(38):
        first = next(header for _, header in iter_headers(read(log, offset)))
        assert first.last_offset >= offset
    assert pairs(log)[0][0] == 38


def test_time_lookup_skips_what_is_gone(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), producer=(1, 0, 0))
    put(log, (b"a", b"2"), producer=(1, 0, 2))
    put(log, (b"b", b"2"), producer=(1, 0, 3))
    put(log, (b"a", b"3"))
    seal(log)
    clean(disk, log)
    found = log.offset_by_time(NOW_MS, end_offset=log.log_end_offset)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, NOW_MS + 3)


def test_a_reader_with_a_view_of_an_old_segment_keeps_its_bytes(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for number in range(20):
        put(log, (b"a", b"%d" % number))
    seal(log)
    view = log.segments.oldest.file().try_resident_view(0, log.segments.oldest.size_bytes)
    assert view is not None
    before = bytes(view)
    clean(disk, log)
    assert bytes(view) == before


def test_a_read_that_was_begun_before_the_swap_ends_well_after_it(disk: SimDisk) -> None:
    disk.is_resident = False
    log = make_log(disk)
    written = b"".join(put(log, (b"a", b"%d" % number)) for number in range(4))
    seal(log)
    log.segments.oldest.drop_index()
    found = log.read(0, max_bytes=len(written), end_offset=4)
    assert found.load is not None
    clean(disk, log)
    assert b"".join(found.load()) == written


def test_the_index_of_a_cleaned_segment_is_stored(disk: SimDisk, log: FilePartitionLog) -> None:
    for number in range(30):
        put(log, (b"k%d" % (number // 2), b"v"))
    seal(log)
    clean(disk, log)
    names = disk.list_names(PATH)
    bases = [f"{segment.base_offset:020d}" for segment in log.segments if segment.is_closed]
    assert f"{bases[0]}.index" in names
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    segment = log.segments.oldest
    fresh = reopened(disk, log)
    assert fresh.segments.oldest.load_index().offsets.positions == (
        segment.load_index().offsets.positions
    )


# --- the clean point and bounds -------------------------------------------------------------------


def test_a_cleaning_goes_on_where_the_last_one_ended(disk: SimDisk, log: FilePartitionLog) -> None:
    put(log, (b"a", b"1"))
    seal(log)
    clean(disk, log)
    point = log.clean_point.offset
    assert point > 0
    assert clean(disk, log) is None
    assert reopened(disk, log).clean_point.offset == point


def test_a_lost_or_damaged_clean_point_costs_only_work(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    disk.flip_bit(f"{PATH}/clean-point", 20)
    found = reopened(disk, log)
    assert found.clean_point.offset == 0
    put(found, (b"a", b"3"))
    seal(found)
    clean(disk, found)
    assert [pair[1:] for pair in pairs(found)] == [(b"a", b"3")]


def test_a_cut_below_the_clean_point_takes_it_away(disk: SimDisk, log: FilePartitionLog) -> None:
    for number in range(30):
        put(log, (b"k%d" % number, b"v"))
    seal(log)
    clean(disk, log)
    log.truncate_to(5)
    assert log.clean_point.offset == 0
    assert "clean-point" not in disk.list_names(PATH)


def test_I35_keys_that_do_not_fit_the_buffer_are_cleaned_in_several_passes(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    for version in range(2):
        for number in range(120):
            put(log, (b"k%d" % number, b"%d" % version))
    seal(log)
    passes = 0
    while clean(disk, log, buffer_bytes=64 * 24) is not None:
        passes += 1
    assert passes > 4
    assert [pair[1:] for pair in pairs(log)] == [(b"k%d" % n, b"1") for n in range(120)]


def test_one_batch_with_more_keys_than_the_buffer_holds_is_cleaned_too(disk: SimDisk) -> None:
    log = make_log(disk)
    put(log, *((b"k%d" % (number % 150), b"%d" % (number // 150)) for number in range(300)))
    seal(log)
    passes = 0
    while clean(disk, log, buffer_bytes=64 * 24) is not None:
        passes += 1
    assert passes > 2
    assert [pair[1:] for pair in pairs(log)] == [(b"k%d" % n, b"1") for n in range(150)]


def test_a_lag_keeps_young_segments_from_being_cleaned(disk: SimDisk) -> None:
    log = make_log(disk, replace(CONFIG, min_compaction_lag_ms=100))
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    assert clean(disk, log, now_ms=NOW_MS + 50) is None
    assert clean(disk, log, now_ms=NOW_MS + 200) is not None
    assert pairs(log) == [(1, b"a", b"2")]


def test_a_log_that_is_not_dirty_enough_is_due_after_the_longest_lag(disk: SimDisk) -> None:
    log = make_log(disk, replace(CONFIG, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=100))
    put(log, (b"a", b"1"))
    seal(log)
    clean(disk, log)
    put(log, (b"a", b"2"))
    seal(log)
    assert clean(disk, log, now_ms=NOW_MS + 50) is None
    assert clean(disk, log, now_ms=NOW_MS + 200) is not None


def test_the_longest_lag_also_closes_the_active_segment(disk: SimDisk) -> None:
    log = make_log(disk, replace(CONFIG, max_compaction_lag_ms=100))
    put(log, (b"a", b"1"), now_ms=NOW_MS)
    put(log, (b"a", b"2"), now_ms=NOW_MS + 101)
    assert len(log.segments) == 2


# --- interruptions --------------------------------------------------------------------------------


def test_a_damaged_segment_is_not_cleaned(disk: SimDisk, log: FilePartitionLog) -> None:
    for number in range(10):
        put(log, (b"a", b"%d" % number))
    seal(log)
    segment = log.segments.oldest
    disk.flip_bit(segment.path, segment.size_bytes - 3)
    with pytest.raises(KafkaError, match="checksum"):
        clean(disk, log)
    assert log.segments.oldest is segment
    assert not [name for name in disk.list_names(PATH) if name.endswith(".cleaned")]


def job_of(disk: SimDisk, log: FilePartitionLog) -> Compaction:
    segments = log.compactable_segments(log.log_end_offset)
    return Compaction(disk, log, segments, secret=5, dedupe_buffer_bytes=1 << 16, now_ms=NOW_MS)


def run_into_change(running: Iterator[Callable[[], None]]) -> None:
    try:
        for step in running:
            step()
    except (LogChanged, StorageFault):
        pass


def filled(log: FilePartitionLog) -> None:
    for number in range(30):
        put(log, (b"k%d" % (number % 4), b"%d" % number))
    seal(log)


def test_a_cut_at_any_moment_of_a_cleaning_wins(disk: SimDisk) -> None:
    steps = 0
    while True:
        here = SimDisk()
        log = make_log(here)
        filled(log)
        before = {pair[0]: pair for pair in pairs(log) if pair[0] < 12}
        job = job_of(here, log)
        running = job.steps()
        try:
            for _ in range(steps):
                next(running)()
        except StopIteration:
            break
        log.truncate_to(12)
        run_into_change(running)
        assert job.log_has_changed
        assert log.log_end_offset <= 12
        found = {pair[0]: pair for pair in pairs(log)}
        assert found.items() <= before.items()
        assert {key for _, key, _ in found.values()} <= {b"k0", b"k1", b"k2", b"k3"}
        assert pairs(reopened(here, log)) == pairs(log)
        steps += 1
    assert steps > 10


def test_a_cleaning_that_is_given_up_at_any_moment_leaves_a_whole_log(disk: SimDisk) -> None:
    steps = 0
    while True:
        here = SimDisk()
        log = make_log(here)
        filled(log)
        expected = {key: value for _, key, value in pairs(log)}
        running = job_of(here, log).steps()
        try:
            for _ in range(steps):
                next(running)()
        except StopIteration:
            break
        running.close()
        log.settle_swap()
        assert {key: value for _, key, value in pairs(log)} == expected
        assert pairs(reopened(here, log)) == pairs(log)
        steps += 1
    assert steps > 10


def test_retention_by_start_offset_works_beside_compaction(
    disk: SimDisk, log: FilePartitionLog
) -> None:
    filled(log)
    clean(disk, log)
    log.advance_start(log.log_end_offset)
    dropped = log.apply_retention(now_ms=NOW_MS, high_watermark=log.flushed_offset)
    assert dropped > 0


def test_age_and_size_drop_nothing_from_a_topic_that_only_compacts(disk: SimDisk) -> None:
    log = make_log(disk, replace(CONFIG, retention_ms=1, retention_bytes=1))
    filled(log)
    later = NOW_MS + 10**9
    assert log.apply_retention(now_ms=later, high_watermark=log.flushed_offset) == 0
    log.set_config(replace(log.config, deletes=True))
    assert log.apply_retention(now_ms=later, high_watermark=log.flushed_offset) > 0
