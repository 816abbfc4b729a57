"""The supervisor with programs that behave worse than brokers do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.cli.supervising import broker_supervisor
from tidemill.cli.supervising.broker_plan import BrokerPlan
from tidemill.cli.supervising.broker_supervisor import BrokerSupervisor
from tidemill.cli.supervising.log_output import LogOutput
from tidemill.core.clock import SystemClock

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

GOOD = "print('ready: h:1', flush=True); import time; time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {GOOD}"
CANNOT_START = "import sys; print('error: no such port', file=sys.stderr); sys.exit(2)"
GARBAGE = f"import os; [os.write(2, b'x' * 65536) for _ in range(160)]; {GOOD}"


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch):
    monkeypatch.setattr(broker_supervisor, "RESTART_AFTER_S", 0.0)
    monkeypatch.setattr(broker_supervisor, "STOP_S", 0.3)


class Supervised:
    """A supervisor of these programs; it is stopped when all are ready."""

    def __init__(self, log_path: Path, *programs: str) -> None:
        self._log_path = log_path
        self.plans = [
            BrokerPlan(
                broker_id=broker_id,
                data_dir=f"d{broker_id}",
                settings=(),
                flags=(),
                program=(sys.executable, "-c", program),
            )
            for broker_id, program in enumerate(programs)
        ]
        self.exit_code = -1
        self.ready: list[str] = []

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    async def run(self) -> None:
        with self._log_path.open("wb") as log:
            supervisor = BrokerSupervisor(
                self.plans,
                facts="facts",
                output=LogOutput(log.fileno()),
                all_ready=lambda addresses: self._all_ready(supervisor, addresses),
                clock=SystemClock(),
            )
            self.exit_code = await supervisor.run()

    def _all_ready(self, supervisor: BrokerSupervisor, addresses: str) -> None:
        self.ready.append(addresses)
        supervisor.stop()


def _supervised(run, tmp_path, *programs: str) -> Supervised:
    supervised = Supervised(tmp_path / "log", *programs)
    run(supervised.run())
    return supervised


def test_a_broker_that_cannot_live_ends_all_after_five_restarts(run, tmp_path):
    done = _supervised(run, tmp_path, "import sys; sys.exit(7)", GOOD)
    assert done.exit_code == 1
    assert done.log.count("broker 0 ended with exit code 7; starting it again") == 5
    assert "broker 0 ended with exit code 7, 6 times in 5 min: all brokers stop; " in done.log
    assert "broker 1 ended" not in done.log


def test_a_broker_that_a_person_must_mend_is_not_tried_again(run, tmp_path):
    done = _supervised(run, tmp_path, GOOD, CANNOT_START)
    assert done.exit_code == 1
    assert "[broker 1] error: no such port\n" in done.log
    assert "broker 1 ended with exit code 2: mend what its last line says" in done.log
    assert "starting it again" not in done.log


def test_a_program_that_cannot_be_started_is_tried_again_as_often_as_one_that_ends(run, tmp_path):
    supervised = Supervised(tmp_path / "log", GOOD)
    supervised.plans = [replace(supervised.plans[0], program=(str(tmp_path / "missing"),))]
    run(supervised.run())
    assert supervised.exit_code == 1
    assert supervised.log.count("[broker 0] cannot be started: No such file") == 6


def test_all_ready_is_said_once_with_the_facts_before_it(run, tmp_path):
    done = _supervised(run, tmp_path, GOOD, GOOD)
    assert done.exit_code == 0
    first, second, facts = done.log.splitlines()
    assert first.startswith("broker 0 h:1 d0 pid ")
    assert second.startswith("broker 1 h:1 d1 pid ")
    assert facts == "facts"
    assert done.ready == ["h:1,h:1"]


def test_a_broker_that_does_not_end_is_killed_and_named(run, tmp_path):
    done = _supervised(run, tmp_path, GOOD, DEAF)
    assert done.exit_code == 1
    assert "[supervisor] broker 1 did not end within 0 s: SIGKILL" in done.log
    assert "broker 0 did not" not in done.log


def test_a_broker_that_writes_megabytes_without_a_line_end_disturbs_nobody(run, tmp_path):
    done = _supervised(run, tmp_path, GARBAGE, GOOD)
    assert done.exit_code == 0
    assert max(map(len, done.log.splitlines())) < 100_000


def test_a_broker_whose_parent_is_gone_already_ends_at_once():
    code = "from tidemill.cli.supervising.parent_death import end_with_parent; end_with_parent(1)"
    alone = f"{code}; print('still here')"
    ran = subprocess.run([sys.executable, "-c", alone], capture_output=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (1, b"")
