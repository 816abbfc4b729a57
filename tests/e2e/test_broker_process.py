"""The launcher of broker processes: how it reports a program that does not start or end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tidemill.testing.broker_process import BrokerProcess, BrokerStartFailed
from tidemill.testing.child_process import ChildProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('deaf', flush=True); time.sleep(60)"
)


def test_a_broker_that_ends_at_once_is_reported_with_its_last_line(tmp_path):
    broker = BrokerProcess(tmp_path / "data", "no.such.key=1")
    with pytest.raises(BrokerStartFailed, match=r"did not start: .*no\.such\.key"):
        broker.start()


def test_a_broker_that_is_never_ready_is_killed(tmp_path):
    broker = BrokerProcess(tmp_path / "data", command=(sys.executable, "-c", DEAF))
    with pytest.raises(BrokerStartFailed, match=r"not ready after 0\.1 s"):
        broker.start(timeout_s=0.1)
    assert broker.stop() == 0


def test_a_program_that_ignores_sigterm_is_killed_and_reported(tmp_path):
    program = ChildProcess([sys.executable, "-c", DEAF], tmp_path / "log")
    program.spawn()
    while program.output() != "deaf\n":
        assert program.wait(0.01) is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.stop(timeout_s=0.1)
    assert program.exit_code == -signal.SIGKILL


def test_output_is_that_of_the_last_run(tmp_path):
    program = ChildProcess([sys.executable, "-c", "print('run')"], tmp_path / "log")
    for _ in range(2):
        program.spawn()
        program.wait(30)
        assert program.output() == "run\n"
    assert (tmp_path / "log").read_text() == "run\nrun\n"
