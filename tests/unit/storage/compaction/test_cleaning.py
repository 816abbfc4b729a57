"""Which records a cleaning keeps, and what it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.batches import NOW_MS, drain, flush, read
from tests.support.compacting import (
    CONFIG,
    PATH,
    clean,
    headers_of,
    make_log,
    pairs,
    put,
    records,
    reopened,
    seal,
)
from tidemill.wire import compression
from tidemill.wire.batch import iter_headers, read_header
from tidemill.wire.records import Record


def test_I35_the_newest_record_of_each_key_stays_at_its_offset(disk, log):
    for version in (b"1", b"2", b"3"):
        put(log, (b"a", version), (b"b", version))
        put(log, (b"c", version))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(6, b"a", b"3"), (7, b"b", b"3"), (8, b"c", b"3")]


def test_I35_timestamps_and_headers_stay(disk, log):
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert records(log) == [
        Record(b"1", b"b", offset=1, timestamp=NOW_MS + 1, headers=[("h", b"1")]),
        Record(b"2", b"a", offset=2, timestamp=NOW_MS + 2, headers=[("h", b"2")]),
    ]


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
def test_I35_a_compressed_batch_is_rewritten_with_its_codec(disk, log, codec):
    put(log, (b"a", b"1"), (b"b", b"1"), codec=codec)
    put(log, (b"a", b"2"), codec=codec)
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", b"2")]
    assert [header.codec for _, header in iter_headers(drain(log))][:2] == [codec, codec]


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_a_batch_that_loses_nothing_keeps_its_bytes(disk, log, codec):
    put(log, (b"a", b"1"))
    whole = put(log, (b"b", b"1"), (b"c", b"1"), codec=codec)
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert read(log, 1, max_bytes=1) == whole


def test_I35_the_active_segment_is_left_alone(disk, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    flush(log)
    assert clean(disk, log) is None
    assert pairs(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_I35_nothing_at_or_above_the_given_offset_replaces_anything(disk, log):
    put(log, (b"a", b"old"), (b"x", b"y" * 600))
    put(log, (b"a", b"new"))
    seal(log)
    clean(disk, log, end_offset=2)
    assert pairs(log)[0] == (0, b"a", b"old")


def test_what_is_not_flushed_is_not_cleaned(disk, log):
    put(log, (b"a", b"1"), (b"x", b"y" * 600))
    put(log, (b"a", b"2"), (b"x", b"y" * 600))
    put(log, (b"z", b"1"))
    assert clean(disk, log) is None


def test_a_record_without_a_key_stays(disk, log):
    put(log, (None, b"1"), (None, b"2"), (b"a", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(0, None, b"1"), (1, None, b"2"), (3, b"a", b"2")]


def test_an_empty_key_is_a_key(disk, log):
    put(log, (b"", b"1"), (b"", b"2"))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(1, b"", b"2")]


# --- tombstones ----------------------------------------------------------------------------------


def test_I35_a_tombstone_removes_its_key_and_stays_itself(disk, log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    seal(log)
    clean(disk, log)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", None)]


def test_I35_a_tombstone_stays_until_its_horizon_and_is_then_dropped(disk, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"1"))
    seal(log)
    clean(disk, log, now_ms=NOW_MS)
    for now_ms, stays in ((NOW_MS + 999, True), (NOW_MS + 1_000, False)):
        seal(log)
        clean(disk, log, now_ms=now_ms)
        assert ((1, b"a", None) in pairs(log)) == stays
    assert pairs(log) == [(2, b"b", b"1")]


def test_the_delete_horizon_is_in_the_header_and_timestamps_stay(disk, log):
    put(log, (b"a", None), (b"b", b"1"))
    seal(log)
    clean(disk, log, now_ms=NOW_MS + 7)
    header = next(header for _, header in iter_headers(drain(log)))
    assert header.delete_horizon_ms == NOW_MS + 7 + 1_000
    assert header.max_timestamp == NOW_MS + 1
    assert [record.timestamp for record in records(log)] == [NOW_MS, NOW_MS + 1]


def test_a_later_cleaning_leaves_the_delete_horizon_as_it_is(disk, log):
    put(log, (b"a", None))
    seal(log)
    clean(disk, log, now_ms=NOW_MS)
    seal(log)
    clean(disk, log, now_ms=NOW_MS + 500)
    header = next(header for _, header in iter_headers(drain(log)))
    assert header.delete_horizon_ms == NOW_MS + 1_000


def test_the_longest_possible_retention_of_tombstones_is_for_ever(disk):
    log = make_log(disk, replace(CONFIG, delete_retention_ms=2**63 - 1))
    put(log, (b"a", None))
    seal(log)
    clean(disk, log)
    seal(log)
    clean(disk, log, now_ms=2**62)
    assert pairs(log) == [(0, b"a", None)]
    assert records(log)[0].timestamp == NOW_MS


def test_a_key_that_is_written_again_replaces_its_tombstone(disk, log):
    put(log, (b"a", None))
    seal(log)
    clean(disk, log)
    put(log, (b"a", b"2"))
    seal(log)
    clean(disk, log)
    assert [pair[1:] for pair in pairs(log)] == [(b"a", b"2")]


# --- empty batches that stay ----------------------------------------------------------------------


def test_I18_a_retry_is_recognised_after_compaction_without_a_snapshot(disk, log):
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


def test_batches_older_than_a_producers_window_are_dropped(disk, log):
    for number in range(9):
        put(log, (b"a", b"%d" % number), producer=(7, 0, number))
    seal(log)
    clean(disk, log)
    empty = [first for first, _, count in headers_of(log) if count == 0]
    assert set(range(4, 8)) <= set(empty)
    assert not {1, 2, 3} & set(empty)


def test_I11_the_epochs_can_be_rebuilt_from_the_batches_that_are_left(disk, log):
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


def test_every_segment_still_ends_where_the_next_one_begins(disk, log):
    for number in range(60):
        put(log, (b"k%d" % (number % 3), b"%d" % number))
    seal(log)
    clean(disk, log)
    found = reopened(disk, log)
    assert found.log_end_offset == log.log_end_offset
    assert pairs(found) == pairs(log)
