"""How many campaigns and planted bugs there are: what docs/internals/simulation.md says of them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sim import (
    test_faults,
    test_found_seeds,
    test_group_faults,
    test_hold_faults,
    test_near_replica,
    test_transactions,
)
from tidemill.testing.mutants import MUTANTS

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "simulation.md"
MODULES = (
    test_faults,
    test_found_seeds,
    test_group_faults,
    test_hold_faults,
    test_near_replica,
    test_transactions,
)
RUNS = {"run_campaign", "run_groups", "run_holds", "run_transactions"}
CAMPAIGNS_MIN = 300


def _cases(test: object) -> int:
    """How often pytest runs a test: once for each row of its parameters."""
    marks = [one for one in getattr(test, "pytestmark", []) if one.name == "parametrize"]
    count = 1
    for mark in marks:
        count *= len(mark.args[1])
    return count


def _campaigns() -> int:
    tests = [
        value
        for module in MODULES
        for name, value in vars(module).items()
        if name.startswith("test_") and RUNS.intersection(value.__code__.co_names)
    ]
    return sum(map(_cases, tests))


def _told(pattern: str) -> int:
    found = re.search(pattern, PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1])


def test_the_campaigns_of_the_tests_are_as_many_as_the_page_says():
    assert _campaigns() >= CAMPAIGNS_MIN
    assert _told(r"CI runs (\d+) campaigns") == _campaigns()


def test_the_planted_bugs_are_as_many_as_the_page_says():
    assert _told(r"has (\d+) named bugs") == len(MUTANTS)
