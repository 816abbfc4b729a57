"""Clusters of one and of three brokers under load and faults: no acknowledged record is lost.

Checked in every run: I1 no lost ack, I2 one value per offset, I3 no phantom, I4 no duplicate, I5
producer order, I8 what was read stays, I9 ends and marks never go back, I10 equal logs, I11 one
leader per epoch, I12 leader completeness, I13 nothing committed is cut, I14 sound in-sync sets, I16
convergence, I33 one writer of metadata.
"""

from __future__ import annotations

import pytest

from tests.sim.campaign import run_campaign
from tests.sim.faults import ALL_KINDS


@pytest.mark.parametrize("seed", range(8))
def test_I1_I4_I5_one_broker_keeps_its_promises(seed):
    assert run_campaign(seed, brokers=1, faults=2, operations=120).acked > 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(190))
def test_I1_I8_I12_I16_three_brokers_keep_their_promises(seed):
    """Each seed draws some kinds of faults; up to three run at once."""
    assert run_campaign(seed, brokers=3, faults=8, operations=90).acked > 45


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_I1_I8_I16_three_brokers_stand_every_kind_of_fault_alone(kind):
    done = run_campaign(1, brokers=3, faults=4, operations=60, kinds=[kind])
    assert done.acked > 30
    assert [fault.split()[1] for fault in done.faults] == [kind] * 4


@pytest.mark.parametrize("seed", range(4))
def test_I1_a_new_data_directory_survives_its_first_power_loss(seed):
    """Found by this test: the directory's own entry was not synced, and everything was lost."""
    run_campaign(seed, brokers=1, faults=1, operations=30, kinds=["power_loss_of_all"])


@pytest.mark.parametrize("seed", [6, 26])
def test_brokers_stop_cleanly_while_a_flush_runs(seed):
    """Found by these seeds: stopping a broker cancelled a running flush round."""
    run_campaign(seed, brokers=3, faults=2, operations=60, kinds=["restart_cleanly"])
