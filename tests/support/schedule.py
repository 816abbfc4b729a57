"""Which worker runs which tests: a file stays whole, and so does the folder of the longest ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
TOGETHER = "tests/spark/"
"""One session for all of them: a second one costs more than it saves."""


class FileSchedule(LoadScopeScheduling):
    """Files in the order of the collection, each to the worker that is free.

    What a module sets up is set up once, and which tests share a process depends less on chance.
    The marks of xdist's own groups have no effect: it writes them to a field that pytest 9.2 does
    not read any more.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False  # how many tests a file has says nothing
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return stays_with(nodeid)


def stays_with(nodeid: str) -> str:
    """The file or folder whose tests one worker runs."""
    return TOGETHER if nodeid.startswith(TOGETHER) else nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """No worker shall be idle while another one has all of them before it."""
    folder = TESTS.parent / TOGETHER
    items.sort(key=lambda item: folder not in item.path.parents)
