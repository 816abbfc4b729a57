"""Plants each mutant and counts the seeds until the simulation finds it.

    python -m tests.sim.mutant_hunt [--seeds-max 200] [--only NAME ...]

The broker must be interpreted (`make plain`).
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence

from tests.sim.campaign import run_campaign
from tidemill.testing.mutants import MUTANTS, Mutant, seeds_to_detection

__all__ = ["hunt", "run_seed"]

FAULTS = 8
OPERATIONS = 120


def run_seed(seed: int) -> None:
    """One run of the campaign that mutants are measured by."""
    run_campaign(seed, brokers=3, faults=FAULTS, operations=OPERATIONS)


def hunt(planted: Mutant, seeds_max: int) -> int | None:
    return seeds_to_detection(planted, run_seed, seeds_max=seeds_max)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the seeds that find each planted bug.")
    parser.add_argument("--seeds-max", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=list(MUTANTS), choices=list(MUTANTS))
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what a broken broker says about itself is no news here
    print("| mutant | seeds | seconds |\n|---|---|---|")
    for name in options.only:
        started = time.monotonic()
        seeds = hunt(MUTANTS[name], options.seeds_max)
        found = str(seeds) if seeds is not None else f"not in {options.seeds_max}"
        print(f"| {name} | {found} | {time.monotonic() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
