"""Plays the stories of this folder.

A story is text. Blocks of commands are followed by a line of dashes and what is expected to come of
them, up to the next empty line; everything else is told to the reader. The first word of a file's
name says which stage it is played on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from tests.scenario.classic_stage import ClassicStage
from tests.scenario.consumer_stage import ConsumerStage

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"(?P<commands>(?:^[^\s#].*\n)+)^----\n(?P<expected>(?:^.+\n)*)", re.M)


class Stage(Protocol):
    """Where a story is played: knows its commands, and tells what comes of each."""

    def play(self, command: str) -> list[str]: ...


STAGES: dict[str, Callable[[], Stage]] = {"classic": ClassicStage, "consumer": ConsumerStage}


def played(text: str, stage: Stage) -> str:
    """The story with what really happened."""

    def play(block: re.Match[str]) -> str:
        lines = [line for command in block["commands"].splitlines() for line in stage.play(command)]
        return f"{block['commands']}----\n" + "".join(f"{line}\n" for line in lines)

    return BLOCK.sub(play, text)


@pytest.mark.parametrize("story", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_story_goes_as_it_is_told(story: Path, request: pytest.FixtureRequest) -> None:
    told = story.read_text()
    happened = played(told, STAGES[story.stem.partition("_")[0]]())
    if request.config.getoption("--rewrite", default=False):
        story.write_text(happened)
    else:
        assert happened == told


def test_story_that_goes_otherwise_is_noticed() -> None:
    told = "join ana\n----\nana works\n"
    assert played(told, ClassicStage()) != told
