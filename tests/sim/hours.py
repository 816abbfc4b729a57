"""Lets simulated clusters live for hours, and adds up what they went through in one file.

    python -m tests.sim.hours --hours 100 --summary build/hours.json [--minutes 60] [--jobs 2]
    python -m tests.sim.hours --seed 7 [--minutes 60]

Every seed is the life of one cluster (`long_life.py`). The file is written after each life, so a
campaign can be stopped at any time; the next one goes on with the next seed and adds to the file.
A life that broke a promise is kept in the file with the command that repeats it, and adds nothing
to the hours. Progress goes to stderr, the summary to stdout; the exit code is 1 after a violation.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.sim.long_life import live_long

__all__ = ["HourCampaign", "Life", "Summary", "run_life"]

BAR_WIDTH = 30
MESSAGE_CHARACTERS_MAX = 300
MINUTES = 60.0
SECONDS_PER_HOUR = 3600


@dataclass(slots=True)
class Life:
    """What came of one seed."""

    seed: int
    minutes: float
    error: str = ""
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    acked: int = 0
    elections: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def command(self) -> str:
        return f"python -m tests.sim.hours --seed {self.seed} --minutes {self.minutes:g}"


@dataclass(slots=True)
class Summary:
    """What all lives together went through: those without a violation."""

    hours: float = 0.0
    faults: int = 0
    records_acknowledged: int = 0
    elections: int = 0
    events: int = 0
    lives: int = 0
    cpu_hours: float = 0.0
    next_seed: int = 0
    faults_by_kind: dict[str, int] = field(default_factory=dict)
    hours_by_revision: dict[str, float] = field(default_factory=dict)
    violations: list[dict[str, object]] = field(default_factory=list)

    def add(self, life: Life, revision: str) -> None:
        self.next_seed = max(self.next_seed, life.seed + 1)
        if life.error:
            found = {"seed": life.seed, "error": life.error, "command": life.command}
            self.violations.append({**found, "revision": revision})
            return
        hours = life.simulated_s / SECONDS_PER_HOUR
        self.lives += 1
        self.hours = round(self.hours + hours, 3)
        self.cpu_hours = round(self.cpu_hours + life.cpu_s / SECONDS_PER_HOUR, 3)
        self.faults += sum(life.faults.values())
        self.records_acknowledged += life.acked
        self.elections += life.elections
        self.events += life.events
        self.faults_by_kind = _sum(self.faults_by_kind, life.faults)
        with_it = _sum(self.hours_by_revision, {revision: hours})
        self.hours_by_revision = {name: round(value, 3) for name, value in with_it.items()}

    @classmethod
    def load(cls, path: Path) -> Summary:
        """What earlier campaigns have left there; nothing, if there is no file."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        """Replace the file whole: a campaign may be stopped at any time."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n")
        unfinished.replace(path)


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    names = sorted({*one, *other})
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}


def run_life(seed: int, minutes: float) -> Life:
    """Let one cluster live; whatever it raises is the outcome."""
    logging.disable(logging.CRITICAL)
    gc.freeze()  # a burial looks through what this life has made, not through every module
    life, started = Life(seed, minutes), time.process_time()
    try:
        done = live_long(seed, simulated_s=60 * minutes)
    except Exception as error:  # noqa: BLE001 - whatever was found is reported
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        life.error = text[:MESSAGE_CHARACTERS_MAX]
    else:
        life.simulated_s, life.events = done.simulated_s, done.events
        life.acked, life.elections = done.acked, done.elections
        life.faults = dict(Counter(fault.split()[1] for fault in done.faults))
    life.cpu_s = time.process_time() - started
    return life


class HourCampaign:
    """Lives one after the other, or some at once, until enough hours were added."""

    def __init__(self, summary: Summary, *, minutes: float, jobs: int, revision: str) -> None:
        self.summary = summary
        self._minutes = minutes
        self._jobs = jobs
        self._revision = revision
        self._violations_before = len(summary.violations)

    @property
    def violations(self) -> int:
        """Found by this campaign."""
        return len(self.summary.violations) - self._violations_before

    def run(self, hours: float, path: Path) -> None:
        """Each life has a process of its own, which gives its memory back.

        It is forked from one that has imported everything: that takes as long as minutes of a life.
        """
        before, started, seed = self.summary.hours, time.monotonic(), self.summary.next_seed
        last = seed + max(1, round(hours * 60 / self._minutes))
        running: set[Future[Life]] = set()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([live_long.__module__])
        pool = ProcessPoolExecutor(self._jobs, context, max_tasks_per_child=1)
        with pool, _ended_at_once():
            while seed < last or running:
                while seed < last and len(running) < self._jobs:
                    running.add(pool.submit(run_life, seed, self._minutes))
                    seed += 1
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    self.summary.add(one.result(), self._revision)
                self.summary.save(path)
                added = self.summary.hours - before
                _show_progress(added, hours, self.violations, time.monotonic() - started)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Whoever stops a campaign does not wait for the lives that are under way."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _show_progress(done: float, total: float, violations: int, seconds: float) -> None:
    share = min(1.0, done / total)
    left_s = seconds / share - seconds if share else 0.0
    bar = "#" * int(BAR_WIDTH * share)
    line = f"[{bar:<{BAR_WIDTH}}] {done:.1f}/{total:g} hours, {violations} violations"
    end = "   \r" if sys.stderr.isatty() else "\n"
    print(f"{line}, {left_s:.0f} s left", end=end, flush=True, file=sys.stderr)


def _revision() -> str:
    """The commit that is checked out, with a mark if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _print_table(summary: Summary) -> None:
    for name, value in asdict(summary).items():
        if isinstance(value, dict):
            print(name.replace("_", " "))
            for kind, count in value.items():
                print(f"  {kind:20} {count}")
        elif not isinstance(value, list):
            print(f"{name.replace('_', ' '):22} {value}")
    for one in summary.violations:
        print(f"\nseed {one['seed']} at {one['revision']}: {one['error']}\n  {one['command']}")


def _repeat(seed: int, minutes: float) -> int:
    life = run_life(seed, minutes)
    print(json.dumps(asdict(life), indent=2))
    return 1 if life.error else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Let simulated clusters live for hours.")
    parser.add_argument("--hours", type=float, default=1.0, help="to add to the file")
    parser.add_argument("--summary", type=Path, default=Path("build/hours.json"))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of one life")
    parser.add_argument("--seed", type=int, help="run this life alone, and leave the file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _repeat(options.seed, options.minutes)
    signal.signal(signal.SIGTERM, _interrupt)
    summary = Summary.load(options.summary)
    campaign = HourCampaign(
        summary, minutes=options.minutes, jobs=options.jobs, revision=_revision()
    )
    try:
        campaign.run(options.hours, options.summary)
    except KeyboardInterrupt:
        print("stopped; the file has every life that ended", file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(summary), indent=2))
    else:
        _print_table(summary)
    return 1 if campaign.violations else 0


if __name__ == "__main__":
    sys.exit(main())
