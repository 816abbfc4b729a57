"""Copies the jars that a pom names, with their dependencies, from Maven Central to a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["copy_dependencies"]

_SECONDS_MAX = 600


def copy_dependencies(pom: Path, libs: Path) -> str:
    """Copy the jars; the reason of a failure, empty on success."""
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"Maven took more than {_SECONDS_MAX} s"
    if done.returncode:
        return " ".join((done.stdout + done.stderr).split())[-300:]
    return ""
