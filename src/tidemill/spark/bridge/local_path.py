"""Locations that may be a path on this machine, or an address of some other storage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["try_local_path"]

_SCHEME: Final = re.compile(r"[A-Za-z][\w+.-]+:")
_LOCAL: Final = re.compile(r"file:(?://)?(?=/)")


def try_local_path(location: str) -> Path | None:
    """None for `hdfs://...` and the like."""
    bare = _LOCAL.sub("", location, count=1) if _LOCAL.match(location) else location
    return None if _SCHEME.match(bare) else Path(bare)
