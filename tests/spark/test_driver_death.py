"""The driver is killed in the middle of a batch and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.spark.queries import put
from tests.support.topics import create_topic

CHECKOUT = Path(__file__).parents[2]
DEADLINE_S = 300.0


def driver(bootstrap: str, topic: str, folder: Path, hang_at: int) -> subprocess.Popen[str]:
    arguments = ("-m", "tests.spark.driver_program", bootstrap, topic, str(folder), str(hang_at))
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """The driver and its JVM at once, without a chance to tidy up."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.e2e
def test_F133_a_driver_that_was_killed_in_a_batch_misses_nothing_when_it_comes_back(
    running, topic, tmp_path
):
    # Given a driver that is killed after half of its second batch
    create_topic(running.bootstrap, topic, 2)
    put(running.bootstrap, topic, range(60), partition=0)
    put(running.bootstrap, topic, range(60, 120), partition=1)
    first = driver(running.bootstrap, topic, tmp_path, hang_at=1)
    deadline = threading.Timer(DEADLINE_S, kill, [first])
    deadline.start()
    said = next((line for line in first.stdout if line == "batch 1\n"), "nothing")
    deadline.cancel()
    kill(first)
    first.stdout.close()
    assert said == "batch 1\n"

    # When records come while it is down, and it is started again
    put(running.bootstrap, topic, range(120, 130))
    second = driver(running.bootstrap, topic, tmp_path, hang_at=-1)
    second.communicate(timeout=DEADLINE_S)

    # Then every number was read, and only those of the interrupted batch twice
    got = [int(line) for line in (tmp_path / "got").read_text().split()]
    assert second.returncode == 0
    assert sorted(set(got)) == list(range(130))
    assert len(got) == 130 + 20
