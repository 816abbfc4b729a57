"""A seed determines a run: everything between the seams follows from it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.campaign import run_campaign
from tests.sim.loads import LOADS

OPERATIONS = 500


@pytest.mark.slow
def test_the_same_seed_repeats_a_run_with_a_crash_to_the_last_byte():
    runs = [
        run_campaign(11, brokers=1, faults=1, operations=OPERATIONS, kinds=["crash"])
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].acked > OPERATIONS // 2


def test_another_seed_gives_another_run():
    traces = {run_campaign(s, brokers=1, faults=1, operations=40).trace for s in range(3)}
    assert len(traces) == 3


@pytest.mark.slow
def test_the_same_seed_repeats_a_run_of_three_brokers():
    first = run_campaign(5, brokers=3, faults=3, operations=60)
    assert first == run_campaign(5, brokers=3, faults=3, operations=60)


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_R5_a_run_is_the_same_in_a_process_that_hashes_differently(load):
    """The hash of a string differs per process: code that iterates over a set would show."""
    code = (
        "from tests.sim.loads import LOADS;"
        f"print(LOADS[{load!r}](7, brokers=3, faults=2, operations=60).trace)"
    )
    traces = set()
    for salt in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": salt,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout)
    assert len(traces) == 1
