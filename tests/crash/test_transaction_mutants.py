"""Planted bugs of transactions are found by the crash states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HUNT = ("-m", "tests.support.interpreted", "tests.crash.transaction_hunt")
PLANTED = ["stable offset before the marker", "open transaction expires", "aborted index not cut"]


@pytest.mark.parametrize("name", PLANTED)
def test_I23_a_planted_bug_of_transactions_is_found(name):
    """In a process of its own, which runs the sources: compiled code cannot be changed."""
    hunted = subprocess.run(
        [sys.executable, *HUNT, name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert hunted.returncode == 0, hunted.stdout + hunted.stderr[-2000:]
    assert "I23" in hunted.stdout
