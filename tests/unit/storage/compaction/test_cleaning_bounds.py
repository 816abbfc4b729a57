"""How far a cleaning goes: the clean point, the buffer for keys, the lags."""

from __future__ import annotations

from dataclasses import replace

from tests.support.batches import NOW_MS
from tests.support.compacting import (
    CONFIG,
    PATH,
    clean,
    make_log,
    pairs,
    put,
    reopened,
    seal,
)


def test_a_cleaning_continues_where_the_last_one_ended(disk, log):
    put(log, (b"a", b"1"))
    seal(log)
    clean(disk, log)
    point = log.clean_point.offset
    assert point > 0
    assert clean(disk, log) is None
    assert reopened(disk, log).clean_point.offset == point


def test_a_lost_or_damaged_clean_point_costs_only_work(disk, log):
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


def test_a_cut_below_the_clean_point_removes_it(disk, log):
    for number in range(30):
        put(log, (b"k%d" % number, b"v"))
    seal(log)
    clean(disk, log)
    log.truncate_to(5)
    assert log.clean_point.offset == 0
    assert "clean-point" not in disk.list_names(PATH)


def test_I35_keys_that_do_not_fit_the_buffer_are_cleaned_in_several_passes(disk, log):
    for version in range(2):
        for number in range(120):
            put(log, (b"k%d" % number, b"%d" % version))
    seal(log)
    passes = 0
    while clean(disk, log, buffer_bytes=64 * 24) is not None:
        passes += 1
    assert passes > 4
    assert [pair[1:] for pair in pairs(log)] == [(b"k%d" % n, b"1") for n in range(120)]


def test_one_batch_with_more_keys_than_the_buffer_holds_is_cleaned_too(disk):
    log = make_log(disk)
    put(log, *((b"k%d" % (number % 150), b"%d" % (number // 150)) for number in range(300)))
    seal(log)
    passes = 0
    while clean(disk, log, buffer_bytes=64 * 24) is not None:
        passes += 1
    assert passes > 2
    assert [pair[1:] for pair in pairs(log)] == [(b"k%d" % n, b"1") for n in range(150)]


def test_a_lag_keeps_young_segments_from_being_cleaned(disk):
    log = make_log(disk, replace(CONFIG, min_compaction_lag_ms=100))
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    assert clean(disk, log, now_ms=NOW_MS + 50) is None
    assert clean(disk, log, now_ms=NOW_MS + 200) is not None
    assert pairs(log) == [(1, b"a", b"2")]


def test_a_log_that_is_not_dirty_enough_is_due_after_the_longest_lag(disk):
    log = make_log(disk, replace(CONFIG, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=100))
    put(log, (b"a", b"1"))
    seal(log)
    clean(disk, log)
    put(log, (b"a", b"2"))
    seal(log)
    assert clean(disk, log, now_ms=NOW_MS + 50) is None
    assert clean(disk, log, now_ms=NOW_MS + 200) is not None


def test_the_longest_lag_also_closes_the_active_segment(disk):
    log = make_log(disk, replace(CONFIG, max_compaction_lag_ms=100))
    put(log, (b"a", b"1"), now_ms=NOW_MS)
    put(log, (b"a", b"2"), now_ms=NOW_MS + 101)
    assert len(log.segments) == 2
