"""Compaction and transactions: aborted records and idle markers go, undecided ones stay."""

from __future__ import annotations

import pytest

from tests.support.batches import NOW_MS, drain, flush
from tests.support.compacting import clean, pairs, put, reopened, seal
from tests.support.transactions import append_one, end, records_of
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import iter_headers

RETENTION_MS = 1_000
CODECS = range(5)


def write(log: FilePartitionLog, producer_id: int, key: bytes, value: bytes, **options: int) -> int:
    """One record of a transaction; its offset."""
    data = records_of(
        producer_id,
        offset=log.log_end_offset,
        sequence=-1,
        keys=[key],
        value=value,
        **options,  # type: ignore[arg-type]
    )
    return append_one(log, data).base_offset


def settle(log: FilePartitionLog, producer_id: int) -> None:
    """The producer goes on elsewhere: its last marker here is no longer needed for a replay."""
    log.producers.expire(NOW_MS + RETENTION_MS, 0)
    assert log.producers.last_append_ms(producer_id) is None


def values(log: FilePartitionLog) -> list[tuple[bytes | None, bytes | None]]:
    found = [(key, value) for _, key, value in pairs(log)]
    return [(key, value) for key, value in found if key not in (b"\0\0\0\0", b"\0\0\0\1")]


def marker_offsets(log: FilePartitionLog) -> list[int]:
    return [header.base_offset for _, header in iter_headers(drain(log)) if header.is_control]


@pytest.mark.parametrize("codec", CODECS)
def test_I35_a_committed_record_replaces_an_older_one(disk: SimDisk, log, codec):
    put(log, (b"a", b"old"))
    write(log, 1, b"a", b"new", codec=codec)
    end(log, 1, commit=True)
    seal(log)
    clean(disk, log)
    assert values(log) == [(b"a", b"new")]


@pytest.mark.parametrize("codec", CODECS)
def test_I35_an_aborted_record_goes_and_replaces_nothing(disk: SimDisk, log, codec):
    put(log, (b"a", b"old"))
    write(log, 1, b"a", b"never", codec=codec)
    write(log, 1, b"b", b"never", codec=codec)
    end(log, 1, commit=False)
    seal(log)
    clean(disk, log)
    assert values(log) == [(b"a", b"old")]


def test_a_marker_stays_while_something_of_its_transaction_is_left(disk: SimDisk, log):
    write(log, 1, b"a", b"kept")
    marker = end(log, 1, commit=True).base_offset
    settle(log, 1)
    seal(log)
    for later in range(3):
        clean(disk, log, now_ms=NOW_MS + 10 * later * RETENTION_MS)
        put(log, (b"b", b"x"))
        seal(log)
    assert marker_offsets(log) == [marker]


def test_an_idle_marker_goes_after_its_horizon(disk: SimDisk, log):
    put(log, (b"b", b"0"))  # the first batch of a leader epoch stays
    write(log, 1, b"a", b"never")
    marker = end(log, 1, commit=False).base_offset
    put(log, (b"b", b"1"))
    settle(log, 1)
    seal(log)
    clean(disk, log)
    assert marker_offsets(log) == [marker]
    assert [one.last_offset for one in log.find_aborted(0, marker + 1)] == [marker]
    seal(log)
    clean(disk, log, now_ms=NOW_MS + RETENTION_MS - 1)
    assert marker_offsets(log) == [marker]
    seal(log)
    clean(disk, log, now_ms=NOW_MS + RETENTION_MS)
    assert marker_offsets(log) == []
    assert log.find_aborted(0, log.log_end_offset) == []


def test_I19_the_last_marker_of_a_producer_stays_as_it_is(disk: SimDisk, log):
    write(log, 1, b"a", b"never", epoch=3)
    marker = end(log, 1, commit=False, epoch=4).base_offset
    put(log, (b"b", b"1"))
    seal(log)
    for later in range(4):
        clean(disk, log, now_ms=NOW_MS + later * RETENTION_MS)
        seal(log)
    assert marker_offsets(log) == [marker]
    for name in disk.list_names(log.directory):
        if name.endswith(".snapshot"):
            disk.unlink(f"{log.directory}/{name}")
    (producer,) = reopened(disk, log).producers.active()
    assert (producer.epoch, producer.txn_first_offset) == (4, -1)


def test_I23_nothing_at_or_above_the_last_stable_offset_is_touched(disk: SimDisk, log):
    put(log, (b"a", b"old"))
    seal(log)
    write(log, 1, b"a", b"undecided")
    put(log, (b"a", b"newer"))
    seal(log)
    stable = log.producers.stable_offset(log.log_end_offset)
    before = drain(log, stable)
    clean(disk, log, end_offset=stable)
    assert drain(log, stable) == before
    assert (b"a", b"old") in values(log)


def test_a_restart_after_a_cleaning_finds_the_same_transactions(disk: SimDisk, log):
    for number in range(6):
        write(log, number, b"k%d" % number, b"v" * 150)
        end(log, number, commit=number % 2 == 0)
    seal(log)
    clean(disk, log)
    flush(log)
    wanted = log.find_aborted(0, log.log_end_offset)
    assert len(wanted) == 3
    again = reopened(disk, log)
    assert again.find_aborted(0, again.log_end_offset) == wanted
    assert again.producers.open_count == 0
