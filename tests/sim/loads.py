"""The loads that a campaign can put on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.sim.campaign import Campaign, Pace, run_campaign
from tests.sim.group_campaign import run_groups
from tests.sim.hold_campaign import run_holds
from tests.sim.transaction_campaign import run_transactions

__all__ = ["GROUPS", "HOLDS", "LOADS", "RECORDS", "TRANSACTIONS", "Load"]


class Load(Protocol):
    """Runs one seed; raises what it finds."""

    def __call__(
        self,
        seed: int,
        *,
        brokers: int,
        faults: int,
        operations: int,
        kinds: Sequence[str] = ...,
        pace: Pace | None = ...,
    ) -> Campaign: ...


RECORDS = "records"
"""Producers and readers without transactions."""
TRANSACTIONS = "transactions"
"""Transactional producers, and a reader of committed records."""
HOLDS = "holds"
"""Producers of held records, on brokers whose clocks are set."""
GROUPS = "groups"
"""Members of consumer groups of both protocols."""

LOADS: dict[str, Load] = {
    RECORDS: run_campaign,
    TRANSACTIONS: run_transactions,
    HOLDS: run_holds,
    GROUPS: run_groups,
}
