"""Which followers leave the in-sync set, and which may return."""

from __future__ import annotations

from tidemill.replication.isr import FollowerPosition, expanded_isr, shrunk_isr


def test_a_follower_that_lags_too_long_leaves():
    followers = {1: FollowerPosition(5, 5, caught_up_at=0.0), 2: FollowerPosition(5, 5, 95.0)}
    kept = shrunk_isr((0, 1, 2), followers, leader_end=10, now=100.0, lag_s_max=30.0)
    assert kept == (0, 2)


def test_a_follower_at_the_log_end_stays_however_long_the_log_is_idle():
    followers = {1: FollowerPosition(10, 10, caught_up_at=0.0)}
    kept = shrunk_isr((0, 1), followers, leader_end=10, now=1e6, lag_s_max=30.0)
    assert kept == (0, 1)


def test_a_follower_returns_only_at_the_high_watermark():
    followers = {1: FollowerPosition(9, 9), 2: FollowerPosition(10, 10)}
    assert expanded_isr((0,), followers, high_watermark=10, epoch_start_offset=0) == (0, 2)


def test_a_follower_returns_only_past_the_start_of_the_leaders_epoch():
    followers = {1: FollowerPosition(10, 10)}
    assert expanded_isr((0,), followers, high_watermark=5, epoch_start_offset=11) == (0,)


def test_a_followers_flushed_offset_is_never_above_its_log_end():
    position = FollowerPosition()
    position.fetched(fetch_offset=4, flushed_offset=9, leader_end=10, now=1.0)
    assert position.flushed_offset == 4
    assert position.caught_up_at == 0.0


def test_F78_a_follower_that_keeps_up_under_steady_load_stays():
    """The leader has appended more each time the follower's next fetch arrives."""
    position = FollowerPosition()
    for second in range(200):
        position.fetched(
            fetch_offset=second * 10, flushed_offset=0, leader_end=second * 10 + 10, now=second
        )
    kept = shrunk_isr((0, 1), {1: position}, leader_end=2000, now=200.0, lag_s_max=30.0)
    assert kept == (0, 1)


def test_F78_a_follower_that_falls_behind_steadily_leaves():
    position = FollowerPosition()
    for second in range(200):
        position.fetched(
            fetch_offset=second * 5, flushed_offset=0, leader_end=second * 10 + 10, now=second
        )
    kept = shrunk_isr((0, 1), {1: position}, leader_end=2000, now=200.0, lag_s_max=30.0)
    assert kept == (0,)
