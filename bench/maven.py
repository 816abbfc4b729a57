"""Jars from Maven Central: what a pom names, with all it needs, copied to a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["copy_dependencies"]

_SECONDS_MAX = 600


def copy_dependencies(pom: Path, libs: Path) -> str:
    """Why it did not work; empty when it did."""
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
