"""The judge of groups sees every way in which a promise can be broken."""

from __future__ import annotations

import pytest

from tests.support.group_history import GroupHistory, MemberName
from tests.support.offset_register import NO_OFFSET, Fate, OffsetRegister

ANN, BOB = MemberName("ann"), MemberName("bob")
STATIC, STATIC_AGAIN = MemberName("static-1", "cart"), MemberName("static-2", "cart")
PATIENCE_S = 6.0


class Story:
    """A group whose time is set by hand."""

    def __init__(self, *, has_generations: bool = False) -> None:
        self.time_s = 100.0
        self.is_stale = False
        self.judge = GroupHistory(
            "group",
            time=lambda: self.time_s,
            patience_s=PATIENCE_S,
            is_stale=lambda: self.is_stale,
            has_generations=has_generations,
        )

    def told(self, name, epoch, partitions, plan=b"", asked=None):
        asked = asked or self.judge.ask()
        self.judge.told_partitions(name, epoch, partitions, asked, plan)

    def commit(self, name, epoch, partition=0):
        asked = self.judge.ask()
        sent = self.judge.begin_commit(name, epoch, partition, asked)
        self.judge.committed(name, epoch, partition, asked, sent)


BOTH = pytest.mark.parametrize("has_generations", [False, True])


@BOTH
def test_a_partition_that_was_given_up_may_have_another_owner(has_generations):
    story = Story(has_generations=has_generations)
    story.told(ANN, 1, {0, 1}, b"first")
    story.judge.gave_up(ANN, {1})
    story.told(BOB, 2, {0}, b"second")
    story.commit(BOB, 2)


@BOTH
def test_I26_a_partition_that_was_not_given_up_is_found(has_generations):
    story = Story(has_generations=has_generations)
    story.told(ANN, 1, {0})
    story.time_s += PATIENCE_S - 0.1
    with pytest.raises(AssertionError, match=r"I26.*held by"):
        story.told(BOB, 2, {0})


def test_a_silent_member_may_lose_its_partitions():
    story = Story()
    story.told(ANN, 1, {0})
    story.time_s += PATIENCE_S
    story.told(BOB, 2, {0})


def test_I26_a_member_that_was_heard_of_may_not_lose_its_partitions():
    story = Story()
    story.told(ANN, 1, {0})
    story.time_s += PATIENCE_S
    story.judge.confirmed(ANN, 1, story.judge.ask())
    with pytest.raises(AssertionError, match=r"I26.*held by"):
        story.told(BOB, 2, {0})


def test_a_member_that_does_not_give_up_in_time_may_lose_everything():
    story = Story()
    story.told(ANN, 1, {0, 1})
    story.told(ANN, 1, {1})
    story.time_s += PATIENCE_S
    story.judge.confirmed(ANN, 1, story.judge.ask())
    story.told(BOB, 2, {0, 1})


def test_I26_two_owners_in_one_epoch_are_found_however_long_one_was_silent():
    story = Story()
    story.told(ANN, 1, {0})
    story.time_s += 100.0
    with pytest.raises(AssertionError, match=r"I26.*same epoch"):
        story.told(BOB, 1, {0})


def test_a_late_answer_of_an_older_epoch_is_no_news():
    story = Story()
    asked = story.judge.ask()
    story.told(BOB, 2, {0})
    story.told(ANN, 1, {0}, asked=asked)


def test_I26_an_older_epoch_after_a_newer_one_is_found():
    story = Story()
    story.told(BOB, 2, {0})
    with pytest.raises(AssertionError, match=r"I26.*held by"):
        story.told(ANN, 1, {0})


def test_I26_a_fenced_member_that_is_heard_is_found():
    story = Story()
    story.told(ANN, 1, {0})
    story.time_s += PATIENCE_S
    before = story.judge.ask()
    story.told(BOB, 2, {0})
    story.judge.accepted(ANN, 1, before)
    with pytest.raises(AssertionError, match=r"I26.*was given to bob"):
        story.judge.accepted(ANN, 1, story.judge.ask())


def test_a_broker_with_an_old_lease_may_hear_a_fenced_member_but_not_commit_for_it():
    story = Story()
    story.told(ANN, 1, {0})
    story.time_s += PATIENCE_S
    story.told(BOB, 2, {0})
    story.is_stale = True
    story.judge.accepted(ANN, 1, story.judge.ask())
    with pytest.raises(AssertionError, match="I26"):
        story.commit(ANN, 1)


def test_I26_a_member_that_has_left_and_is_heard_is_found():
    story = Story()
    story.told(ANN, 1, {0})
    story.judge.gave_up(ANN)
    story.judge.left(ANN)
    with pytest.raises(AssertionError, match=r"I26.*it has left"):
        story.judge.accepted(ANN, 1, story.judge.ask())


def test_a_static_member_keeps_its_partitions_under_another_id():
    story = Story(has_generations=True)
    story.told(STATIC, 1, {0}, b"plan")
    story.judge.joins(STATIC_AGAIN)
    story.told(STATIC_AGAIN, 1, {0}, b"plan")


@BOTH
def test_I26_a_replaced_static_member_that_is_heard_is_found(has_generations):
    story = Story(has_generations=has_generations)
    story.judge.joined(STATIC, 1, story.judge.ask())
    story.told(STATIC, 1, {0})
    story.judge.joined(STATIC_AGAIN, 1, story.judge.ask())
    story.told(STATIC_AGAIN, 1, {0})
    with pytest.raises(AssertionError, match=r"I26.*replaced"):
        story.commit(STATIC, 1)


def test_I26_a_commit_of_an_old_generation_is_found():
    story = Story(has_generations=True)
    story.told(ANN, 1, {0})
    story.commit(ANN, 1)
    story.judge.gave_up(ANN)
    story.told(BOB, 2, {1})
    with pytest.raises(AssertionError, match=r"I26.*in generation 2"):
        story.commit(ANN, 1)


def test_a_commit_that_was_sent_in_its_generation_may_be_answered_later():
    story = Story(has_generations=True)
    story.told(ANN, 1, {0})
    asked = story.judge.ask()
    sent = story.judge.begin_commit(ANN, 1, 0, asked)
    story.judge.gave_up(ANN)
    story.told(BOB, 2, {0})
    story.judge.committed(ANN, 1, 0, asked, sent)


def test_I26_an_old_member_epoch_may_commit_only_what_nobody_else_has_had():
    story = Story()
    story.told(ANN, 1, {0, 1})
    story.judge.gave_up(ANN, {1})
    story.told(BOB, 2, {0})
    story.commit(ANN, 1, 1)
    with pytest.raises(AssertionError, match=r"I26.*bob has had since epoch 2"):
        story.commit(ANN, 1, 0)


def test_I26_two_plans_of_one_generation_are_found():
    story = Story(has_generations=True)
    story.told(ANN, 1, {0}, b"one")
    with pytest.raises(AssertionError, match=r"I26.*plan"):
        story.told(BOB, 1, {1}, b"other")


@BOTH
def test_I28_an_epoch_that_goes_back_is_found(has_generations):
    story = Story(has_generations=has_generations)
    story.told(ANN, 3, {0})
    with pytest.raises(AssertionError, match=r"I28.*the group was in 3"):
        story.judge.joined(BOB, 2, story.judge.ask())


def test_I28_a_member_whose_epoch_goes_back_is_found():
    story = Story()
    story.told(ANN, 3, {0})
    with pytest.raises(AssertionError, match=r"I28.*was in 3"):
        story.told(ANN, 2, {0})


def test_owners_are_those_who_were_told_last():
    story = Story()
    story.told(ANN, 1, {0, 1})
    story.told(ANN, 1, {1})
    story.told(BOB, 2, {2})
    assert story.judge.owned([ANN, BOB]) == {1: ["ann"], 2: ["bob"]}
    assert story.judge.owned([BOB]) == {2: ["bob"]}


# --- committed offsets ---------------------------------------------------------------------------


def register(*commits):
    """A register with commits that were each asked for and settled at these moments."""
    made = OffsetRegister("offset")
    for asked, answered, fate in commits:
        sent = made.commit(asked)
        if fate is not Fate.UNKNOWN:
            sent.settle(fate, answered)
    return made


DONE, UNKNOWN, REFUSED = Fate.DONE, Fate.UNKNOWN, Fate.REFUSED


@pytest.mark.parametrize(
    ("commits", "reads"),
    [
        ([], [(NO_OFFSET, 1, 2)]),
        ([(1, 2, DONE)], [(0, 3, 4)]),
        ([(1, 5, DONE)], [(NO_OFFSET, 2, 3), (0, 3, 4), (0, 6, 7)]),
        ([(1, 9, UNKNOWN)], [(NO_OFFSET, 2, 3), (0, 4, 5)]),
        ([(1, 9, UNKNOWN)], [(NO_OFFSET, 2, 3), (NO_OFFSET, 4, 5)]),
        ([(1, 2, DONE), (3, 9, UNKNOWN)], [(0, 4, 5), (1, 6, 7)]),
        ([(1, 2, UNKNOWN), (3, 4, DONE)], [(1, 5, 6), (0, 7, 8)]),
        ([(1, 9, DONE), (2, 8, DONE)], [(1, 3, 4), (0, 10, 11)]),
        ([(1, 2, REFUSED)], [(NO_OFFSET, 3, 4)]),
        ([(1, 2, DONE), (3, 4, DONE)], [(1, 5, 6)]),
    ],
)
def test_a_history_of_a_register_is_fine(commits, reads):
    made = register(*commits)
    for value, asked, answered in reads:
        made.read(value, asked=asked, answered=answered)
    made.check()


@pytest.mark.parametrize(
    ("commits", "reads"),
    [
        ([(1, 2, DONE)], [(NO_OFFSET, 3, 4)]),  # lost
        ([(1, 2, DONE), (3, 4, DONE)], [(0, 5, 6)]),  # went back
        ([(1, 2, DONE), (3, 9, UNKNOWN)], [(1, 4, 5), (0, 6, 7)]),  # was seen, and is gone
        ([(1, 2, REFUSED)], [(0, 3, 4)]),
        ([(5, 6, DONE)], [(0, 1, 2)]),  # before it was sent
        ([(1, 2, DONE)], [(7, 3, 4)]),  # of nobody
        ([(1, 2, UNKNOWN), (1, 2, UNKNOWN)], [(0, 3, 4), (1, 5, 6), (0, 7, 8)]),  # back and forth
        ([(1, 9, DONE), (3, 4, DONE)], [(0, 1, 2), (0, 5, 6)]),  # the second is lost
    ],
)
def test_I28_no_history_of_a_register_passes(commits, reads):
    made = register(*commits)
    for value, asked, answered in reads:
        made.read(value, asked=asked, answered=answered)
    with pytest.raises(AssertionError, match="I28"):
        made.check()
