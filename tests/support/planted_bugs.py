"""Runs something while a bug is planted, also where the code of the bug is compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tidemill.testing.mutants import MUTANTS

__all__ = ["find_planted"]

ROOT = Path(__file__).parents[2]


def find_planted(name: str, run: Callable[[], object], module: str) -> str:
    """What `run` says of the planted bug by failing; empty: it did not find it.

    Compiled code takes no bug. Then `module` does the same in a process of its own, from the
    sources: it must write the result of this function, for the name in its argument, to stdout.
    """
    if not MUTANTS[name].is_plantable:
        command = [sys.executable, "-m", "tests.support.interpreted", module, name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout
    with MUTANTS[name].planted():
        try:
            run()
        except Exception as error:  # noqa: BLE001 - whatever a planted bug leads to has found it
            return f"{type(error).__name__}: {error}"
    return ""
