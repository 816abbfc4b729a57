"""A log knows where veiled batches lie, whatever happens to it, and searches them by time."""

from __future__ import annotations

import pytest

from tests.support.batches import NOW_MS, append, batch
from tests.support.directories import ORDERS, TOPIC_ID, flushed, log_of, opened, stored
from tidemill.core.rng import SeededRng
from tidemill.storage.log.interface import LogConfig, PartitionLog
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import read_header
from tidemill.wire.marks import veil
from tidemill.wire.records import Record, build_batch

STAMP_MS = NOW_MS + 1_000_000


def veiled(base_offset: int, held: str, start_ms: int = NOW_MS) -> bytes:
    """One record per letter, a second apart: `h` is held."""
    records = [
        Record(
            b"v",
            timestamp=start_ms + n * 1_000,
            headers=[("tidemill.delay-ms", b"5")] if letter == "h" else [],
        )
        for n, letter in enumerate(held)
    ]
    made = build_batch(records, base_offset=base_offset, leader_epoch=0)
    veil(made, read_header(made), stamp_ms=STAMP_MS)
    return bytes(made)


def span(log: PartitionLog) -> tuple[int, int]:
    return log.producers.first_veiled_offset, log.producers.last_veiled_offset


@pytest.fixture(params=["memory", "file"])
def log(request):
    if request.param == "memory":
        return MemoryPartitionLog(LogConfig())
    directory = opened(SimDisk())
    return directory.create_log(ORDERS, TOPIC_ID, LogConfig())


def test_a_log_knows_its_first_and_last_veiled_batch(log):
    append(log, batch(0))
    assert span(log) == (-1, -1)
    append(log, veiled(1, "hp"))
    append(log, batch(3))
    append(log, veiled(4, "hhh"))
    append(log, batch(7))
    assert span(log) == (1, 6)


def test_a_cut_takes_veiled_batches_back(log):
    append(log, veiled(0, "h"))
    append(log, batch(1))
    append(log, veiled(2, "h"))
    log.truncate_to(2)
    assert span(log) == (0, 0)
    log.restart_at(9)
    assert span(log) == (-1, -1)


def test_a_search_by_time_finds_what_one_may_see_with_its_own_time(log):
    append(log, veiled(0, "hphp"))
    append(log, veiled(4, "hh", NOW_MS + 50_000))
    append(log, batch(6, times=[NOW_MS + 10_000]))

    def at(seconds: int) -> tuple[int, int] | None:
        found = log.offset_by_time(NOW_MS + seconds * 1_000, end_offset=log.log_end_offset)
        return None if found is None else (found.offset, (found.timestamp_ms - NOW_MS) // 1_000)

    assert [at(seconds) for seconds in (0, 1, 2, 3, 4, 10, 11)] == [
        (1, 1),
        (1, 1),
        (3, 3),
        (3, 3),
        (6, 10),
        (6, 10),
        None,
    ]


def test_the_greatest_time_is_that_of_a_record_one_may_see(log):
    append(log, veiled(0, "hh"))
    assert log.max_timestamp(end_offset=2) is None
    append(log, veiled(2, "pph"))
    append(log, veiled(5, "h", NOW_MS + 50_000))
    found = log.max_timestamp(end_offset=6)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, NOW_MS + 1_000)


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_crash_forgets_no_veiled_batch_that_is_durable(has_snapshot):
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, LogConfig())
    append(log, batch(0))
    append(log, veiled(1, "h"))
    flushed(directory)
    if has_snapshot:
        stored(directory)
        directory.write_checkpoint()
    append(log, veiled(2, "h"))
    append(log, batch(3))
    flushed(directory)
    again = opened(disk.crash(SeededRng(1)))
    assert span(log_of(again)) == (1, 2)


def test_a_clean_end_forgets_no_veiled_batch():
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, LogConfig())
    append(log, veiled(0, "h"))
    append(log, batch(1))
    flushed(directory)
    directory.close({ORDERS: 2})
    again = opened(disk)
    assert span(log_of(again)) == (0, 0)
