"""Readers at followers (KIP-392) during faults: nothing above the mark, nothing taken back.

I2 one value per offset, I3 no phantom, I8 only below the mark, and what was read stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.campaign import run_campaign

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_I8_what_followers_give_to_read_is_what_everybody_reads(seed):
    done = run_campaign(seed, brokers=3, faults=6, operations=90, reads_near=True)
    assert done.near_bytes > 0


@pytest.mark.slow
def test_a_planted_bug_of_a_follower_is_found():
    """In a process of its own, which runs the sources: compiled code cannot be changed."""
    hunted = subprocess.run(
        [sys.executable, "-m", "tests.support.interpreted", "tests.sim.near_hunt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert hunted.returncode == 0, hunted.stderr[-2000:]
    assert len(hunted.stdout.splitlines()) == 2
    assert "not in" not in hunted.stdout
