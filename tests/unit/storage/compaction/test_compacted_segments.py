"""The segments that a cleaning leaves: their files, how they are read, when they are dropped."""

from __future__ import annotations

from dataclasses import replace

from tests.support.batches import NOW_MS, read
from tests.support.compacting import (
    CONFIG,
    PATH,
    clean,
    filled,
    make_log,
    pairs,
    put,
    reopened,
    seal,
)
from tidemill.wire.batch import iter_headers


def test_segments_that_got_small_are_merged(disk, log):
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


def test_a_merged_segment_is_not_larger_than_segment_bytes(disk, log):
    for number in range(100):
        put(log, (b"k%d" % number, b"v"))
    seal(log)
    for _ in range(3):
        clean(disk, log)
        seal(log)
    big = [s.size_bytes for s in log.segments if s.base_offset < 100 and s.next_offset <= 100]
    assert max(big) <= CONFIG.segment_bytes


def test_a_segment_in_which_nothing_changes_keeps_its_file(disk, log):
    for number in range(8):
        put(log, (b"k%d" % number, b"v" * 30))
    seal(log)
    row = list(log.segments)
    clean(disk, log)
    assert next(iter(log.segments)) is row[0]


def test_reading_by_offset_finds_the_next_record_that_is_left(disk, log):
    for number in range(40):
        put(log, (b"k%d" % (number % 2), b"%d" % number))
    seal(log)
    clean(disk, log)
    for offset in range(38):
        first = next(header for _, header in iter_headers(read(log, offset)))
        assert first.last_offset >= offset
    assert pairs(log)[0][0] == 38


def test_a_time_lookup_skips_dropped_records(disk, log):
    put(log, (b"a", b"1"), (b"b", b"1"), producer=(1, 0, 0))
    put(log, (b"a", b"2"), producer=(1, 0, 2))
    put(log, (b"b", b"2"), producer=(1, 0, 3))
    put(log, (b"a", b"3"))
    seal(log)
    clean(disk, log)
    found = log.offset_by_time(NOW_MS, end_offset=log.log_end_offset)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, NOW_MS + 3)


def test_a_reader_with_a_view_of_an_old_segment_keeps_its_bytes(disk, log):
    for number in range(20):
        put(log, (b"a", b"%d" % number))
    seal(log)
    view = log.segments.oldest.file().try_resident_view(0, log.segments.oldest.size_bytes)
    assert view is not None
    before = bytes(view)
    clean(disk, log)
    assert bytes(view) == before


def test_a_read_that_began_before_the_swap_succeeds_after_it(disk):
    disk.is_resident = False
    log = make_log(disk)
    written = b"".join(put(log, (b"a", b"%d" % number)) for number in range(4))
    seal(log)
    log.segments.oldest.drop_index()
    found = log.read(0, max_bytes=len(written), end_offset=4)
    assert found.load is not None
    clean(disk, log)
    assert b"".join(found.load()) == written


def test_the_index_of_a_cleaned_segment_is_stored(disk, log):
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


def test_retention_by_start_offset_works_beside_compaction(disk, log):
    filled(log)
    clean(disk, log)
    log.advance_start(log.log_end_offset)
    dropped = log.apply_retention(now_ms=NOW_MS, high_watermark=log.flushed_offset)
    assert dropped > 0


def test_age_and_size_drop_nothing_from_a_topic_that_only_compacts(disk):
    log = make_log(disk, replace(CONFIG, retention_ms=1, retention_bytes=1))
    filled(log)
    later = NOW_MS + 10**9
    assert log.apply_retention(now_ms=later, high_watermark=log.flushed_offset) == 0
    log.set_config(replace(log.config, deletes=True))
    assert log.apply_retention(now_ms=later, high_watermark=log.flushed_offset) > 0
