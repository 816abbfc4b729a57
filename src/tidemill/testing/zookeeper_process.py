"""A real ZooKeeper server in its own process, from the jars that Spark brings; a test may kill it.

server = ZookeeperProcess(tmp_path / "zookeeper").start()
coord = ZookeeperCoord(zookeeper_options(server.address), ...)
...
server.stop()

It needs Java and pyspark; `is_available` says whether both are there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, final

from tidemill.core.clock import SystemClock
from tidemill.core.errors import TidemillError
from tidemill.testing.child_process import ChildProcess

__all__ = [
    "ZookeeperEnsemble",
    "ZookeeperNotReady",
    "ZookeeperProcess",
    "free_ports",
    "is_available",
]

START_TIMEOUT_S: Final = 60.0
TICK_MS: Final = 250
"""A session lasts 2 to 20 ticks: half a second to five seconds."""

_POLL_S = 0.02
_ANSWER_S = 2.0
_HOST = "127.0.0.1"
_JAR_NAMES = ("zookeeper", "slf4j-api", "metrics-core", "snappy-java", "netty", "commons-")
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@final
class ZookeeperNotReady(TidemillError):
    """The server ended, or did not answer in time."""


@final
class ZookeeperProcess:
    """One server; started again after `kill` or `stop`, on the same port and data."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Sequence[str] = (),
        server_id: int = 0,
        host: str = _HOST,
        port: int = 0,
    ) -> None:
        """`settings` are more lines of its configuration."""
        self.host = host
        self.port = port or free_ports(1)[0]
        self.address = f"{host}:{self.port}"
        self._directory = directory
        (directory / "data").mkdir(parents=True, exist_ok=True)
        (directory / "data" / "myid").write_text(f"{server_id}\n")
        (directory / "zoo.cfg").write_text(self._configuration(settings))
        self._process = ChildProcess(
            ["java", *_JVM, "-cp", _class_path(), _MAIN, str(directory / "zoo.cfg")],
            directory / "server.log",
        )

    def _configuration(self, settings: Sequence[str]) -> str:
        lines = [
            f"tickTime={TICK_MS}",
            "initLimit=40",
            "syncLimit=8",
            f"dataDir={self._directory / 'data'}",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *settings,
        ]
        return "".join(f"{line}\n" for line in lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> Self:
        """Start it and wait until it serves. Raises ZookeeperNotReady."""
        self.spawn()
        self.wait_ready()
        return self

    def spawn(self) -> None:
        self._process.spawn()

    def wait_ready(self) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + START_TIMEOUT_S
        while "Mode:" not in self._ask("srvr"):
            if self._process.wait(_POLL_S) is not None or clock.monotonic() > deadline:
                raise ZookeeperNotReady(f"ZooKeeper did not start: {self._process.last_line()}")

    def is_leader(self) -> bool:
        """Whether it leads its ensemble."""
        return "Mode: leader" in self._ask("srvr")

    def _ask(self, word: str) -> str:
        """Its answer to a four-letter word; empty while it does not listen."""
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
                connection.sendall(word.encode())
                answer = b""
                while data := connection.recv(4096):
                    answer += data
        except OSError:
            return ""
        return answer.decode(errors="replace")

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    stop = kill
    """Its log is synced before every answer: it needs no farewell."""


@final
class ZookeeperEnsemble:
    """Three servers, of which one may fail."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        ports = free_ports(3 * size)
        members = [
            f"server.{one + 1}={_HOST}:{ports[3 * one + 1]}:{ports[3 * one + 2]}"
            for one in range(size)
        ]
        self.servers = [
            ZookeeperProcess(
                directory / f"server-{one + 1}",
                settings=members,
                server_id=one + 1,
                port=ports[3 * one],
            )
            for one in range(size)
        ]

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            server.spawn()
        for server in self.servers:
            server.wait_ready()
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def is_available() -> bool:
    """Whether this machine can run a server."""
    return shutil.which("java") is not None and importlib.util.find_spec("pyspark") is not None


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now; a server cannot tell us which one it took."""
    probes = [socket.create_server((_HOST, 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _class_path() -> str:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ZookeeperNotReady("the jars of ZooKeeper come with pyspark, which is not installed")
    jars = (Path(found.origin).parent / "jars").glob("*.jar")
    return ":".join(sorted(str(jar) for jar in jars if jar.name.startswith(_JAR_NAMES)))
