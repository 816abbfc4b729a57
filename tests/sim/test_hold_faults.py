"""Held records during faults and clock steps: none is lost, doubled or early (I31, I32, I45).

Some are sent in transactions: none comes before its commit, or after an abort (I18-I22).
"""

from __future__ import annotations

import pytest

from tests.sim.hold_campaign import run_holds

MOVES = ("reassign", "drain", "crash", "power_loss_of_all")
"""New replicas, and leaders that go before their releases have spread."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_I31_I32_I45_every_hold_comes_once_and_in_time_under_faults(seed):
    assert run_holds(seed, faults=6, operations=90).acked > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_I31_I32_I45_every_hold_comes_once_and_in_time_while_replicas_come_and_go(seed):
    assert run_holds(seed, faults=6, operations=90, kinds=MOVES).acked > 50
