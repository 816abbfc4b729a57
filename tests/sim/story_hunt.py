"""Which planted bugs a story of the simulator finds: what they break no campaign asks for.

python -m tests.support.interpreted tests.sim.story_hunt NAME
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from tests.sim.test_damage import (
    test_I17_damage_that_is_known_outlives_a_restart as restarts_with_damage,
)
from tests.sim.test_damage_races import (
    test_I10_a_cut_while_another_replica_is_asked_ends_the_mend as cuts_meanwhile,
)
from tests.sim.test_damage_races import (
    test_I14_a_follower_is_cut_whose_header_is_damaged_where_the_cut_is as recovers_with_damage,
)
from tests.sim.test_damaged_network import (
    test_I10_a_follower_takes_no_batch_that_changed_on_its_way as damages_the_network,
)
from tests.sim.test_deleted_topics import return_to_a_bad_page
from tests.sim.test_group_coordinator import ask_a_coordinator_without_a_lease
from tests.sim.test_owner_lease import (
    test_acknowledgements_that_waited_for_the_lease_leave_when_it_is_back as waits_for_the_lease,
)
from tests.sim.test_owner_lease import (
    test_I8_I15_a_leader_without_the_store_neither_reads_nor_appends_for_clients as asks_a_zombie,
)
from tests.sim.test_unheard_controller import (
    test_a_controller_stays_if_the_others_take_back_what_they_said as takes_back,
)
from tests.sim.test_unheard_controller import (
    test_a_controller_that_no_other_broker_hears_gives_up_its_office as cuts_off_the_controller,
)
from tests.sim.test_unheard_controller import (
    test_a_leader_that_alone_does_not_hear_the_controller_lets_another_lead as cuts_off_a_leader,
)
from tests.sim.test_unheard_controller import (
    test_who_steps_aside_leaves_an_office_that_it_does_not_know_of as steps_aside,
)
from tests.support.planted_bugs import find_planted

__all__ = ["STORIES", "find_in_story"]

SEED = 1
STORIES: dict[str, Callable[[], object]] = {
    "no lease at fetch": partial(asks_a_zombie, SEED),
    "no lease at a parked fetch": partial(asks_a_zombie, SEED),
    "no lease at append": partial(asks_a_zombie, SEED),
    "no lease at the marks": partial(waits_for_the_lease, SEED),
    "no lease at a coordinator": partial(ask_a_coordinator_without_a_lease, SEED),
    "strays purged with a bad page": return_to_a_bad_page,
    "damage forgotten over a restart": partial(restarts_with_damage, SEED),
    "silent replica lacks it": partial(restarts_with_damage, SEED),
    "follower with a hole gets in sync": partial(recovers_with_damage, SEED),
    "mend goes on after a cut": cuts_meanwhile,
    "replicated batches not verified": partial(damages_the_network, SEED),
    "unheard controller stays": partial(cuts_off_the_controller, SEED, leads=True),
    "one broker ends an office": partial(cuts_off_a_leader, SEED),
    "office given up at once": partial(takes_back, SEED),
    "office kept aside": partial(steps_aside, SEED),
    "nobody steps aside": partial(cuts_off_a_leader, SEED),
}


def find_in_story(name: str) -> str:
    """How the story ends while the bug is planted; empty: as without it."""
    return find_planted(name, STORIES[name], "tests.sim.story_hunt")


if __name__ == "__main__":
    sys.stdout.write(find_in_story(sys.argv[1]))
