from __future__ import annotations

import subprocess

import pytest

from tidemill.spark.pipelines.framework.child_processes import leaving_no_process


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


def test_processes_that_a_broken_start_has_left_are_ended_and_no_others():
    started: list[subprocess.Popen[bytes]] = []

    def start_and_break_off() -> None:
        with leaving_no_process():
            started.append(sleeper())
            raise KeyboardInterrupt

    before = sleeper()
    try:
        with pytest.raises(KeyboardInterrupt):
            start_and_break_off()
        assert started[0].wait(60) == -9
        assert before.poll() is None
    finally:
        before.kill()
        before.wait()


def test_a_start_that_succeeds_keeps_its_processes():
    with leaving_no_process():
        inside = sleeper()
    try:
        assert inside.poll() is None
    finally:
        inside.kill()
        inside.wait()
