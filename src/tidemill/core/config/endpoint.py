"""Addresses: a host and a port. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.core.errors import UserError

__all__ = ["ANY_ADDRESS", "PORT_MAX", "Endpoint", "parse_endpoint"]

PORT_MAX = 65_535
ANY_ADDRESS = frozenset({"", "0.0.0.0", "::", "*"})  # noqa: S104 - compared with, never bound
"""Hosts that stand for every address of the machine."""


class Endpoint(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, *, key: str) -> Endpoint:
    """Parse HOST:PORT, an IPv6 address in brackets; a leading `PLAINTEXT://` is allowed."""
    bare = text.removeprefix("PLAINTEXT://")
    host, colon, port = bare.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UserError(f"{key}={text}: write an IPv6 address in brackets, as in [::1]:9092")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise UserError(f"{key}={text}: expected HOST:PORT with a port from 0 to {PORT_MAX}")
    try:
        host.encode("idna")
    except UnicodeError:
        raise UserError(f"{key}={text!a}: {host!a} is not the name of a host") from None
    return Endpoint(host, int(port))
