"""Runs that broke a promise once, and the runs that still do.

A run whose kinds the present code does not stand (`KNOWN_HOLES_KINDS`, which is empty) is skipped.
Taking a kind out of that list switches its runs on.
"""

from __future__ import annotations

import pytest

from tests.sim.campaign import run_campaign
from tests.sim.faults import KNOWN_HOLES_KINDS
from tests.sim.replicas import eventually, replicas_agree
from tests.sim.three_brokers import IDS, ORDERS, Bench, run
from tidemill.client.admin.topic_admin import Admin

FOUND = [
    # A registration whose outcome is unknown and that was made: the broker takes it for another's.
    (["doubt"], 0, 5, 30),
    # Taking office, likewise: `/controller` names a broker that does not know that it is it.
    (["minority"], 8, 6, 120),
    # H3: a leader without a lease answers with an end from before its successor.
    (["stale_reads", "expiry"], 4, 6, 120),
    (["stale_reads", "pause"], 3, 6, 120),
    # After storms nobody is let in for a moment: a create is refused, and is tried again.
    (["expiry", "suspend", "storm", "pause", "late_watches", "stale_reads"], 41061, 4, 15),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "seed", "faults", "operations"), FOUND)
def test_a_run_that_was_found_keeps_its_promises(kinds, seed, faults, operations):
    holes = [kind for kind in kinds if kind in KNOWN_HOLES_KINDS]
    if holes:
        pytest.skip(f"{holes[0]}: not closed yet")
    run_campaign(seed, brokers=3, faults=faults, operations=operations, kinds=kinds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 5])
def test_I16_a_leaders_damage_is_mended_by_followers_that_lack_the_next_batch(seed):
    """The leader cannot read past the header that is damaged, so followers get no further.

    They have the batch that is damaged, but not the one behind it, which was to show that their log
    is this one: they were asked again and again, and nobody could write.
    """
    run_campaign(seed, brokers=3, faults=2, operations=60, kinds=["rot"])


@pytest.mark.skipif("delete_records" in KNOWN_HOLES_KINDS, reason="not closed yet")
def test_I16_a_follower_catches_up_with_a_log_that_starts_inside_a_batch():
    """Found by a campaign: it began anew at the log start, then at the batch's base, for ever."""

    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        absent = bench.followers[0]
        await bench.world.stop_broker(absent)
        sends = [await bench.begin() for _ in range(8)]
        ends = [1 + await delivery.offset() for _, delivery in sends]
        await Admin(bench.cluster).delete_records(ORDERS.topic, {0: max(ends) - 1})
        await bench.world.start_broker(absent)
        await eventually(lambda: replicas_agree(bench.world, IDS, ORDERS))

    run(scenario, 1)
