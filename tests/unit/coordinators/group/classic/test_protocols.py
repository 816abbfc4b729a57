"""Which protocol a classic group chooses."""

from __future__ import annotations

import pytest

from tidemill.coordinators.group.classic.protocols import ProtocolSupport
from tidemill.core.errors import InvariantViolation


def _elected(*ballots: str) -> str:
    support = ProtocolSupport()
    for ballot in ballots:
        support.add(ballot)
    return support.elect(ballots)


def test_T43_first_choice_wins_if_all_offer_it():
    assert _elected("ab", "ab") == "a"


def test_T43_protocol_that_one_member_lacks_cannot_win():
    assert _elected("ab", "ab", "b") == "b"


def test_T43_most_votes_win():
    assert _elected("ab", "ba", "ba") == "b"


def test_T43_of_equals_the_one_voted_for_first_wins():
    assert _elected("ba", "ab") == "b"


def test_members_that_left_do_not_count():
    support = ProtocolSupport()
    support.add("ab")
    support.add("b")
    assert not support.has_common("a")
    support.remove("b")
    assert support.has_common("ca")
    assert not support.has_common("")


def test_vote_without_common_protocol_is_a_bug():
    with pytest.raises(InvariantViolation):
        _elected("a", "b")
