"""The kill run finds nothing in a short run; `make kills` is the long one."""

from __future__ import annotations

import pytest

from tests.campaign.transaction_kills import KillRun, OneNode

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

KILLS = 4


def test_I20_I23_a_broker_that_is_killed_around_commits_keeps_its_promises(tmp_path):
    node = OneNode(tmp_path)
    try:
        summary = KillRun(node, brokers=1, seed=1).run(KILLS)
    finally:
        node.stop()
    assert summary.violations == []
    assert (summary.kills, summary.checks) == (KILLS, 1)
    assert summary.committed > KILLS
    assert summary.records_read > KILLS
