"""A pool counts bytes, refuses more than its limit, and calls back when there are some again."""

from __future__ import annotations

import pytest

from tidemill.core.errors import InvariantViolation
from tidemill.server.limits.memory_pool import MemoryPool


def test_S2_what_does_not_fit_is_refused():
    pool = MemoryPool(100)
    assert pool.try_take(60, "a")
    assert not pool.try_take(41, "b")
    assert pool.try_take(40, "b")
    assert pool.free_bytes == 0


def test_S2_one_owner_at_a_time_may_exceed_the_limit():
    pool = MemoryPool(100, lends=True)
    assert pool.try_take(90, "a")
    assert pool.try_take(90, "b")
    assert not pool.try_take(20, "a")
    assert pool.try_take(500, "b")
    pool.give(590, "b")
    assert pool.try_take(20, "a")


def test_S2_when_the_debtor_is_done_the_next_owner_may_exceed_the_limit():
    pool, called = MemoryPool(100, lends=True), []
    pool.take(100)
    assert pool.try_take(10, "debtor")

    def retry(owner):
        called.append((owner, pool.try_take(10, owner)))

    pool.wait(lambda: retry("second"))
    pool.wait(lambda: retry("third"))
    pool.give(10, "debtor")
    assert called == [("second", True)]


def test_bytes_in_memory_are_counted_beyond_the_limit():
    pool = MemoryPool(100)
    pool.take(150)
    assert (pool.used_bytes, pool.free_bytes, pool.is_exhausted) == (150, 0, True)


def test_S2_waiting_callbacks_are_called_in_order_when_bytes_come_back():
    pool, called = MemoryPool(100), []
    pool.take(100)
    pool.wait(lambda: called.append("first"))
    pool.wait(lambda: called.append("second"))
    pool.give(1)
    assert called == ["first", "second"]


def test_S2_no_more_callbacks_are_called_when_the_pool_is_used_up_again():
    pool, called = MemoryPool(100), []

    def greedy():
        called.append("greedy")
        pool.take(10)

    pool.take(100)
    pool.wait(greedy)
    pool.wait(lambda: called.append("second"))
    pool.give(10)
    assert called == ["greedy"]
    pool.give(10)
    assert called == ["greedy", "second"]


def test_no_callback_is_called_while_more_than_the_limit_is_used():
    pool, called = MemoryPool(100), []
    pool.take(150)
    pool.wait(lambda: called.append(1))
    pool.give(50)
    assert called == []
    pool.give(1)
    assert called == [1]


def test_S2_waiting_twice_is_waiting_once():
    pool, called = MemoryPool(100), []

    def note():
        called.append(1)

    pool.take(100)
    pool.wait(note)
    pool.wait(note)
    pool.give(100)
    assert called == [1]


def test_a_callback_that_waits_again_is_called_the_next_time():
    pool, called = MemoryPool(100), []

    def again():
        called.append(1)
        pool.wait(again)

    pool.take(100)
    pool.wait(again)
    pool.give(50)
    assert called == [1]
    pool.give(50)
    assert called == [1, 1]


def test_a_forgotten_callback_is_not_called():
    pool, called = MemoryPool(100), []

    def note():
        called.append(1)

    pool.take(100)
    pool.wait(note)
    pool.forget(note)
    pool.give(100)
    assert called == []


def test_giving_back_more_than_was_taken_is_a_bug():
    with pytest.raises(InvariantViolation):
        MemoryPool(100).give(1)
