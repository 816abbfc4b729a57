from __future__ import annotations

import itertools
from dataclasses import dataclass

from tests.unit.metadata.small_cluster import SmallCluster, count_of
from tidemill.metadata.lease import Lease
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.metadata.store.coord import SessionState
from tidemill.testing.manual_clock import ManualClock


@dataclass
class Session:
    state: SessionState = SessionState.CONNECTED
    lease_until: float = 0.0
    ends_by_clock: bool = True


def test_only_who_is_registered_let_in_connected_and_in_time_may_act():
    for registered, fenced, state, ahead_s in itertools.product(
        (True, False), (True, False), SessionState, (5.0, 0.0, -5.0)
    ):
        clock = ManualClock()
        lease = Lease(Session(state, clock.boottime() + ahead_s), clock)
        lease.registered, lease.fenced = registered, fenced
        held = registered and state is SessionState.CONNECTED and ahead_s > 0
        assert lease.is_held == held
        assert lease.may_act == (held and not fenced)


def test_a_lease_ends_by_the_clock_alone_and_while_the_machine_sleeps():
    clock = ManualClock()
    lease = Lease(Session(lease_until=clock.boottime() + 3.0), clock)
    lease.registered, lease.fenced = True, False
    clock.advance(2.0)
    assert lease.may_act
    clock.sleep_machine(1.0)
    assert not lease.may_act


def test_I8_where_a_standby_may_take_over_nobody_vouches_or_is_vouched_for():
    lease = Lease(Session(), ManualClock())
    lease.registered, lease.fenced = True, False
    assert (lease.vouches, lease.is_let_in) == (True, True)
    lease.has_standby = True
    assert (lease.vouches, lease.is_let_in) == (False, False)


def test_on_one_host_nobody_vouches():
    assert not Lease(Session(ends_by_clock=False), ManualClock()).vouches


def test_a_broker_is_fenced_until_the_controller_has_let_its_registration_in(run):
    async def scenario() -> None:
        small = SmallCluster()
        first, second = await small.start(0, 1)
        assert first.may_act
        assert second.may_act
        small.notices_held = True
        small.server.expire(small.members[1].coord)
        await second.catch_up()  # registers again; the controller has not heard of it
        assert count_of(second.broker_epoch) == 3
        assert not second.may_act
        small.notices_held = False
        for member in small.members.values():
            small.server.suspend(member.coord)
            small.server.resume(member.coord)
        await small.catch_up()
        assert second.may_act
        assert {count_of(one.epoch) for one in second.image.members.values()} == {1, 3}

    run(scenario())


def test_a_controller_without_a_lease_changes_nothing(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t")])
        small.server.suspend(small.members[0].coord)
        assert not cluster.is_controller
        assert not cluster.may_act

    run(scenario())
