"""Which worker runs which tests: a file stays whole, and so does the folder of the longest ones."""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
TOGETHER = "tests/spark/"
"""One session for all of them: a second one costs more than it saves."""
WAITING = "tests/e2e/"


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


def in_turns(items: list[pytest.Item]) -> None:
    """The longest tests first; files that wait and files that compute take turns.

    Tests of real processes mostly wait, simulations never do: together they use the processors.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(stays_with(item.nodeid), []).append(item)
    waiting = [name for name in files if name.startswith(WAITING)]
    computing = [
        name
        for name, tests in files.items()
        if name not in (TOGETHER, *waiting) and any(one.get_closest_marker("slow") for one in tests)
    ]
    pairs = chain.from_iterable(zip_longest(waiting, computing))
    order = dict.fromkeys(chain([TOGETHER], pairs, files))
    items[:] = chain.from_iterable(files.get(name, ()) for name in order if name)
