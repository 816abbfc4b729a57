"""Programs of others: found, run with a time limit, and what they printed."""

# ruff: noqa: S603 - it starts programs

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

__all__ = [
    "BUILD",
    "DOWNLOAD_TIMEOUT_S",
    "HERE",
    "READY_S",
    "RUN_TIMEOUT_S",
    "Failed",
    "Skipped",
    "expect",
    "last_lines",
    "require",
    "run_program",
    "tool_path",
]

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parent / "build" / "interop"
DOWNLOAD_TIMEOUT_S: Final = 600
RUN_TIMEOUT_S: Final = 900
"""Only catches a hang: on a quiet machine the longest takes a minute and a half."""
READY_S: Final = 120
_SHOWN_LINES = 15


class Skipped(Exception):
    """A tool is missing."""


class Failed(Exception):
    """A program failed, or its output is not as expected."""


def tool_path(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Skipped(f"{name} is missing")
    return path


def run_program(
    *command: str,
    stdin: str = "",
    folder: Path = HERE,
    timeout_s: float = RUN_TIMEOUT_S,
    environment: dict[str, str] | None = None,
) -> str:
    """The output of a program; raises Failed unless it exits with 0 in time."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"no end within {timeout_s:.0f} s\n{last_lines(expired.output)}") from None
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}\n{last_lines(done.stdout)}")
    return done.stdout


def last_lines(printed: str | bytes | None) -> str:
    text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
    return "\n".join(f"      {line}" for line in text.splitlines()[-_SHOWN_LINES:])


def require(holds: bool, seen: object) -> None:
    if not holds:
        raise Failed(str(seen))


def expect(printed: str, *parts: str) -> None:
    for part in parts:
        if part not in printed:
            raise Failed(f"{part!r} is not in its output\n{last_lines(printed)}")
