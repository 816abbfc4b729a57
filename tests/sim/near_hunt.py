"""Plants bugs of followers that serve readers, and counts the seeds until a run finds each.

    python -m tests.sim.near_hunt

The broker must be interpreted (`make plain`).
"""

from __future__ import annotations

import logging

from tests.sim.campaign import Pace, run_campaign
from tidemill.testing.mutants import Mutant, seeds_to_detection

SEEDS_MAX = 12
PLANTED = [
    Mutant(
        "readers of followers see beyond the mark",
        "tidemill.server.handlers.data.fetch_reader:FetchReader._end_offset",
        lambda original: (
            lambda reader, partition: (
                original(reader, partition) if partition.is_leader else partition.log.log_end_offset
            )
        ),
    ),
    Mutant(
        "followers take every mark for confirmed",
        "tidemill.replication.follower_log:FollowerLog._hear_mark",
        lambda original: lambda follower, _told: original(follower, follower.log.log_end_offset),
    ),
]


def run_seed(seed: int) -> None:
    """Short of time: followers lag where the network is slow."""
    run_campaign(seed, brokers=3, faults=6, operations=90, pace=Pace(net=5), reads_near=True)


def main() -> None:
    logging.disable(logging.CRITICAL)
    for planted in PLANTED:
        found = seeds_to_detection(planted, run_seed, seeds_max=SEEDS_MAX)
        seeds = f"not in {SEEDS_MAX}" if found is None else str(found.seeds)
        print(f"| {planted.name} | {seeds} | {'' if found is None else found.error} |", flush=True)


if __name__ == "__main__":
    main()
