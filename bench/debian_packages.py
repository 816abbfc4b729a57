"""Tools that only the bench needs: installed as root on Debian, else their rows are skipped.

As everywhere in the project: packages are listed before they are installed, a missing tool is
reported in one line, and with CI=true it is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

__all__ = ["ensure_tool"]


def ensure_tool(present: Callable[[], bool], packages: list[str], *, without: str) -> bool:
    """Whether the tool exists, after an attempt to install it; `without` says what is lost."""
    if present():
        return True
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _install(packages)
        if present():
            return True
    names = " ".join(packages)
    print(f"bench: {names} missing: {without}", file=sys.stderr)
    if os.environ.get("CI") == "true":
        raise SystemExit(1)
    return False


def _install(packages: list[str]) -> None:
    print(f"bench: installing with apt-get: {' '.join(packages)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            print("bench: apt-get could not install them", file=sys.stderr)
            return
