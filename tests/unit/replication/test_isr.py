"""Which followers leave the in-sync set, and which may return."""

from __future__ import annotations

from tidemill.replication.isr import NEVER, FollowerPosition, JoinBar, joined, kept


def test_a_follower_that_lags_too_long_leaves():
    followers = {1: FollowerPosition(5, 5, caught_up_at=0.0), 2: FollowerPosition(5, 5, 95.0)}
    left = kept((0, 1, 2), followers, leader_end=10, now=100.0, lag_s_max=30.0)
    assert left == (0, 2)


def test_a_follower_at_the_log_end_stays_however_long_the_log_is_idle():
    followers = {1: FollowerPosition(10, 10, caught_up_at=0.0)}
    left = kept((0, 1), followers, leader_end=10, now=1e6, lag_s_max=30.0)
    assert left == (0, 1)


def test_a_follower_returns_only_at_the_high_watermark():
    followers = {1: FollowerPosition(9, 9), 2: FollowerPosition(10, 10)}
    assert joined((0,), followers, JoinBar(log_end_offset=10)) == (0, 2)


def test_a_follower_that_must_be_on_disk_joins_only_when_it_has_flushed():
    followers = {1: FollowerPosition(10, 9), 2: FollowerPosition(10, 10)}
    assert joined((0,), followers, JoinBar(log_end_offset=10, flushed_offset=10)) == (0, 2)


def test_below_the_minimum_a_follower_joins_only_while_it_keeps_up():
    bar = JoinBar(log_end_offset=0, must_keep_up=True)
    position = FollowerPosition()
    position.fetched(fetch_offset=0, flushed_offset=0, leader_end=10, now=1.0)
    assert joined((0,), {1: position}, bar) == (0,)
    position.fetched(fetch_offset=9, flushed_offset=0, leader_end=20, now=2.0)
    assert joined((0,), {1: position}, bar) == (0,)
    position.fetched(fetch_offset=20, flushed_offset=0, leader_end=30, now=3.0)
    assert joined((0,), {1: position}, bar) == (0, 1)


def test_a_followers_flushed_offset_is_never_above_its_log_end():
    position = FollowerPosition()
    position.fetched(fetch_offset=4, flushed_offset=9, leader_end=10, now=1.0)
    assert position.flushed_offset == 4
    assert position.caught_up_at == NEVER


def test_F78_a_follower_that_keeps_up_under_steady_load_stays():
    """The leader has appended more each time the follower's next fetch arrives."""
    position = FollowerPosition()
    for second in range(200):
        position.fetched(
            fetch_offset=second * 10, flushed_offset=0, leader_end=second * 10 + 10, now=second
        )
    left = kept((0, 1), {1: position}, leader_end=2000, now=200.0, lag_s_max=30.0)
    assert left == (0, 1)


def test_F78_a_follower_that_falls_behind_steadily_leaves():
    position = FollowerPosition()
    for second in range(200):
        position.fetched(
            fetch_offset=second * 5, flushed_offset=0, leader_end=second * 10 + 10, now=second
        )
    left = kept((0, 1), {1: position}, leader_end=2000, now=200.0, lag_s_max=30.0)
    assert left == (0,)
