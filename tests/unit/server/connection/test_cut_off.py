"""A broker that cannot reach the store sends its clients away, after a while."""

from __future__ import annotations

from tidemill.server.connection.cut_off import CUT_OFF_AFTER_S, CutOff


def test_clients_are_sent_away_once_the_broker_has_been_of_no_use_for_a_while():
    cut_off = CutOff()
    assert not cut_off.review(is_of_use=True, now=0.0)
    assert not cut_off.review(is_of_use=False, now=1.0)
    assert not cut_off.review(is_of_use=False, now=0.9 + CUT_OFF_AFTER_S)
    assert cut_off.review(is_of_use=False, now=1.0 + CUT_OFF_AFTER_S)
    assert cut_off.review(is_of_use=False, now=100.0)
    assert not cut_off.review(is_of_use=True, now=101.0)


def test_a_broker_that_is_of_use_now_and_then_keeps_its_clients():
    cut_off = CutOff()
    for second in range(100):
        assert not cut_off.review(is_of_use=second % 2 == 0, now=2.0 * second)
