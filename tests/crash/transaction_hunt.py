"""Plants a bug of transactions and explores crash states until one breaks a promise.

    python -m tests.support.interpreted tests.crash.transaction_hunt NAME

Prints what was seen; exit code 1 if nothing was.
"""

from __future__ import annotations

import sys

from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.crash_workloads import transaction_workload
from tidemill.testing.mutants import MUTANTS, seeds_to_detection

SEEDS_MAX = 6


def run_seed(seed: int) -> None:
    CrashExplorer(transaction_workload, fates=2, seed=seed).run()


def main(name: str) -> int:
    found = seeds_to_detection(MUTANTS[name], run_seed, seeds_max=SEEDS_MAX)
    sys.stdout.write("not found\n" if found is None else f"found: {found.error}\n")
    return int(found is None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
