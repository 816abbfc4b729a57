"""A leader whose connection has ended is doubted for a second, once."""

from __future__ import annotations

from tidemill.replication.pulling.lost_leaders import LostLeaders


def test_a_lost_leader_is_doubted_for_a_second():
    lost = LostLeaders()
    assert not lost.is_doubtful(1, 10.0)
    lost.lost(1, 10.0)
    assert lost.is_doubtful(1, 10.9)
    assert not lost.is_doubtful(2, 10.9)
    assert not lost.is_doubtful(1, 11.0)


def test_a_leader_that_stays_away_is_not_doubted_again():
    lost = LostLeaders()
    lost.lost(1, 10.0)
    lost.lost(1, 10.9)
    assert not lost.is_doubtful(1, 11.0)


def test_a_leader_that_was_reached_again_is_doubted_when_it_is_lost_again():
    lost = LostLeaders()
    lost.lost(1, 10.0)
    lost.reached(1)
    assert not lost.is_doubtful(1, 10.1)
    lost.lost(1, 11.5)
    assert lost.is_doubtful(1, 12.0)
