"""The commands of docs/guides/cluster.md run unchanged, but for the ports."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import DEADLINE_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
TIDEMILL = f"{shlex.quote(sys.executable)} -m tidemill.cli.main"


class Shell:
    """Runs the guide's lines in one directory; the brokers of an earlier `up` are stopped first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._up: subprocess.Popen[str] | None = None
        self._bootstrap = ""

    def run(self, line: str) -> str:
        """What the command printed."""
        command = re.sub(r"\btidemill(?= )", TIDEMILL, line)
        if line.startswith("tidemill up"):
            self.stop()
            return self._start(f"exec {command} --listen 127.0.0.1:0")
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env={"TIDEMILL_BOOTSTRAP": self._bootstrap},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def _start(self, command: str) -> str:
        self._up = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._up.stdout is not None
        line = self._up.stdout.readline()
        self._bootstrap = line.removeprefix("ready: ").strip()
        return line

    def stop(self) -> None:
        if self._up is not None:
            with self._up as up:
                up.terminate()
                assert up.wait(DEADLINE_S) == 0
            self._up = None


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    started = Shell(tmp_path)
    yield started
    started.stop()


def commands_of(guide: Path) -> list[tuple[str, str]]:
    """Every command of a guide, and what it prints if the guide says so."""
    indented = re.findall(r"^    (.*\btidemill .*)$", guide.read_text(), re.MULTILINE)
    split = (re.split(r"\s+# prints: ", line) for line in indented)
    return [(line, printed[0] if printed else "") for line, *printed in split]


def test_F131_the_guide_from_one_broker_to_three_can_be_followed(shell):
    commands = commands_of(GUIDE)
    assert len(commands) == 25
    for line, printed in commands:
        out = shell.run(line)
        assert not printed or out == f"{printed}\n", line
