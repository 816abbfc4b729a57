"""Whether a directory is on a local file system; locks mean nothing on the others.

Sessions are files under `flock`, and SQLite's WAL is shared memory. Both work between processes of
one kernel only. A network file system or one in user space may give a lock to two hosts at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["file_system_type", "try_find_foreign"]

_MOUNTS = "/proc/self/mountinfo"
_OCTAL = re.compile(r"\\([0-7]{3})")
"""Blanks and backslashes of mount points are written so."""
_FOREIGN = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "glusterfs", "gpfs"}
    | {"lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"}
)


def try_find_foreign(directory: str) -> str | None:
    """The type of a file system that several hosts could have at the same time; None if local."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            found = file_system_type(os.path.realpath(directory), mounts)
    except OSError:
        return None  # a system without /proc: nothing is known against the directory
    return found if found in _FOREIGN or found.startswith("fuse.") else None


def file_system_type(path: str, mounts: Iterable[str]) -> str:
    """The type of the mount that `path` is on: the longest mount point that contains it."""
    best, found = "", ""
    for line in mounts:
        fields = line.split(" ")
        if "-" not in fields or len(fields) < 5:
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later line of the same length is mounted over the earlier one.
        if inside and len(point) >= len(best):
            best, found = point, fields[fields.index("-") + 1]
    return found
