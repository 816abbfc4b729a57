"""Consumer groups of both protocols on simulated brokers, under load and faults.

Checked in every run: I26 one owner, told after the one before gave up or was fenced, and what was
fenced is refused; I27 all partitions have an owner soon after everything is repaired; I28 committed
offsets are registers that survive their coordinators, and epochs never go back.
"""

from __future__ import annotations

import pytest

from tests.sim.group_campaign import run_groups

pytestmark = pytest.mark.slow

KINDS = ("crash", "expiry", "isolate", "pause", "pause_clock", "reassign", "restart_cleanly")
"""Those that move coordinators, each by another way."""


@pytest.mark.parametrize("seed", range(12))
def test_I26_I28_groups_on_three_brokers_keep_their_promises(seed):
    """Each seed draws some kinds of faults; up to three run at once."""
    assert run_groups(seed, brokers=3, faults=6, operations=120).acked > 10


@pytest.mark.parametrize("kind", KINDS)
def test_I27_groups_stand_every_kind_of_fault_that_moves_coordinators(kind):
    done = run_groups(1, brokers=3, faults=3, operations=60, kinds=[kind])
    assert done.acked > 3
    assert [fault.split()[1] for fault in done.faults] == [kind] * 3


def test_I27_I28_groups_of_one_broker_keep_their_promises():
    assert run_groups(0, brokers=1, faults=3, operations=60).acked > 3
