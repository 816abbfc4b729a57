"""Transactions of both generations on simulated brokers, under load and faults.

Checked in every run: I18 accepted once, I19 replaced instances are refused, I20 all or nothing, I21
nothing aborted is read, I22 what comes late changes no other transaction, I23 the last stable
offset never goes back and reaches the end, aborted indexes agree with the markers, I24 offsets are
committed exactly with the records.
"""

from __future__ import annotations

import pytest

from tests.sim.faults import DEFAULT_KINDS
from tests.sim.transaction_campaign import run_transactions

pytestmark = pytest.mark.slow

KINDS = [one for one in DEFAULT_KINDS if one not in ("recreate_topic", "delete_records")]
"""Those two concern other topics."""


@pytest.mark.parametrize("seed", range(4))
def test_I20_I23_one_broker_keeps_its_promises(seed):
    assert run_transactions(seed, brokers=1, faults=3, operations=100).acked > 5


@pytest.mark.parametrize("seed", range(8))
def test_I18_I24_three_brokers_keep_their_promises(seed):
    """Each seed draws some kinds of faults; up to three run at once."""
    assert run_transactions(seed, brokers=3, faults=6, operations=100).acked > 5


@pytest.mark.parametrize("kind", KINDS)
def test_I20_I23_three_brokers_stand_every_kind_of_fault_alone(kind):
    done = run_transactions(1, brokers=3, faults=3, operations=50, kinds=[kind])
    assert done.acked > 3
    assert [fault.split()[1] for fault in done.faults] == [kind] * 3
