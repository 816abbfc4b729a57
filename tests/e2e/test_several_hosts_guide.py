"""The commands of docs/guides/several-hosts.md run unchanged, but for the addresses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import DEADLINE_S
from tidemill.testing.zookeeper_process import ZookeeperProcess, is_available

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="needs Java and the jars of pyspark"),
]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "several-hosts.md"
TIDEMILL = f"{shlex.quote(sys.executable)} -m tidemill.cli.main"
ADDRESSES = re.compile(r"--listen \S+ --advertise \S+ --internal \S+")


class Hosts:
    """Runs the guide's lines; each `up` on a host, which is a directory, of its own."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self._directory = directory
        self._zookeeper = zookeeper
        self._ups: list[subprocess.Popen[str]] = []
        self._addresses: list[str] = []

    def run(self, line: str) -> str:
        """What the command printed."""
        command = re.sub(r"\btidemill\b", TIDEMILL, line).replace("zk1,zk2,zk3", self._zookeeper)
        if line.startswith("tidemill up"):
            return self._start(ADDRESSES.sub("--listen 127.0.0.1:0", command))
        return self._run(command, self._directory)

    def move(self, line: str) -> str:
        """Run a line on the first host, where a broker was alone."""
        command = re.sub(r"\btidemill\b", TIDEMILL, line)
        return self._run(
            command.replace("zk1,zk2,zk3", f"{self._zookeeper}/moved"), self._directory / "alone"
        )

    def _run(self, command: str, directory: Path) -> str:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=directory,
            env={"TIDEMILL_BOOTSTRAP": ",".join(self._addresses)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def _start(self, command: str) -> str:
        host = self._directory / f"host-{len(self._ups)}"
        host.mkdir()
        return self.start_in(host, f"exec {command}")

    def start_in(self, host: Path, command: str) -> str:
        up = subprocess.Popen(
            ["bash", "-c", command],
            cwd=host,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._ups.append(up)
        assert up.stdout is not None
        ready = up.stdout.readline()
        self._addresses.append(ready.removeprefix("ready: ").strip())
        return ready

    def stop(self) -> None:
        for started in self._ups:
            with started as up:
                up.terminate()
                assert up.wait(DEADLINE_S) == 0
        self._ups.clear()
        self._addresses.clear()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    server = ZookeeperProcess(tmp_path / "zookeeper").start()
    made = Hosts(tmp_path, server.address)
    yield made
    made.stop()
    server.stop()


def _commands() -> list[tuple[str, str]]:
    """Every command of the guide, and what it prints if the guide says so."""
    indented = re.findall(r"^    (.*\btidemill .*)$", GUIDE.read_text(), re.MULTILINE)
    split = (re.split(r"\s+# prints: ", line) for line in indented)
    return [(line, printed[0] if printed else "") for line, *printed in split]


def test_F97_the_guide_to_several_hosts_can_be_followed(hosts, tmp_path):
    commands = _commands()
    moves = [line for line, _ in commands if " migrate " in line]
    assert (len(commands), len(moves)) == (9, 2)
    for line, printed in commands:
        if line not in moves:
            out = hosts.run(line)
            assert not printed or out == f"{printed}\n", line
    hosts.stop()

    alone = tmp_path / "alone"
    alone.mkdir()
    hosts.start_in(alone, f"exec {TIDEMILL} up --listen 127.0.0.1:0")
    hosts.stop()
    assert "is in ZooKeeper now" in hosts.move(moves[0])
    assert "coord.db now" in hosts.move(moves[1])
