"""How a session proves to ZooKeeper who it is: the line of `tidemill.zookeeper.auth.file`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from tidemill.core.errors import UserError

__all__ = ["ZookeeperAuth", "read_auth"]


@final
@dataclass(frozen=True, slots=True)
class ZookeeperAuth:
    """What kazoo is given; nothing of it is ever shown."""

    digests: list[tuple[str, str]] = field(default_factory=list, repr=False)
    sasl_options: dict[str, str] | None = field(default=None, repr=False)

    @property
    def is_given(self) -> bool:
        return bool(self.digests or self.sasl_options)


def read_auth(path: str) -> ZookeeperAuth:
    """Read the file; an empty path means that nobody is asked who they are."""
    if not path:
        return ZookeeperAuth()
    try:
        scheme, _, pair = Path(path).read_text().strip().partition(" ")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"tidemill.zookeeper.auth.file={path}: {error}") from error
    user, colon, password = pair.strip().partition(":")
    if scheme not in {"digest", "sasl"} or not user or not colon or "\n" in pair:
        raise UserError(
            f"tidemill.zookeeper.auth.file={path}: expected one line, digest USER:PASSWORD or "
            "sasl USER:PASSWORD"
        )
    if scheme == "digest":
        return ZookeeperAuth(digests=[("digest", f"{user}:{password}")])
    try:
        importlib.import_module("puresasl")
    except ImportError as error:
        raise UserError(
            f"tidemill.zookeeper.auth.file={path}: sasl needs `pip install pure-sasl`"
        ) from error
    return ZookeeperAuth(
        sasl_options={"mechanism": "DIGEST-MD5", "username": user, "password": password}
    )
