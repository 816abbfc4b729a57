"""Leading without a lease while all that may be elected vouch, and the silence of a new leader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partitions import (
    ALL,
    OWN,
    SECOND,
    THIRD,
    Lease,
    Watch,
    append,
    fetched,
    image,
    leader,
    partition,
    refusal,
    wait,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.led_replicas import LAG_S_MAX
from tidemill.replication.partition import Partition
from tidemill.replication.vouching.silence import SILENCE_S, Silence
from tidemill.replication.vouching.vouch import ANSWERS_MAX, NO_VOUCH, VOUCH_S, Vouch
from tidemill.testing.manual_clock import ManualClock

BOTH = (OWN, SECOND)


class Bench:
    """A leader whose followers vouch for it, and that has just lost its lease."""

    def __init__(self, *, isr: tuple[int, ...] = ALL, **options: object) -> None:
        self.clock = ManualClock()
        self.lease = Lease()
        self.led = leader(isr=isr, lease=self.lease, boottime=self.clock.boottime, **options)
        for follower in (SECOND, THIRD):
            self.vouch(follower)
        self.lease.may_act = False

    def vouch(self, follower: int) -> None:
        until = self.clock.boottime() + VOUCH_S
        self.led.follower_watches.add(follower, Watch(vouched_until=until))


def refuses(led: Partition) -> bool:
    with pytest.raises(KafkaError) as caught:
        append(led)
    return refusal(caught) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- a vouch --------------------------------------------------------------------------------------


def test_a_vouch_counts_from_when_the_answer_was_made_not_from_its_confirmation():
    vouch = Vouch()
    vouch.answered(1, 10.0)
    assert vouch.until == NO_VOUCH
    vouch.answered(2, 10.5)
    vouch.confirmed(1)
    assert vouch.until == 10.0 + VOUCH_S
    vouch.confirmed(1)
    assert vouch.until == 10.0 + VOUCH_S
    vouch.confirmed(2)
    assert vouch.until == 10.5 + VOUCH_S


def test_answers_that_are_never_confirmed_are_forgotten():
    vouch = Vouch()
    for number in range(10 * ANSWERS_MAX):
        vouch.answered(number, float(number))
    assert len(vouch._sent_at) == ANSWERS_MAX


# --- the leader -----------------------------------------------------------------------------------


def test_a_leader_without_a_lease_goes_on_while_all_others_vouch():
    bench = Bench()
    heard = wait(bench.led, append(bench.led, 3).next_offset)
    for follower in (SECOND, THIRD):
        fetched(follower, bench.led, 3)
    assert (bench.led.high_watermark, heard) == (3, [ErrorCode.NONE])
    bench.led.check_leader()


def test_a_leader_without_a_lease_sends_no_reader_to_followers_that_have_none_either():
    bench = Bench()
    fetched(SECOND, bench.led, 0)
    assert bench.led.may_act
    assert bench.led.in_sync_readers(0) == []
    bench.lease.may_act = True
    assert bench.led.in_sync_readers(0) == [SECOND]


def test_a_vouch_that_has_run_out_stops_appends_reads_and_marks():
    bench = Bench()
    heard = wait(bench.led, append(bench.led, 3).next_offset)
    bench.clock.advance(VOUCH_S)
    bench.vouch(SECOND)
    for follower in (SECOND, THIRD):
        fetched(follower, bench.led, 3)
    assert refuses(bench.led)
    assert (bench.led.high_watermark, heard, bench.led.marks_are_held) == (0, [], True)
    bench.vouch(THIRD)
    bench.led.review_marks(now=1.0)
    assert (bench.led.high_watermark, heard) == (3, [ErrorCode.NONE])


def test_a_vouch_runs_out_while_the_machine_sleeps():
    bench = Bench()
    bench.clock.sleep_machine(VOUCH_S)
    assert refuses(bench.led)


def test_a_vouch_ends_with_the_followers_session():
    bench = Bench()
    watch = Watch(vouched_until=bench.clock.boottime() + VOUCH_S)
    bench.led.follower_watches.add(SECOND, watch)
    bench.led.follower_watches.remove(SECOND, watch)
    assert refuses(bench.led)


def test_nobody_vouches_for_a_leader_that_is_alone_in_sync():
    assert refuses(Bench(isr=(OWN,)).led)


def test_nobody_vouches_where_replicas_that_are_not_in_sync_may_be_elected():
    assert refuses(Bench(allows_unclean=True).led)


def test_a_registration_that_is_over_is_not_vouched_for():
    bench = Bench()
    bench.lease.is_let_in = False
    assert refuses(bench.led)


@pytest.mark.parametrize("field", ["elr", "suspects"])
def test_whoever_else_may_be_elected_must_vouch_too(field):
    bench = Bench(isr=BOTH)
    bench.led.become_leader(replace(image(isr=BOTH, version=1), **{field: (THIRD,)}), now=0.0)
    append(bench.led)
    bench.led.follower_watches.add(THIRD, Watch())
    assert refuses(bench.led)


def test_one_that_left_by_a_proposal_must_vouch_until_an_image_says_what_became_of_it():
    """The controller may hold it for eligible: its answer does not say so, only an image does."""
    bench = Bench()
    led = bench.led
    bench.lease.may_act = True
    append(led)
    fetched(SECOND, led, 1, now=LAG_S_MAX)
    proposal = led.try_propose_isr(now=LAG_S_MAX + 1.0)
    assert proposal is not None
    assert [one for one, _ in proposal.isr] == [OWN, SECOND]
    after = image(isr=BOTH, version=1)
    led.isr_answered(proposal, ErrorCode.NONE, after)
    bench.lease.may_act = False
    led.follower_watches.add(THIRD, Watch())
    assert refuses(led)
    led.become_leader(after, now=LAG_S_MAX + 1.0)
    append(led)


# --- the successor --------------------------------------------------------------------------------


def test_a_new_leader_is_silent_until_the_last_vouch_has_run_out():
    clock = ManualClock()
    made = partition(boottime=clock.boottime)
    made.become_follower(image(leader=SECOND, epoch=1, isr=BOTH))
    clock.advance(10.0)
    made.mandate.stopped_following(SECOND, clock.boottime())
    made.become_leader(image(epoch=2, isr=(OWN,)), now=0.0)
    clock.advance(SILENCE_S - 0.01)
    assert refuses(made)
    assert made.try_propose_isr(now=0.0) is None
    made.check_serves_followers()
    clock.advance(0.02)
    append(made)


def test_the_silence_ends_when_the_former_leader_fetches():
    clock = ManualClock()
    made = partition(boottime=clock.boottime)
    clock.advance(10.0)
    made.mandate.stopped_following(SECOND, clock.boottime())
    made.become_leader(image(epoch=2, isr=BOTH), now=0.0)
    fetched(THIRD, made, 0)
    assert refuses(made)
    fetched(SECOND, made, 0)
    append(made)


def test_the_silence_ends_only_when_all_that_were_vouched_for_have_fetched():
    silence = Silence(0.0)
    silence.heard(SECOND, 10.0)
    silence.heard(THIRD, 10.1)
    silence.has_fetched(THIRD)
    assert silence.holds(10.2)
    silence.has_fetched(SECOND)
    assert not silence.holds(10.2)


def test_a_process_that_starts_is_silent_as_it_may_have_vouched_before():
    clock = ManualClock()
    made = leader(epoch=1, boottime=clock.boottime)
    assert refuses(made)
    clock.advance(SILENCE_S)
    append(made)


def test_a_leader_of_the_first_epoch_has_no_predecessor_to_wait_for():
    append(leader(epoch=0, boottime=ManualClock().boottime))


def test_without_vouches_in_the_cluster_nobody_is_silent():
    append(leader(epoch=1))
