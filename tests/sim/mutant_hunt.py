"""Plants each mutant and counts the seeds until the simulation finds it.

    python -m tests.sim.mutant_hunt [--seeds-max 60] [--minutes 12] [--kinds a,b] [--only NAME ...]

All mutants get a few seeds before any gets many, so that little time says something of each. For
one that is not found, the number of runs that it changed says more: none means that no run reached
the bug. The broker must be interpreted (`make plain`).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.sim.campaign import Pace, run_campaign
from tests.sim.seed_search import parse_kinds
from tidemill.testing.mutants import MUTANTS, Detection, Mutant, seeds_to_detection

__all__ = ["hunt", "run_seed"]

FAULTS = 8
OPERATIONS = 120
ROUNDS = (3, 8, 16, 30)
"""All get so many seeds, then those that were not found get more."""
TEXT_CHARACTERS_MAX = 120


def run_seed(seed: int, kinds: Sequence[str] = ()) -> str:
    """One run of the campaign that mutants are measured by; its trace."""
    pace = Pace.drawn(seed)
    return run_campaign(
        seed, brokers=3, faults=FAULTS, operations=OPERATIONS, kinds=kinds, pace=pace
    ).trace


def hunt(planted: Mutant, seeds_max: int) -> Detection | None:
    return seeds_to_detection(planted, run_seed, seeds_max=seeds_max)


@dataclass(slots=True)
class _Tried:
    """What is known of one mutant."""

    mutant: Mutant
    kinds: Sequence[str]
    seeds: int = 0
    changed: int = 0
    by: str = ""

    def go_on(self, traces: Sequence[str]) -> None:
        """One more seed; `traces` are those of the runs without the bug."""

        def run(seed: int) -> None:
            self.changed += run_seed(seed, self.kinds) != traces[seed]

        found = seeds_to_detection(self.mutant, run, seeds_max=1, first=self.seeds)
        self.seeds += 1
        if found is not None:
            self.changed += 1
            self.by = f"{type(found.error).__name__}: {found.error}".replace("\n", " ")

    @property
    def line(self) -> str:
        seeds = f"{self.seeds}" if self.by else f"not in {self.seeds}"
        by = self.by.replace("|", "/")[:TEXT_CHARACTERS_MAX]
        return f"| {self.mutant.name} | {seeds} | {self.changed} | {by} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the seeds that find each planted bug.")
    parser.add_argument("--seeds-max", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kinds", type=parse_kinds, default=(), help="else each seed draws some")
    parser.add_argument("--only", nargs="+", default=list(MUTANTS), choices=list(MUTANTS))
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what a broken broker says about itself is no news here
    ends_at = time.monotonic() + 60 * options.minutes
    tried = [_Tried(MUTANTS[name], options.kinds) for name in options.only]
    traces: list[str] = []
    for seeds in [*(one for one in ROUNDS if one < options.seeds_max), options.seeds_max]:
        while len(traces) < seeds and time.monotonic() < ends_at:
            traces.append(run_seed(len(traces), options.kinds))
        for one in [one for one in tried if not one.by]:
            while not one.by and one.seeds < len(traces) and time.monotonic() < ends_at:
                one.go_on(traces)
            print(one.line, file=sys.stderr, flush=True)
    print("| mutant | seeds | runs that it changed | by |\n|---|---|---|---|")
    for one in tried:
        print(one.line)


if __name__ == "__main__":
    main()
