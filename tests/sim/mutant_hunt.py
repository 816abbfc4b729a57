"""Plants each mutant and counts the seeds until the simulation finds it.

    python -m tests.sim.mutant_hunt [--load transactions] [--first SEED] [--seeds-max 60]
        [--minutes 12] [--kinds a,b] [--only NAME ...]

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

from tests.sim.campaign import Pace
from tests.sim.loads import LOADS, RECORDS
from tests.sim.seed_search import parse_kinds
from tidemill.testing.mutants import MUTANTS, Mutant, seeds_to_detection

__all__ = ["run_seed"]

FAULTS = 8
OPERATIONS = 120
ROUNDS = (3, 8, 16, 30)
"""All get so many seeds, then those that were not found get more."""
TEXT_CHARACTERS_MAX = 120


def run_seed(seed: int, kinds: Sequence[str] = (), load: str = RECORDS) -> str:
    """One run of the campaign that mutants are measured by; its trace."""
    pace = Pace.drawn(seed)
    run = LOADS[load]
    return run(seed, brokers=3, faults=FAULTS, operations=OPERATIONS, kinds=kinds, pace=pace).trace


class _Sound:
    """The traces of runs without a bug, each made when it is first needed."""

    def __init__(self, kinds: Sequence[str], load: str) -> None:
        self.kinds = kinds
        self.load = load
        self._traces: dict[int, str] = {}

    def trace(self, seed: int) -> str:
        if seed not in self._traces:
            self._traces[seed] = run_seed(seed, self.kinds, self.load)
        return self._traces[seed]


@dataclass(slots=True)
class _Tried:
    """What is known of one mutant."""

    mutant: Mutant
    sound: _Sound
    first: int
    seeds: int = 0
    changed: int = 0
    by: str = ""

    def go_on(self) -> None:
        """One more seed."""
        traces: list[str] = []
        seed, sound = self.first + self.seeds, self.sound
        found = seeds_to_detection(
            self.mutant,
            lambda seed: traces.append(run_seed(seed, sound.kinds, sound.load)),
            seeds_max=1,
            first=seed,
        )
        self.seeds += 1
        if found is None:
            self.changed += traces != [sound.trace(seed)]
        else:
            self.changed += 1
            self.by = f"{type(found.error).__name__}: {found.error}".replace("\n", " ")

    @property
    def line(self) -> str:
        seeds = f"{self.seeds}" if self.by else f"not in {self.seeds}"
        by = self.by.replace("|", "/")[:TEXT_CHARACTERS_MAX]
        return f"| {self.mutant.name} | {seeds} | {self.changed} | {by} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the seeds that find each planted bug.")
    parser.add_argument("--load", choices=list(LOADS), default=RECORDS)
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--seeds-max", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kinds", type=parse_kinds, default=(), help="else each seed draws some")
    parser.add_argument("--only", nargs="+", default=list(MUTANTS), choices=list(MUTANTS))
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what a broken broker says about itself is no news here
    ends_at = time.monotonic() + 60 * options.minutes
    sound = _Sound(options.kinds, options.load)
    tried = [_Tried(MUTANTS[name], sound, options.first) for name in options.only]
    for seeds in [*(one for one in ROUNDS if one < options.seeds_max), options.seeds_max]:
        for one in [one for one in tried if not one.by]:
            while not one.by and one.seeds < seeds and time.monotonic() < ends_at:
                one.go_on()
            print(one.line, file=sys.stderr, flush=True)
    print("| mutant | seeds | runs that it changed | by |\n|---|---|---|---|")
    for one in tried:
        print(one.line)


if __name__ == "__main__":
    main()
