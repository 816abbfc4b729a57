"""Groups that rebalance too often are slowed down; other groups are not (S41)."""

from __future__ import annotations

from tests.support.classic_desk import REBALANCE_MS, Client, Desk
from tests.support.consumer_desk import Client as ConsumerClient
from tests.support.consumer_desk import ConsumerDesk, settle
from tidemill.coordinators.group.base.rebalance_pace import BURST, INTERVAL_MS, RebalancePace


def test_burst_is_free_and_the_next_waits():
    pace = RebalancePace()
    waits = []
    for _ in range(BURST + 1):
        waits.append(pace.wait_ms(5_000))
        pace.count(5_000)
    assert waits == [0] * BURST + [INTERVAL_MS]


def test_time_gives_back_one_by_one():
    pace = RebalancePace()
    for _ in range(BURST):
        pace.count(0)
    assert pace.wait_ms(INTERVAL_MS - 1) == 1
    assert pace.wait_ms(INTERVAL_MS) == 0
    pace.count(INTERVAL_MS)
    assert pace.wait_ms(INTERVAL_MS) == INTERVAL_MS


def exhausted_desk() -> tuple[Desk, Client]:
    """A classic group of one member that has used up its burst of rebalances."""
    desk = Desk()
    [client] = desk.stable("ana")
    while desk.group.state_name == "Stable":
        desk.join(client)
        if desk.group.state_name == "CompletingRebalance":
            desk.sync(client, {client.member_id: b""})
    return desk, client


def test_S41_classic_group_that_rebalances_too_often_is_held_in_its_joining_phase():
    desk, client = exhausted_desk()
    generation = client.generation
    assert generation == BURST
    desk.advance(INTERVAL_MS - 1)
    assert desk.group.state_name == "PreparingRebalance"
    desk.advance(1)
    assert desk.group.state_name == "CompletingRebalance"
    assert client.generation == generation + 1


def test_S41_joins_within_the_hold_share_one_generation():
    desk, client = exhausted_desk()
    others = [Client(name) for name in ("ben", "cy")]
    for other in others:
        desk.join(other)
    desk.advance(INTERVAL_MS)
    assert {one.generation for one in (client, *others)} == {BURST + 1}


def test_S41_members_missing_after_the_hold_have_the_rest_of_the_timeout():
    desk, client = exhausted_desk()
    desk.advance(INTERVAL_MS)
    desk.sync(client, {client.member_id: b""})
    other = Client("ben", session_ms=REBALANCE_MS)
    desk.join(other)  # ana does not know yet
    desk.advance(INTERVAL_MS)
    assert desk.group.state_name == "PreparingRebalance"
    desk.join(client)
    assert client.generation == other.generation == BURST + 2


def test_S41_group_that_empties_and_fills_again_and_again_is_held_too():
    desk = Desk()
    for _ in range(BURST):
        [client] = desk.stable("ana")
        desk.leave(client)
    late = Client("ben")
    assert desk.join(late).waits
    desk.advance(INTERVAL_MS)
    assert late.generation > 0


def test_S41_consumer_group_that_changes_too_often_keeps_its_target_for_a_while():
    desk = ConsumerDesk({"t": 4})
    steady = ConsumerClient(desk, "steady", ["t"])
    settle(steady)
    targets = {desk.describe().assignment_epoch}
    for number in range(3 * BURST):
        ConsumerClient(desk, f"m{number}", ["t"]).beat()
        targets.add(desk.describe().assignment_epoch)
    assert len(targets) == BURST
    assert desk.group.state_name == "Assigning"
    desk.pass_ms(INTERVAL_MS)
    steady.beat()
    assert desk.describe().assignment_epoch == desk.describe().group_epoch
