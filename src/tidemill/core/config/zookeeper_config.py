"""The keys of ZooKeeper, for brokers on several hosts. Pure.

A section of `BrokerConfig` that the ZooKeeper store gets as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import option
from tidemill.core.errors import UserError

__all__ = ["ZookeeperConfig"]

CHROOT_DEFAULT = "/tidemill"
PORT_DEFAULT = 2181
_HOST = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?\Z")
_CHROOT = re.compile(r"(/[A-Za-z0-9_.-]+)+\Z")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperConfig:
    """The keys of ZooKeeper; made and validated by `broker_config`."""

    connect: str = option(
        "",
        key="zookeeper.connect",
        doc="The servers of ZooKeeper, HOST[:PORT] with commas between them, and the node below "
        "which all of this cluster is stored: `zk1,zk2,zk3/tidemill`, which is also what a missing "
        "node means. Empty: the embedded store of one host.",
    )
    session_timeout_ms: int = option(
        5_000,
        key="zookeeper.session.timeout.ms",
        doc="Other brokers take over this long after the last sign of life of a broker. The "
        "servers may choose another value, from 2 to 20 of their ticks; theirs counts.",
        unit="ms",
        minimum=500,
        maximum=120_000,
    )
    auth_file: str = option(
        "",
        key="tidemill.zookeeper.auth.file",
        doc="A file with one line, `digest USER:PASSWORD` or `sasl USER:PASSWORD`: how brokers "
        "prove who they are. What they store is then closed to everybody else. `sasl` needs the "
        "package pure-sasl.",
    )
    tls_enable: bool = option(
        False,
        key="zookeeper.ssl.client.enable",
        doc="Whether connections to ZooKeeper are encrypted.",
    )
    tls_ca_file: str = option(
        "",
        key="tidemill.zookeeper.tls.ca.file",
        doc="PEM file with the authorities that sign the servers' certificates. Empty: those of "
        "the system.",
    )
    tls_certificate_file: str = option(
        "",
        key="tidemill.zookeeper.tls.certificate.file",
        doc="PEM file with this broker's certificate and its key, for servers that ask for one.",
    )

    def validate(self) -> None:
        """UserError if the servers or the node cannot be meant so."""
        if self.connect:
            assert self.hosts
            assert self.chroot

    @property
    def hosts(self) -> str:
        """HOST:PORT of each server, with commas between them."""
        text = self.connect.partition("/")[0]
        parts = [part.strip() for part in text.split(",")]
        if not all(_HOST.match(part) for part in parts):
            raise UserError(
                f"zookeeper.connect={self.connect}: expected HOST[:PORT],...[/NODE], as in "
                "zk1:2181,zk2:2181,zk3:2181/tidemill"
            )
        return ",".join(part if _has_port(part) else f"{part}:{PORT_DEFAULT}" for part in parts)

    @property
    def chroot(self) -> str:
        """The node below which everything is stored."""
        chroot = self.connect[len(self.connect.partition("/")[0]) :].rstrip("/") or CHROOT_DEFAULT
        if not _CHROOT.match(chroot) or chroot == "/zookeeper" or "/." in chroot:
            raise UserError(f"zookeeper.connect={self.connect}: {chroot} cannot be used as a node")
        return chroot

    @property
    def where(self) -> str:
        """Servers and node in full; empty for the embedded store."""
        return f"{self.hosts}{self.chroot}" if self.connect else ""


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]
