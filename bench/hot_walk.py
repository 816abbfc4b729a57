"""The cost of the hot loops: the walk of 100-byte records, and a one-record batch end to end.

Run: python bench/hot_walk.py. The targets, compiled, are 20 M records/s and 4 us.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tidemill.core.compiled import is_compiled
from tidemill.hot import record_encode, record_walk
from tidemill.wire.produced_batch import BatchPolicy, validate_produced
from tidemill.wire.records import Record, build_batch

RECORDS = 10_000
ROUNDS = 50
NOW_MS = 1_700_000_000_000


def main() -> None:
    section = record_encode.encode([(i, i, None, b"x" * 100, []) for i in range(RECORDS)])
    batch = memoryview(build_batch([Record(b"x" * 100, timestamp=NOW_MS)]))
    policy = BatchPolicy()
    walk_s = _best_s(lambda: record_walk.walk(section, 0, len(section), RECORDS), 1)
    one_s = _best_s(lambda: validate_produced(batch, policy, NOW_MS), 1_000)
    kind = "compiled" if is_compiled("tidemill.hot.record_walk") else "pure Python"
    sys.stdout.write(f"walk, {kind}: {RECORDS / walk_s / 1e6:.1f} M records/s\n")
    sys.stdout.write(f"validate a one-record batch: {one_s * 1e6:.2f} us\n")


def _best_s(work: Callable[[], object], repeat: int) -> float:
    """Seconds per call in the best of several rounds; in the others the machine was busy."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        best = min(best, (time.perf_counter() - began) / repeat)
    return best


if __name__ == "__main__":
    main()
