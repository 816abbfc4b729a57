"""The in-sync set that a leader must respect: what each outcome of a proposal does to it."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.replication.in_sync import InSync, Members
from tidemill.replication.isr import FollowerPosition

LEADER, SECOND, THIRD = 1, 2, 3
BASE = 5
TWO: Members = ((LEADER, 11), (SECOND, 12))
ALL: Members = (*TWO, (THIRD, 13))

UNKNOWN_OUTCOMES = [
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
]
REFUSALS = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST]


@pytest.fixture
def in_sync() -> InSync:
    """The leader and the second are in sync; the third was proposed."""
    made = InSync(LEADER, (LEADER, SECOND), BASE)
    assert made.try_next_proposal(ALL) == ALL
    made.sent(ALL)
    return made


def positions(**ends: int) -> dict[int, FollowerPosition]:
    ids = {"second": SECOND, "third": THIRD}
    return {ids[name]: FollowerPosition(end, end) for name, end in ends.items()}


def test_nothing_is_proposed_when_nothing_is_to_change():
    assert InSync(LEADER, (LEADER, SECOND), BASE).try_next_proposal(TWO) is None


def test_I14_a_proposed_member_counts_from_the_moment_the_proposal_is_sent(in_sync):
    assert in_sync.feared == (THIRD,)
    assert in_sync.maximal == (LEADER, SECOND, THIRD)


def test_I14_a_member_that_is_to_leave_counts_until_the_controller_has_agreed():
    in_sync = InSync(LEADER, (LEADER, SECOND, THIRD), BASE)
    in_sync.sent(TWO)
    assert in_sync.maximal == (LEADER, SECOND, THIRD)
    in_sync.accepted(BASE, (LEADER, SECOND), BASE + 1)
    assert in_sync.maximal == (LEADER, SECOND)


def test_an_answer_with_a_higher_partition_epoch_settles(in_sync):
    in_sync.accepted(BASE, (LEADER, SECOND, THIRD), BASE + 1)
    assert (in_sync.committed, in_sync.feared) == ((LEADER, SECOND, THIRD), ())
    assert in_sync.try_next_proposal(ALL) is None


def test_an_image_with_a_higher_partition_epoch_settles(in_sync):
    in_sync.unanswered(BASE)
    assert in_sync.saw((LEADER, SECOND), BASE + 1)
    assert (in_sync.maximal, in_sync.is_unsettled) == ((LEADER, SECOND), False)


@pytest.mark.parametrize("epoch", [BASE - 1, BASE])
def test_H2_an_image_with_a_known_partition_epoch_keeps_whom_the_leader_fears(in_sync, epoch):
    assert not in_sync.saw((LEADER, SECOND), epoch)
    assert in_sync.feared == (THIRD,)


@pytest.mark.parametrize("code", REFUSALS)
def test_a_definite_no_to_the_only_attempt_ends_the_fear(in_sync, code):
    in_sync.refused(BASE, code)
    assert (in_sync.feared, in_sync.is_unsettled) == ((), False)


@pytest.mark.parametrize("code", REFUSALS)
def test_H1_a_definite_no_after_an_unanswered_attempt_does_not_end_it(in_sync, code):
    in_sync.unanswered(BASE)
    in_sync.refused(BASE, code)
    assert in_sync.feared == (THIRD,)


def test_H1_an_unanswered_proposal_counts_as_made_and_is_sent_again_as_it_was(in_sync):
    in_sync.unanswered(BASE)
    assert in_sync.feared == (THIRD,)
    assert in_sync.try_next_proposal(TWO) == ALL


@pytest.mark.parametrize("code", UNKNOWN_OUTCOMES)
def test_H1_every_other_error_leaves_the_proposal_in_doubt(in_sync, code):
    in_sync.refused(BASE, code)
    assert in_sync.feared == (THIRD,)
    assert in_sync.is_unsettled


def test_a_touch_settles_what_is_in_doubt(in_sync):
    in_sync.unanswered(BASE)
    in_sync.refused(BASE, ErrorCode.INELIGIBLE_REPLICA)
    assert in_sync.try_next_proposal(TWO) == TWO
    in_sync.sent(TWO)
    assert in_sync.feared == (THIRD,)
    in_sync.accepted(BASE, (LEADER, SECOND), BASE + 1)
    assert (in_sync.maximal, in_sync.is_unsettled) == ((LEADER, SECOND), False)


def test_an_answer_that_changed_nothing_does_not_settle_what_is_in_doubt(in_sync):
    in_sync.unanswered(BASE)
    in_sync.accepted(BASE, (LEADER, SECOND), BASE)
    assert in_sync.feared == (THIRD,)


@pytest.mark.parametrize("code", [*REFUSALS, *UNKNOWN_OUTCOMES])
def test_an_answer_about_an_earlier_state_means_nothing(in_sync, code):
    in_sync.saw((LEADER, SECOND), BASE + 1)
    in_sync.sent(ALL)
    in_sync.refused(BASE, code)
    in_sync.unanswered(BASE)
    assert in_sync.feared == (THIRD,)
    in_sync.refused(BASE + 1, ErrorCode.INELIGIBLE_REPLICA)
    assert in_sync.feared == ()


# --- marks ---------------------------------------------------------------------------------------


def test_F79_the_marks_are_those_of_the_slowest_that_counts(in_sync):
    assert in_sync.agreed(9, 9, positions(second=7, third=5), 1) == (5, 5)


def test_one_outside_does_not_count_unless_it_is_a_candidate():
    in_sync = InSync(LEADER, (LEADER, SECOND), BASE)
    followers = positions(second=7, third=5)
    assert in_sync.agreed(9, 9, followers, 1) == (7, 7)
    in_sync.set_candidates((THIRD,))
    assert in_sync.agreed(9, 9, followers, 1) == (5, 5)


@pytest.mark.parametrize("third", [{"third": -1}, {}])
def test_H8_a_member_without_a_known_position_holds_the_marks(in_sync, third):
    assert in_sync.agreed(9, 9, positions(second=7, **third), 1) == (-1, -1)


def test_I14_nothing_is_agreed_below_the_minimum_however_many_are_proposed(in_sync):
    assert in_sync.agreed(9, 9, positions(second=7, third=7), 3) == (-1, -1)


def test_only_a_leader_that_nobody_else_can_succeed_decides_alone(in_sync):
    alone = InSync(LEADER, (LEADER,), BASE)
    assert alone.is_alone(1)
    assert not alone.is_alone(2)
    alone.sent(TWO)
    assert not alone.is_alone(1)
