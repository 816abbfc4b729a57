"""Which planted bugs the models find, each with the smallest world that does.

    python -m tests.support.interpreted tests.model.planted NAME

says the steps that lead to the broken promise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from tests.model import in_sync_model, reassignment_model, replica_model
from tests.model.in_sync_model import Rules
from tests.model.reassignment_model import MoveRules
from tests.model.replica_model import NEVER, SOMETIME, Budget, World
from tests.support.planted_bugs import find_planted

__all__ = ["HUNTS", "find_in_model"]

STATES_MAX = 100_000

_replicas = partial(replica_model.explore, states_max=STATES_MAX)
_sets = partial(in_sync_model.explore, Rules.real(), states_max=STATES_MAX)
_moves = partial(reassignment_model.explore, MoveRules(), states_max=STATES_MAX)

PAIR = World(2)
OUTSIDER = World(2, isr=(0,), flushes=SOMETIME)
FORGETFUL = World(2, flushes=NEVER)
CANDIDATE = FORGETFUL._replace(isr=(0,))
SUSPECTS = World(2, min_isr=2, flushes=NEVER, hears_at_once=True)
UNCLEAN = Budget(crashes=2, power_losses=1)
DOUBT = in_sync_model.Budget(appends=1, failovers=1, unknowns=1, leavings=0)
ELSEWHERE, AWAY_AND_BACK = ((2, 1),), ((0, 1), (0, 1, 2))


def _move(replicas: tuple[int, ...], targets: reassignment_model.Targets, **more: int) -> Hunt:
    budget = reassignment_model.Budget(targets, crashes=0, **more)
    return partial(_moves, replicas, budget)


Hunt = Callable[[], int]
HUNTS: dict[str, Hunt] = {
    # --- who leads
    "elect outside the isr": partial(_replicas, SUSPECTS, UNCLEAN),
    "first suspect instead of the longest log": partial(_replicas, SUSPECTS, UNCLEAN),
    "shortest log leads": partial(_replicas, SUSPECTS, UNCLEAN),
    "absent suspect not waited for": partial(_replicas, SUSPECTS._replace(records=1), UNCLEAN),
    "answer of a former life counts": partial(_replicas, SUSPECTS, UNCLEAN),
    "unclean restart stays in sync": partial(_replicas, FORGETFUL, Budget(power_losses=1)),
    "new disk stays in elr": partial(_replicas, SUSPECTS, Budget(crashes=1, new_disks=1)),
    "one life keeps its epoch": partial(_replicas, PAIR, Budget(clean_stops=1)),
    "fenced one serves followers": partial(_replicas, FORGETFUL, Budget(power_losses=1)),
    # --- who is in sync
    "join too early": partial(_replicas, OUTSIDER, Budget()),
    "join unflushed": partial(_replicas, OUTSIDER, Budget()),
    "join by stale high watermark": partial(
        _replicas,
        World(3, records=1, flushes=NEVER, hears_at_once=True),
        Budget(appends=0, clean_stops=1, power_losses=1, late=1),
    ),
    "any life may join": partial(_replicas, CANDIDATE, Budget(power_losses=1, late=1)),
    "no broker epoch check": partial(_replicas, FORGETFUL, Budget(power_losses=1, late=1)),
    "position of a former life counts": partial(_replicas, FORGETFUL, Budget(power_losses=1)),
    "skip unknown member": partial(_sets, (0, 1), DOUBT),
    "withdraw on unknown": partial(_sets, (0, 1), DOUBT),
    "withdraw on any refusal": partial(_sets, (0, 1), DOUBT),
    "reset on any image": partial(_sets, (0, 1), DOUBT),
    "joining member is not feared": partial(_sets, (0, 1), DOUBT),
    # --- what a follower cuts
    "no truncation": partial(_replicas, PAIR, Budget(appends=2, crashes=1)),
    "empty epoch stays": partial(_replicas, PAIR, Budget(crashes=1)),
    "truncate to the high watermark": partial(
        _replicas, World(3, hears_at_once=True), Budget(appends=2, crashes=1, late=1)
    ),
    # --- moves
    "no epoch bump when a replica leaves": _move((0, 1, 2), AWAY_AND_BACK),
    "former leader forgotten at once": _move((0, 1), ELSEWHERE),
    "reassigned leader dropped from the isr": _move((0, 1), ELSEWHERE),
    "moved leader dropped from the isr": _move((0, 1), (), stops=1),
}


def find_in_model(name: str) -> str:
    """The steps that lead to a broken promise while the bug is planted; empty: it was not found."""
    return find_planted(name, HUNTS[name], "tests.model.planted")


if __name__ == "__main__":
    sys.stdout.write(find_in_model(sys.argv[1]))
