"""Clusters of one and of three brokers under load and faults: no acknowledged record is lost.

Checked in every run: I1 no lost ack, I2 one value per offset, I3 no phantom, I4 no duplicate, I5
producer order, I9 ends never go back, I10 equal logs, I16 convergence.
"""

from __future__ import annotations

import pytest

from tests.sim.campaign import run_campaign


@pytest.mark.parametrize("seed", range(8))
def test_I1_I4_I5_one_broker_keeps_its_promises(seed):
    assert run_campaign(seed, brokers=1, faults=2, operations=120).acked > 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_I1_I10_I16_three_brokers_keep_their_promises(seed):
    assert run_campaign(seed, brokers=3, faults=3, operations=90).acked > 45


@pytest.mark.parametrize("seed", range(4))
def test_I1_a_new_data_directory_survives_its_first_power_loss(seed):
    """Found by this test: the directory's own entry was not synced, and everything was lost."""
    run_campaign(seed, brokers=1, faults=1, operations=30, kinds=["power_loss_of_all"])


@pytest.mark.parametrize("seed", [6, 26])
def test_brokers_stop_cleanly_while_a_flush_runs(seed):
    """Found by these seeds: stopping a broker cancelled a running flush round."""
    run_campaign(seed, brokers=3, faults=2, operations=60, kinds=["restart_cleanly"])
