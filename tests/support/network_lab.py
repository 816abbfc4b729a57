"""Hosts on a network of their own, which a test cuts apart: Linux network namespaces.

    subprocess.run([*LAB, sys.executable, "-m", "a.module"])   # runs where labs can be made

    lab = NetworkLab()
    host = lab.add_host("10.77.0.1")
    BrokerProcess(..., command=(*host.prefix, *TIDEMILL))
    host.cut_to("10.77.0.2")    # what it sends there is lost; what comes from there arrives

`LAB` needs no rights of root: it makes a user namespace, with networks and processes of its own.
All of it is gone when its first process ends, however that ends. No network has a route out.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, final

__all__ = ["LAB", "LabHost", "NetworkLab", "is_available"]

LAB: Final = (
    "unshare",
    "--map-root-user",
    "--net",
    "--pid",
    "--mount-proc",
    "--fork",
    "--kill-child",
)

_BRIDGE = "lab"
_PREFIX_BITS = 24


@final
class LabHost:
    """A network namespace with one address. A process that does nothing keeps it."""

    def __init__(self, address: str, index: int) -> None:
        self.address = address
        self._keeper = subprocess.Popen(  # says a line once the namespace is there
            ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        self.prefix = ("nsenter", "--target", str(self._keeper.pid), "--net", "--")
        """Before a command: it runs on this host."""
        self._line = f"host{index}"
        """The bridge's end of what connects it."""
        peer = ("peer", "eth0", "netns", str(self._keeper.pid))
        _run("ip", "link", "add", self._line, "type", "veth", *peer)
        _run("ip", "link", "set", self._line, "master", _BRIDGE, "up")
        self._run("ip", "address", "add", f"{address}/{_PREFIX_BITS}", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._run("ip", "link", "set", device, "up")

    def cut_to(self, *addresses: str) -> None:
        """Lose what this host sends there."""
        for address in addresses:
            self._run("ip", "route", "add", "blackhole", address)

    def mend_to(self, *addresses: str) -> None:
        for address in addresses:
            self._run("ip", "route", "delete", "blackhole", address)

    def slow_down(self, kilobits: int) -> None:
        """Let no more than that reach it in a second."""
        limit = ("rate", f"{kilobits}kbit", "burst", "8k", "latency", "200ms")
        _run("tc", "qdisc", "add", "dev", self._line, "root", "tbf", *limit)

    def speed_up(self) -> None:
        _run("tc", "qdisc", "delete", "dev", self._line, "root")

    def remove(self) -> None:
        self._keeper.kill()
        self._keeper.wait()

    def _run(self, *command: str) -> None:
        _run(*self.prefix, *command)


@final
class NetworkLab:
    """One network; the process that makes it is a host with the addresses `own`."""

    def __init__(self, own: Sequence[str]) -> None:
        self._hosts: list[LabHost] = []
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        for address in own:
            _run("ip", "address", "add", f"{address}/{_PREFIX_BITS}", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")

    def add_host(self, address: str) -> LabHost:
        host = LabHost(address, len(self._hosts))
        self._hosts.append(host)
        return host

    def remove(self) -> None:
        for host in self._hosts:
            host.remove()


def is_available() -> bool:
    """Whether this machine lets us make networks."""
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip", "tc")):
        return False
    trial = [*LAB, "ip", "link", "add", _BRIDGE, "type", "bridge"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
