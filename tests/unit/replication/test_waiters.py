"""Acknowledgements are settled once, in order, by mark, error or deadline."""

from __future__ import annotations

from tidemill.core.errors import ErrorCode
from tidemill.replication.waiting.waiters import AckWaiter, OffsetWaiters


def _waiter(offset: int, heard: list[tuple[int, ErrorCode]]) -> AckWaiter:
    return AckWaiter(offset, lambda code: heard.append((offset, code)))


def test_a_mark_releases_every_waiter_at_or_below_it_in_order():
    heard: list[tuple[int, ErrorCode]] = []
    waiters = OffsetWaiters()
    for offset in (5, 10, 15):
        waiters.add(_waiter(offset, heard))
    waiters.release(10)
    assert heard == [(5, ErrorCode.NONE), (10, ErrorCode.NONE)]
    assert len(waiters) == 1


def test_a_retry_that_waits_for_an_older_offset_is_released_with_it():
    heard: list[tuple[int, ErrorCode]] = []
    waiters = OffsetWaiters()
    waiters.add(_waiter(10, heard))
    waiters.add(_waiter(5, heard))
    waiters.release(5)
    assert heard == [(5, ErrorCode.NONE)]


def test_a_failed_partition_fails_every_waiter():
    heard: list[tuple[int, ErrorCode]] = []
    waiters = OffsetWaiters()
    waiters.add(_waiter(5, heard))
    waiters.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    assert heard == [(5, ErrorCode.KAFKA_STORAGE_ERROR)]
    assert len(waiters) == 0


def test_the_first_to_settle_a_waiter_wins():
    heard: list[tuple[int, ErrorCode]] = []
    waiter = _waiter(5, heard)
    waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
    waiter.settle(ErrorCode.NONE)
    assert heard == [(5, ErrorCode.REQUEST_TIMED_OUT)]


def test_timed_out_waiters_do_not_pile_up_behind_a_stuck_mark():
    waiters = OffsetWaiters()
    for offset in range(1000):
        waiter = AckWaiter(offset, lambda _code: None)
        waiters.add(waiter)
        waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert len(waiters) <= 1


def test_I36_timed_out_waiters_do_not_pile_up_behind_one_that_still_waits():
    heard: list[tuple[int, ErrorCode]] = []
    waiters = OffsetWaiters()
    waiters.add(_waiter(1, heard))
    for _ in range(10_000):
        waiter = AckWaiter(2, lambda _code: None)
        waiters.add(waiter)
        waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
        assert len(waiters) <= 103
    waiters.release(1)
    assert heard == [(1, ErrorCode.NONE)]


def test_waiters_that_all_still_wait_stay_in_order_however_many_they_are():
    heard: list[tuple[int, ErrorCode]] = []
    waiters = OffsetWaiters()
    for offset in range(2_000):
        waiters.add(_waiter(offset, heard))
    assert len(waiters) == 2_000
    waiters.release(2_000)
    assert [offset for offset, _ in heard] == list(range(2_000))
