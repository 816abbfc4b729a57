"""What allows a leader to act: a lease, or the vouches of all that may be elected; and silence."""

from __future__ import annotations

from tests.support.partitions import ALL, OWN, SECOND, THIRD, Lease, Watch, image
from tidemill.replication.led_replicas import BrokerEpochs, LedReplicas
from tidemill.replication.mandate import Mandate
from tidemill.replication.vouching.silence import SILENCE_S
from tidemill.replication.waiting.follower_watches import FollowerWatches
from tidemill.testing.manual_clock import ManualClock


def led(*isr: int) -> LedReplicas:
    return LedReplicas(OWN, image(isr=isr), BrokerEpochs(), now=0.0)


def watches(**until: float) -> FollowerWatches:
    made = FollowerWatches()
    for follower, name in ((SECOND, "second"), (THIRD, "third")):
        if name in until:
            made.add(follower, Watch(vouched_until=until[name]))
    return made


def test_all_that_may_be_elected_must_vouch():
    clock = ManualClock()
    mandate, now = Mandate(Lease(), clock.boottime), clock.boottime()
    assert mandate.is_vouched(led(*ALL), watches(second=now + 1, third=now + 2))
    assert not mandate.is_vouched(led(*ALL), watches(second=now + 1, third=now))
    assert not mandate.is_vouched(led(*ALL), watches(second=now + 1))


def test_nobody_vouches_for_one_that_is_alone_or_was_not_let_in():
    clock, lease = ManualClock(), Lease()
    mandate, vouched = Mandate(lease, clock.boottime), watches(second=clock.boottime() + 1)
    assert not mandate.is_vouched(led(OWN), vouched)
    assert mandate.is_vouched(led(OWN, SECOND), vouched)
    lease.is_let_in = False
    assert not mandate.is_vouched(led(OWN, SECOND), vouched)


def test_in_a_cluster_without_vouches_only_the_lease_counts():
    lease = Lease()
    mandate = Mandate(lease, None)
    mandate.epoch_began(1)
    assert (mandate.has_lease, mandate.is_silent) == (True, False)
    assert not mandate.is_vouched(led(OWN, SECOND), watches(second=1e9))
    lease.may_act = False
    assert not mandate.has_lease


def test_the_silence_of_a_later_epoch_ends_by_time_or_when_the_former_leader_follows():
    clock = ManualClock()
    mandate = Mandate(Lease(), clock.boottime)
    clock.advance(SILENCE_S)
    mandate.stopped_following(SECOND, clock.boottime())
    mandate.epoch_began(0)
    assert not mandate.is_silent
    mandate.epoch_began(1)
    assert mandate.is_silent
    mandate.was_fetched_by(SECOND)
    assert not mandate.is_silent
    mandate.stopped_following(THIRD, clock.boottime())
    mandate.epoch_began(2)
    assert mandate.is_silent
    clock.advance(SILENCE_S)
    assert not mandate.is_silent
