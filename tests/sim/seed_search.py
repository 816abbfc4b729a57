"""Runs the campaign over many seeds; a seed that fails is made smaller and printed.

    python -m tests.sim.seed_search --seeds 0-299 [--faults 8] [--operations 120]
        [--kinds a,b [--paced]] [--load transactions]

`make sim SEEDS=0-299` is the same. The exit code is 1 if a seed failed. Progress goes to stderr,
the result to stdout, with --json as one object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace

from tests.sim.campaign import Pace
from tests.sim.faults import ALL_KINDS, DEFAULT_KINDS, STALE_READS
from tests.sim.loads import GROUPS, LOADS, RECORDS, TRANSACTIONS

__all__ = ["Outcome", "Settings", "parse_kinds", "run_one", "shrunk"]

BAR_WIDTH = 30
MESSAGE_CHARACTERS_MAX = 300
OPERATIONS_MIN = 6


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run depends on, besides the code."""

    seed: int
    brokers: int = 3
    faults: int = 8
    operations: int = 120
    kinds: tuple[str, ...] = ()
    is_paced: bool = False
    load: str = RECORDS

    @property
    def command(self) -> str:
        kinds = f" --kinds {','.join(self.kinds)}" if self.kinds else ""
        kinds += " --paced" if self.is_paced else ""
        return (
            f"python -m tests.sim.seed_search --load {self.load} --seeds {self.seed} "
            f"--brokers {self.brokers} "
            f"--faults {self.faults} --operations {self.operations}{kinds}"
        )


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    settings: Settings
    error: str = ""
    trace: str = ""
    events: int = 0
    acked: int = 0
    simulated_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def run_one(settings: Settings) -> Outcome:
    outcome = Outcome(settings)
    try:
        done = LOADS[settings.load](
            settings.seed,
            brokers=settings.brokers,
            faults=settings.faults,
            operations=settings.operations,
            kinds=settings.kinds,
            pace=Pace.drawn(settings.seed) if settings.is_paced else None,
        )
    except Exception as error:  # noqa: BLE001 - whatever was found is reported
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        outcome.error = text[:MESSAGE_CHARACTERS_MAX]
    else:
        outcome.trace, outcome.events, outcome.acked = done.trace, done.events, done.acked
        outcome.simulated_s, outcome.faults = done.simulated_s, done.faults
    return outcome


def shrunk(settings: Settings) -> Outcome:
    """The smallest failing run of this seed: fewest faults first, then fewest operations."""
    smallest = run_one(settings)
    assert smallest.error, "it does not fail"
    for faults in range(settings.faults):
        tried = run_one(replace(settings, faults=faults))
        if tried.error:
            smallest = tried
            break
    while smallest.settings.operations > OPERATIONS_MIN:
        halved = smallest.settings.operations // 2
        tried = run_one(replace(smallest.settings, operations=halved))
        if not tried.error:
            break
        smallest = tried
    return smallest


def _quietly(settings: Settings) -> Outcome:
    logging.disable(logging.CRITICAL)
    outcome = run_one(settings)
    return shrunk(settings) if outcome.error else outcome


def _run_all(all_settings: Sequence[Settings], jobs: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    started = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(_quietly, one) for one in all_settings]):
            outcomes.append(future.result())
            failed = sum(1 for one in outcomes if one.error)
            _show_progress(len(outcomes), len(all_settings), failed, time.monotonic() - started)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return sorted(outcomes, key=lambda one: (one.settings.seed, one.settings.load))


def _show_progress(done: int, total: int, failed: int, seconds: float) -> None:
    left_s = seconds / done * (total - done)
    bar = "#" * (BAR_WIDTH * done // total)
    line = f"[{bar:<{BAR_WIDTH}}] {done}/{total} runs, {failed} failed, {left_s:.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{line}", end="   ", flush=True, file=sys.stderr)
    elif done == total or done % max(1, total // 10) == 0:
        print(line, flush=True, file=sys.stderr)


def _summary(outcomes: Sequence[Outcome], seconds: float) -> dict[str, object]:
    passed = [one for one in outcomes if not one.error]
    kinds = Counter(fault.split()[1] for one in passed for fault in one.faults)
    return {
        "runs": len(outcomes),
        "failed": len(outcomes) - len(passed),
        "seconds": round(seconds, 1),
        "simulated_hours": round(sum(one.simulated_s for one in passed) / 3600, 2),
        "events": sum(one.events for one in passed),
        "records_acknowledged": _acked(passed, RECORDS),
        "transactions_committed": _acked(passed, TRANSACTIONS),
        "offsets_committed": _acked(passed, GROUPS),
        "faults": dict(sorted(kinds.items())),
    }


def _acked(outcomes: Iterable[Outcome], load: str) -> int:
    return sum(one.acked for one in outcomes if one.settings.load == load)


def _print_table(summary: dict[str, object], failures: Iterable[Outcome]) -> None:
    for name, value in summary.items():
        if not isinstance(value, dict):
            print(f"{name.replace('_', ' '):22} {value}")
            continue
        for kind, count in value.items():
            print(f"  {kind:20} {count}")
    for one in failures:
        place = f"{one.settings.load}, seed {one.settings.seed}"
        print(f"\n{place}: {one.error}\n  {one.settings.command}")


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def parse_kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(",")) if text else ()
    known = (*ALL_KINDS, STALE_READS)
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: not one of {', '.join(known)}")
    return kinds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Search for a seed that breaks a promise.")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-99"), metavar="FIRST-LAST")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--operations", type=int, default=120)
    parser.add_argument(
        "--kinds",
        type=parse_kinds,
        default=(),
        help=f"kinds of faults, with commas; each seed draws some of {', '.join(DEFAULT_KINDS)}",
    )
    parser.add_argument(
        "--paced", action="store_true", help="draw slow disks and networks with --kinds, too"
    )
    parser.add_argument(
        "--load", choices=list(LOADS), action="append", help="else each seed runs with every load"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    chosen = [
        Settings(
            seed,
            options.brokers,
            options.faults,
            options.operations,
            options.kinds,
            options.paced,
            load,
        )
        for seed in options.seeds
        for load in options.load or LOADS
    ]
    outcomes = _run_all(chosen, options.jobs)
    failures = [one for one in outcomes if one.error]
    summary = _summary(outcomes, time.monotonic() - started)
    if options.json:
        failed = [{**asdict(one), "command": one.settings.command} for one in failures]
        print(json.dumps({**summary, "failures": failed}, indent=2))
    else:
        _print_table(summary, failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
