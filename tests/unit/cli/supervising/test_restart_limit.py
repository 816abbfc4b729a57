from __future__ import annotations

from tidemill.cli.supervising.restart_limit import RESTARTS_MAX, WINDOW_S, RestartLimit


def test_a_broker_is_started_again_five_times_in_five_minutes_and_not_a_sixth_time():
    limit = RestartLimit()
    assert [limit.try_take(float(n)) for n in range(RESTARTS_MAX + 1)] == [True] * 5 + [False]
    assert limit.taken == 5


def test_restarts_are_forgotten_after_five_minutes():
    limit = RestartLimit()
    for n in range(RESTARTS_MAX):
        limit.try_take(float(n))
    assert not limit.try_take(WINDOW_S - 1)
    assert limit.try_take(WINDOW_S)
    assert not limit.try_take(WINDOW_S)


def test_a_broker_that_ends_seldom_is_started_again_for_ever():
    limit = RestartLimit()
    assert all(limit.try_take(n * WINDOW_S / 5) for n in range(1000))
