"""Flush rounds: which logs are covered, when, and what success and failure do."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tidemill.core.errors import InvariantViolation, StorageFault
from tidemill.core.limits import UNFLUSHED_TAIL_BYTES_MAX
from tidemill.storage.directory.flush_round import DirtyLogs, FlushRound, is_due_by_size
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.interface import LogConfig, PartitionLog
from tidemill.storage.log.memory_log import MemoryPartitionLog


class FakeLog:
    """The part of a log that a flush round uses."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.config = config or LogConfig()
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.syncs = 0
        self.sync_error: StorageFault | None = None

    def grow(self, records: int = 1) -> PartitionLog:
        self.log_end_offset += records
        return self.seen

    @property
    def seen(self) -> PartitionLog:
        return cast(PartitionLog, self)

    def take_flush_point(self) -> FlushPoint | None:
        if self.flushed_offset == self.log_end_offset:
            return None
        return FlushPoint(self.log_end_offset, finish=self._sync)

    def flushed(self, point: FlushPoint) -> None:
        self.flushed_offset = point.log_end_offset

    def _sync(self) -> None:
        self.syncs += 1
        if self.sync_error is not None:
            raise self.sync_error


@pytest.fixture
def failures() -> list[StorageFault]:
    return []


@pytest.fixture
def dirty(failures: list[StorageFault]) -> DirtyLogs:
    return DirtyLogs(on_failure=failures.append)


def collected(dirty: DirtyLogs, now_ms: int = 0) -> FlushRound:
    flush_round = dirty.collect(now_ms=now_ms)
    assert flush_round is not None
    return flush_round


def test_a_round_covers_what_was_written_before_it_began(dirty):
    log = FakeLog()
    dirty.appended(log.grow(3), 10, now_ms=0)
    dirty.request(log.seen)
    flush_round = collected(dirty)
    dirty.appended(log.grow(5), 10, now_ms=0)
    flush_round.sync()
    flush_round.apply()
    assert log.flushed_offset == 3


def test_a_dirty_log_without_a_waiting_acknowledgement_is_not_flushed(dirty):
    waited_for, other = FakeLog(), FakeLog()
    for log in (waited_for, other):
        dirty.appended(log.grow(), 10, now_ms=0)
    dirty.request(waited_for.seen)
    assert collected(dirty).logs == [waited_for.seen]


def test_request_all_covers_every_dirty_log(dirty):
    logs = [FakeLog() for _ in range(3)]
    for log in logs:
        dirty.appended(log.grow(), 10, now_ms=0)
    dirty.request_all()
    assert collected(dirty).logs == [log.seen for log in logs]


def test_there_is_no_round_when_all_is_durable_already(dirty):
    dirty.request(FakeLog().seen)
    assert dirty.collect(now_ms=0) is None


def test_rounds_run_one_at_a_time(dirty):
    log = FakeLog()
    dirty.request(log.grow())
    first = collected(dirty)
    dirty.request(log.grow())
    assert dirty.collect(now_ms=0) is None
    first.sync()
    first.apply()
    assert collected(dirty).logs == [log.seen]


def test_a_failed_sync_moves_no_log_and_is_reported_once(dirty, failures):
    good, bad = FakeLog(), FakeLog()
    bad.sync_error = StorageFault("EIO")
    for log in (good, bad):
        dirty.request(log.grow())
    flush_round = collected(dirty)
    with pytest.raises(StorageFault) as raised:
        flush_round.sync()
    flush_round.fail(raised.value)
    assert (good.flushed_offset, bad.flushed_offset) == (0, 0)
    assert failures == [raised.value]


def test_no_round_follows_a_failed_one(dirty):
    log = FakeLog()
    dirty.request(log.grow())
    collected(dirty).fail(StorageFault("EIO"))
    dirty.request(log.grow())
    assert dirty.collect(now_ms=0) is None


def test_a_round_cannot_be_applied_before_its_sync_succeeded(dirty):
    log = FakeLog()
    log.sync_error = StorageFault("EIO")
    dirty.request(log.grow())
    flush_round = collected(dirty)
    with pytest.raises(StorageFault):
        flush_round.sync()
    with pytest.raises(InvariantViolation):
        flush_round.apply()


def test_a_round_ends_once(dirty):
    dirty.request(FakeLog().grow())
    flush_round = collected(dirty)
    flush_round.fail(StorageFault("EIO"))
    with pytest.raises(InvariantViolation):
        flush_round.fail(StorageFault("EIO"))


def test_parts_finish_every_log_once(dirty):
    logs = [FakeLog() for _ in range(10)]
    for log in logs:
        dirty.request(log.grow())
    flush_round = collected(dirty)
    parts = flush_round.finish_parts(4)
    for part in parts:
        part()
    flush_round.synced()
    flush_round.apply()
    assert len(parts) == 4
    assert [log.syncs for log in logs] == [1] * 10
    assert [log.flushed_offset for log in logs] == [1] * 10


def test_there_are_no_more_parts_than_logs(dirty):
    dirty.request(FakeLog().grow())
    assert len(collected(dirty).finish_parts(4)) == 1


def test_a_log_forgotten_during_its_round_neither_fails_it_nor_moves(dirty):
    kept, deleted = FakeLog(), FakeLog()
    for log in (kept, deleted):
        dirty.request(log.grow())
    flush_round = collected(dirty)
    dirty.forget(deleted.seen)
    deleted.sync_error = StorageFault("closed")
    flush_round.sync()
    flush_round.apply()
    assert (kept.flushed_offset, deleted.flushed_offset) == (1, 0)
    assert flush_round.logs == [kept.seen]


def test_a_forgotten_log_is_in_no_later_round(dirty):
    log = FakeLog(LogConfig(flush_ms=5))
    dirty.appended(log.grow(), 10, now_ms=0)
    dirty.request(log.seen)
    dirty.forget(log.seen)
    assert dirty.collect(now_ms=100) is None
    assert len(dirty) == 0


def test_F27_a_log_becomes_due_by_its_number_of_unflushed_records(dirty):
    log = FakeLog(LogConfig(flush_messages=10))
    dirty.appended(log.grow(9), 10, now_ms=0)
    assert dirty.collect(now_ms=0) is None
    dirty.appended(log.grow(1), 10, now_ms=0)
    assert collected(dirty).logs == [log.seen]


def test_F27_a_log_becomes_due_by_the_age_of_its_first_unflushed_record(dirty):
    log = FakeLog(LogConfig(flush_ms=50))
    dirty.appended(log.grow(), 10, now_ms=1000)
    dirty.appended(log.grow(), 10, now_ms=1040)
    assert dirty.next_due_ms() == 1050
    assert dirty.collect(now_ms=1049) is None
    assert collected(dirty, now_ms=1050).logs == [log.seen]
    assert dirty.next_due_ms() is None


def test_F27_a_round_on_request_restarts_the_clock(dirty):
    log = FakeLog(LogConfig(flush_ms=50))
    dirty.appended(log.grow(), 10, now_ms=0)
    dirty.request(log.seen)
    flush_round = collected(dirty, now_ms=10)
    flush_round.sync()
    flush_round.apply()
    dirty.appended(log.grow(), 10, now_ms=40)
    assert dirty.collect(now_ms=50) is None
    assert dirty.next_due_ms() == 90


def test_F27_nothing_is_due_by_default():
    assert not is_due_by_size(LogConfig(), unflushed_records=10**9, unflushed_bytes=10**6)


def test_an_unflushed_tail_is_flushed_at_its_bound(dirty):
    log = FakeLog()
    dirty.appended(log.grow(), UNFLUSHED_TAIL_BYTES_MAX - 1, now_ms=0)
    assert dirty.collect(now_ms=0) is None
    dirty.appended(log.grow(), 1, now_ms=0)
    assert collected(dirty).logs == [log.seen]


def test_the_times_of_past_tails_do_not_pile_up(dirty):
    log = FakeLog(replace(LogConfig(), flush_ms=10**9))
    for _ in range(1000):
        dirty.appended(log.grow(), 10, now_ms=0)
        dirty.request(log.seen)
        flush_round = collected(dirty)
        flush_round.sync()
        flush_round.apply()
    assert len(dirty._by_time) < 100


def test_a_log_that_is_dirty_already_only_counts_its_bytes():
    dirty, log = DirtyLogs(on_failure=lambda _fault: None), MemoryPartitionLog(LogConfig())
    assert not dirty.grew(log, 10)
    dirty.appended(log, 10, now_ms=0)
    assert dirty.grew(log, 10)
    assert not dirty.wants_round


def test_F27_a_log_with_a_flush_rule_is_looked_at_with_every_append():
    dirty, log = (
        DirtyLogs(on_failure=lambda _fault: None),
        MemoryPartitionLog(LogConfig(flush_messages=5)),
    )
    dirty.appended(log, 10, now_ms=0)
    assert not dirty.grew(log, 10)


def test_a_tail_that_grows_too_long_is_looked_at():
    dirty, log = DirtyLogs(on_failure=lambda _fault: None), MemoryPartitionLog(LogConfig())
    dirty.appended(log, 10, now_ms=0)
    assert not dirty.grew(log, UNFLUSHED_TAIL_BYTES_MAX)
