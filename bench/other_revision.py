"""Another revision of Tidemill as the subject to compare with, instead of Kafka.

It is cloned from this working copy into `build/revisions` and compiled with this environment's
tools, once; its broker runs on this environment's Python and packages. So the two differ in their
source alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from bench.environment import ROOT
from bench.judgement import Bar, Held, Outcome
from bench.tidemill_broker import TidemillSubject

__all__ = ["OtherRevision", "judged_as_revision", "provide"]

REVISIONS = ROOT / "build" / "revisions"
RATE_BAR = Bar(">=", 0.98)
TIME_BAR = Bar("<=", 1.02)
_BUILD_SECONDS_MAX = 1_800
_PRINT_PLAIN = """\
from tidemill.core import compiled
print(*(one for one in compiled.HOT_LOOPS + compiled.REQUEST_PATH if not compiled.is_compiled(one)))
"""


@final
@dataclass(frozen=True, slots=True)
class OtherRevision:
    """A clone that is built."""

    commit: str
    directory: Path

    def subject(self, settings: tuple[str, ...]) -> TidemillSubject:
        return TidemillSubject(settings=settings, name=self.commit, environment=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The path comes before what is installed, so that this source is imported."""
        return {"PYTHONPATH": str(self.directory / "src")}


def provide(revision: str) -> OtherRevision:
    """Clone and compile a revision unless that is done. Exits if it cannot be compared."""
    commit = _run(["git", "rev-parse", "--short", f"{revision}^{{commit}}"], ROOT)
    other = OtherRevision(commit, REVISIONS / commit)
    if not other.directory.exists():
        REVISIONS.mkdir(parents=True, exist_ok=True)
        _run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(other.directory)], ROOT)
    _run(["git", "checkout", "--quiet", "--detach", commit], other.directory)
    if _plain_modules(other):
        print(f"bench: compiling {commit}, a few minutes", file=sys.stderr)
        _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], other.directory)
    if plain := _plain_modules(other):
        raise SystemExit(f"bench: not compiled in {other.directory}: {plain}")
    return other


def _plain_modules(other: OtherRevision) -> str:
    """What runs as Python though it should be compiled; it would be no equal rival."""
    return _run([sys.executable, "-c", _PRINT_PLAIN], other.directory, other.environment)


def _run(command: list[str], directory: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": "", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command[:4])}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def judged_as_revision(outcome: Outcome, commit: str) -> Outcome:
    """The same samples with the bar between two revisions.

    Bars that are no ratio to it, such as those of memory, hold as they are.
    """
    bar = outcome.bar
    if outcome.against != commit or (bar is not None and bar.held is not Held.RATIO):
        return outcome
    if "/s" in outcome.unit:
        return replace(outcome, bar=RATE_BAR)
    return replace(outcome, bar=None if bar is None else TIME_BAR)
