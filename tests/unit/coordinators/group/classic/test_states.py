"""The state table of classic groups, in the code and in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.classic_desk import Desk
from tidemill.coordinators.group.classic.states import TRANSITIONS, ClassicState, may_follow
from tidemill.core.errors import InvariantViolation

PAGE = Path(__file__).parents[5] / "docs/internals/coordinators.md"


def test_page_shows_the_state_table_of_the_code():
    rows = [f"| {row.before.value} | {row.event} | {row.after.value} |" for row in TRANSITIONS]
    shown = [line for line in PAGE.read_text().splitlines() if line in rows]
    assert shown == rows


def test_every_state_can_be_entered_and_left():
    assert {row.before for row in TRANSITIONS} == set(ClassicState)
    assert {row.after for row in TRANSITIONS} == set(ClassicState)


def test_step_that_is_not_in_the_table_is_a_bug():
    assert not may_follow(ClassicState.EMPTY, ClassicState.COMPLETING_REBALANCE)
    rounds = Desk().group._rounds
    with pytest.raises(InvariantViolation):
        rounds._enter(ClassicState.COMPLETING_REBALANCE)
