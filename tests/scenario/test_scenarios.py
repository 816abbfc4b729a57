"""Plays the stories of this folder.

A story is a text file. After each block of commands come a line of dashes and the expected output,
up to the next empty line; all other lines are comments. The first word of the file name is the
stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from tests.scenario.classic_stage import ClassicStage
from tests.scenario.consumer_stage import ConsumerStage
from tests.scenario.replication_stage import ReplicationStage
from tests.scenario.transaction_stage import TransactionStage
from tidemill.testing.mutants import MUTANTS

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"(?P<commands>(?:^[^\s#].*\n)+)^----\n(?P<expected>(?:^.+\n)*)", re.M)

FAST_FAILURES = ("replication_no_divergence", "replication_no_loss_by_truncation")
ELECTIONS = (
    "replication_hand_over",
    "replication_last_replica_standing",
    "replication_longest_log",
    "replication_new_disk",
)
DOUBTS = ("replication_unknown_isr_change", "replication_zombie_leader")
CONTROLLERS = ("replication_two_controllers",)
MARKS = ("replication_deleted_records", "replication_slow_disk")
MOVES = (
    "replication_reassignment",
    "replication_reassignment_crash",
    "replication_reassignment_taken_back",
)
DELETIONS = ("replication_deletion_during_a_flush",)
NUMBERED = (*FAST_FAILURES, *ELECTIONS, *DOUBTS, *CONTROLLERS, *MARKS, *MOVES, *DELETIONS)
"""Stories that prove a requirement: a test of its own names it."""


class Stage(Protocol):
    """Runs the commands of a story and returns their output."""

    def play(self, command: str) -> list[str]: ...

    def close(self) -> None: ...


STAGES: dict[str, Callable[[], Stage]] = {
    "classic": ClassicStage,
    "consumer": ConsumerStage,
    "replication": ReplicationStage,
    "transaction": TransactionStage,
}


def played(text: str, stage: Stage) -> str:
    """The story with its actual output."""

    def play(block: re.Match[str]) -> str:
        lines = [line for command in block["commands"].splitlines() for line in stage.play(command)]
        return f"{block['commands']}----\n" + "".join(f"{line}\n" for line in lines)

    return BLOCK.sub(play, text)


def told_in(*names: str) -> pytest.MarkDecorator:
    """These stories."""
    paths = [FOLDER / f"{name}.txt" for name in names]
    return pytest.mark.parametrize("story", paths, ids=lambda path: path.stem)


def check(story: Path, request: pytest.FixtureRequest) -> None:
    """Play a story; with `--rewrite`, write down what happened instead."""
    told = story.read_text()
    with closing(STAGES[story.stem.partition("_")[0]]()) as stage:
        happened = played(told, stage)
    if request.config.getoption("--rewrite", default=False):
        story.write_text(happened)
    else:
        assert happened == told


@told_in(*sorted(path.stem for path in FOLDER.glob("*.txt") if path.stem not in NUMBERED))
def test_story_plays_as_written(story, request):
    check(story, request)


@told_in(*FAST_FAILURES)
def test_F81_I10_story_of_fast_failures_plays_as_written(story, request):
    check(story, request)


@told_in(*ELECTIONS)
def test_F80_F82_I12_story_of_an_election_plays_as_written(story, request):
    check(story, request)


@told_in(*DOUBTS)
def test_I8_I14_I15_story_of_a_leader_in_doubt_plays_as_written(story, request):
    check(story, request)


@told_in(*CONTROLLERS)
def test_I33_story_of_controllers_plays_as_written(story, request):
    check(story, request)


@told_in(*MARKS)
def test_F79_I1_I9_story_of_marks_plays_as_written(story, request):
    check(story, request)


@told_in(*MOVES)
def test_F100_I8_I12_story_of_a_move_plays_as_written(story, request):
    check(story, request)


@told_in(*DELETIONS)
def test_I34_story_of_a_deletion_plays_as_written(story, request):
    check(story, request)


@pytest.mark.parametrize(
    "name",
    [
        "first suspect instead of the longest log",
        "shortest log leads",
        "absent suspect not waited for",
    ],
)
def test_I12_story_of_the_longest_log_finds_a_planted_bug(name):
    told = (FOLDER / "replication_longest_log.txt").read_text()
    with MUTANTS[name].planted(), closing(ReplicationStage()) as stage:
        assert played(told, stage) != told


def test_story_that_plays_differently_is_noticed():
    told = "join ana\n----\nana works\n"
    assert played(told, ClassicStage()) != told
