"""What a broker does about a controller that does not answer."""

from __future__ import annotations

import pytest

from tidemill.replication.proposing.controller_contact import HEARD, ControllerContact

LAG_S = 10.0
EPOCH = 7


@pytest.fixture
def contact() -> ControllerContact:
    """A contact whose first request had no answer, at time zero."""
    silent = ControllerContact()
    silent.unanswered(EPOCH, 0.0)
    return silent


def test_a_controller_is_called_silent_after_one_lag_limit(contact):
    assert contact.unheard_controller(9.9, LAG_S) == HEARD
    assert contact.unheard_controller(10.0, LAG_S) == EPOCH


def test_more_requests_without_an_answer_do_not_start_the_time_again(contact):
    contact.unanswered(EPOCH, 9.0)
    assert contact.unheard_controller(10.0, LAG_S) == EPOCH


def test_time_in_which_nothing_was_asked_does_not_count(contact):
    contact.unanswered(EPOCH, 60.0)
    assert contact.unheard_controller(60.0, LAG_S) == HEARD
    assert not contact.try_step_aside(60.0, LAG_S)


def test_one_answer_ends_the_silence(contact):
    contact.answered()
    assert contact.is_heard
    assert contact.unheard_controller(100.0, LAG_S) == HEARD
    assert not contact.try_step_aside(100.0, LAG_S)


def test_a_new_controller_has_its_own_time(contact):
    contact.unanswered(EPOCH + 1, 9.0)
    assert contact.unheard_controller(18.0, LAG_S) == HEARD
    assert contact.unheard_controller(19.0, LAG_S) == EPOCH + 1


def test_a_broker_steps_aside_after_two_lag_limits_and_then_after_twice_as_many(contact):
    times = [second for second in range(200) if contact.try_step_aside(float(second), LAG_S)]
    assert times == [20, 60, 140]


def test_while_it_steps_aside_again_and_again_it_never_waits_for_more_than_64_lag_limits(contact):
    times = [tenth for tenth in range(0, 30_000, 10) if contact.try_step_aside(tenth, LAG_S)]
    assert times[-1] - times[-2] == 640


def test_a_broker_that_has_stepped_aside_still_says_that_it_does_not_hear_the_controller(contact):
    assert contact.try_step_aside(20.0, LAG_S)
    assert contact.unheard_controller(20.1, LAG_S) == EPOCH
