"""The scrub reads every closed segment once per period, slowly, and only reports."""

from __future__ import annotations

import pytest

from tests.support.batches import append, batch, fill
from tests.support.directories import ORDERS, ORDERS_PATH, TOPIC_ID, opened
from tidemill.core.limits import MIB
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import LogConfig
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep import scrub as scrub_module
from tidemill.upkeep.scrub import DamageFound, Scrub

SIZE = len(batch(0))
PERIOD_MS = 1_000
FIRST = f"{ORDERS_PATH}/{0:020d}.log"
CONFIG = LogConfig(segment_bytes=4 * SIZE)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def directory(disk: SimDisk) -> LogDirectory:
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, CONFIG), 10)
    return directory


def scrub_of(disk: SimDisk, directory: LogDirectory, bytes_per_second: int = 1 << 40) -> Scrub:
    scrub = Scrub(disk, directory.paths, period_ms=PERIOD_MS, bytes_per_second=bytes_per_second)
    assert scrub.next_slice(0) is None
    return scrub


def run_cycle(scrub: Scrub, now_ms: int = PERIOD_MS) -> list[DamageFound]:
    found = []
    while (part := scrub.next_slice(now_ms)) is not None:
        part.run()
        found += scrub.finish(part, now_ms)
    return found


def test_every_closed_segment_is_checked_and_the_growing_one_is_not(disk, directory):
    scrub = scrub_of(disk, directory)
    assert run_cycle(scrub) == []
    assert (scrub.segments_checked, scrub.bytes_checked) == (2, 8 * SIZE)


def test_F20_damage_is_found_counted_and_located(disk, directory):
    disk.flip_bit(FIRST, 2 * SIZE - 1)
    scrub = scrub_of(disk, directory)
    found = run_cycle(scrub)
    assert [(one.partition, one.path, one.position, one.offsets.start_offset) for one in found] == [
        (ORDERS, FIRST, SIZE, 1)
    ]
    assert scrub.damages_found == 1
    assert list(scrub.events) == found


def test_the_rest_of_a_damaged_segment_is_checked_too(disk, directory):
    for place in (1, 3):
        disk.flip_bit(FIRST, place * SIZE + SIZE - 1)
    found = run_cycle(scrub_of(disk, directory))
    assert [one.offsets.start_offset for one in found] == [1, 3]


def test_the_scrub_changes_nothing(disk, directory):
    disk.flip_bit(FIRST, 2 * SIZE - 1)
    calls = disk.calls
    run_cycle(scrub_of(disk, directory))
    assert disk.calls == calls


def test_a_new_cycle_begins_after_the_period(disk, directory):
    scrub = scrub_of(disk, directory)
    run_cycle(scrub)
    assert scrub.next_slice(2 * PERIOD_MS - 1) is None
    run_cycle(scrub, 2 * PERIOD_MS)
    assert scrub.segments_checked == 4


def test_slices_keep_to_the_byte_rate(disk, directory):
    scrub = scrub_of(disk, directory, bytes_per_second=4 * SIZE)
    part = scrub.next_slice(PERIOD_MS)
    assert part is not None
    part.run()
    scrub.finish(part, PERIOD_MS)
    assert scrub.next_slice(PERIOD_MS + 999) is None
    assert scrub.next_slice(PERIOD_MS + 1000) is not None


def test_one_slice_runs_at_a_time(disk, directory):
    scrub = scrub_of(disk, directory)
    assert scrub.next_slice(PERIOD_MS) is not None
    assert scrub.next_slice(PERIOD_MS) is None


def test_a_large_segment_takes_several_slices(disk, monkeypatch):
    monkeypatch.setattr(scrub_module, "SLICE_BYTES", MIB)
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, LogConfig(segment_bytes=3 * MIB))
    for offset in range(7):
        append(log, batch(offset, value=b"x" * (MIB // 2)))
    scrub = scrub_of(disk, directory)
    slices = 0
    while (part := scrub.next_slice(PERIOD_MS)) is not None:
        part.run()
        scrub.finish(part, PERIOD_MS)
        slices += 1
    assert slices == 3
    assert scrub.segments_checked == 1


def test_segments_and_logs_that_disappear_meanwhile_are_not_damage(disk, directory):
    scrub = scrub_of(disk, directory)
    part = scrub.next_slice(PERIOD_MS)
    assert part is not None
    directory.delete_log(ORDERS)
    part.run()
    assert scrub.finish(part, PERIOD_MS) == []
    assert run_cycle(scrub) == []


def test_a_read_error_is_damage(disk, directory):
    disk.fail("pread", FIRST)
    found = run_cycle(scrub_of(disk, directory))
    assert [one.path for one in found] == [FIRST]
