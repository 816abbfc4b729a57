"""The lease by the clock."""

from __future__ import annotations

import math

import pytest

from tidemill.metadata.store.renewed_lease import RenewedLease, unanswered_max

TIMEOUT_S = 6.0


def test_there_is_no_lease_before_the_first_renewal():
    assert RenewedLease().until == -math.inf


def test_a_lease_lasts_two_thirds_of_the_timeout_from_when_its_renewal_was_sent():
    lease = RenewedLease()
    lease.renewed(100.0, TIMEOUT_S, -1)
    assert lease.until == pytest.approx(104.0)


def test_an_answer_that_comes_late_does_not_shorten_the_lease():
    lease = RenewedLease()
    lease.renewed(101.0, TIMEOUT_S, -1)
    lease.renewed(100.0, TIMEOUT_S, -1)
    assert lease.until == pytest.approx(105.0)


def test_a_renewal_that_read_a_head_which_the_image_lacks_waits_for_it():
    lease = RenewedLease()
    lease.caught_up(3)
    lease.renewed(100.0, TIMEOUT_S, 3)
    lease.renewed(101.0, TIMEOUT_S, 4)
    lease.renewed(102.0, TIMEOUT_S, 6)
    assert lease.until == pytest.approx(104.0)
    lease.caught_up(5)
    assert lease.until == pytest.approx(105.0)
    lease.caught_up(6)
    assert lease.until == pytest.approx(106.0)


def test_an_image_does_not_get_older():
    lease = RenewedLease()
    lease.caught_up(5)
    lease.caught_up(-1)
    lease.renewed(100.0, TIMEOUT_S, 5)
    assert lease.until == pytest.approx(104.0)


def test_the_end_of_a_session_ends_the_lease_and_what_waits():
    lease = RenewedLease()
    lease.renewed(100.0, TIMEOUT_S, -1)
    lease.renewed(101.0, TIMEOUT_S, 2)
    lease.end()
    lease.caught_up(2)
    assert lease.until == -math.inf
    lease.renewed(102.0, TIMEOUT_S, 2)
    assert lease.until == pytest.approx(106.0)


def test_renewals_that_wait_for_an_image_that_never_comes_are_bounded():
    lease = RenewedLease()
    for number in range(1_000):
        lease.renewed(float(number), TIMEOUT_S, number)
    lease.caught_up(1_000)
    assert lease.until == pytest.approx(999 + 4.0)
    assert len(lease._waiting) == 0


def test_a_server_is_given_up_when_a_third_of_the_session_is_left_to_find_another():
    assert unanswered_max(5.0) == 3  # of five, and the fourth is not sent to it any more
    assert unanswered_max(18.0) == 10  # one in 1.2 s
