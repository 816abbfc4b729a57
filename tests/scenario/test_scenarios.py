"""Plays the stories of this folder.

A story is a text file. After each block of commands come a line of dashes and the expected output,
up to the next empty line; all other lines are comments. The first word of the file name is the
stage.
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
    """Runs the commands of a story and returns their output."""

    def play(self, command: str) -> list[str]: ...


STAGES: dict[str, Callable[[], Stage]] = {"classic": ClassicStage, "consumer": ConsumerStage}


def played(text: str, stage: Stage) -> str:
    """The story with its actual output."""

    def play(block: re.Match[str]) -> str:
        lines = [line for command in block["commands"].splitlines() for line in stage.play(command)]
        return f"{block['commands']}----\n" + "".join(f"{line}\n" for line in lines)

    return BLOCK.sub(play, text)


@pytest.mark.parametrize("story", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_story_plays_as_written(story, request):
    told = story.read_text()
    happened = played(told, STAGES[story.stem.partition("_")[0]]())
    if request.config.getoption("--rewrite", default=False):
        story.write_text(happened)
    else:
        assert happened == told


def test_story_that_plays_differently_is_noticed():
    told = "join ana\n----\nana works\n"
    assert played(told, ClassicStage()) != told
