"""What may interrupt a cleaning: damage, a cut, an end at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.batches import NOW_MS
from tests.support.compacting import (
    PATH,
    clean,
    filled,
    make_log,
    pairs,
    put,
    reopened,
    seal,
)
from tidemill.core.errors import KafkaError, StorageFault
from tidemill.storage.compaction.cleaning import Compaction
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.rewriting.new_segment import LogChanged
from tidemill.testing.sim.disk import SimDisk


def test_a_damaged_segment_is_not_cleaned(disk, log):
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


def test_a_cut_at_any_moment_of_a_cleaning_wins(disk):
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


def test_a_cleaning_that_is_abandoned_at_any_moment_leaves_a_whole_log(disk):
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


def test_a_retention_that_did_not_run_leaves_an_unfinished_swap_to_the_next_cut(disk):
    log = make_log(disk)
    filled(log)
    running = job_of(disk, log).steps()
    while not [name for name in disk.list_names(PATH) if name.endswith(".swap")]:
        next(running)()
    running.close()
    log.advance_start(log.segments.oldest.next_offset)
    drop = log.front.plan_drop({}, now_ms=NOW_MS, high_watermark=1 << 40, segments_max=1)
    log.front.end_drop(drop, NOW_MS)
    log.truncate_to(log.log_start_offset + 2)
    assert not [name for name in disk.list_names(PATH) if name.endswith(".swap")]
