"""A partition proposes in-sync sets, and moves its marks only as far as any outcome allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partitions import (
    ALL,
    OWN,
    SECOND,
    THIRD,
    SlowLog,
    append,
    fetched,
    image,
    leader,
    wait,
)
from tidemill.core.errors import ErrorCode
from tidemill.replication.in_sync import ids_of
from tidemill.replication.led_replicas import LAG_S_MAX
from tidemill.replication.partition import Partition


def propose(of: Partition, now: float = 1.0) -> tuple[int, ...] | None:
    proposal = of.try_propose_isr(now=now)
    return None if proposal is None else ids_of(proposal.isr)


@pytest.fixture
def proposed() -> Partition:
    """Two are in sync at 4, the third has just been proposed, and more was appended."""
    led = leader(isr=(OWN, SECOND))
    append(led, 4)
    fetched(SECOND, led, 4)
    fetched(THIRD, led, 4)
    return led


def test_I14_a_proposed_member_counts_before_the_controller_has_agreed(proposed):
    assert propose(proposed) == ALL
    append(proposed, 4)
    fetched(SECOND, proposed, 8)
    assert proposed.high_watermark == 4
    fetched(THIRD, proposed, 8)
    assert proposed.high_watermark == 8


def test_H1_a_proposal_without_an_answer_counts_as_made(proposed):
    proposal = proposed.try_propose_isr(now=1.0)
    append(proposed, 4)
    heard = wait(proposed, 8)
    proposed.isr_unanswered(proposal)
    fetched(SECOND, proposed, 8)
    assert heard == []
    again = proposed.try_propose_isr(now=1.0)
    assert again == proposal


def test_H2_another_image_of_the_same_state_does_not_take_a_proposal_back(proposed):
    proposed.isr_unanswered(proposed.try_propose_isr(now=1.0))
    append(proposed, 4)
    proposed.become_leader(image(isr=(OWN, SECOND)), now=2.0)
    fetched(SECOND, proposed, 8)
    assert proposed.high_watermark == 4


def test_H1_a_proposal_in_doubt_outlives_a_pause_of_the_leadership_in_the_same_epoch(proposed):
    proposed.isr_unanswered(proposed.try_propose_isr(now=1.0))
    proposed.step_back(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert propose(proposed) is None
    proposed.become_leader(image(isr=(OWN, SECOND)), now=2.0)
    append(proposed, 4)
    fetched(SECOND, proposed, 8)
    assert proposed.high_watermark == 4


def test_an_answer_is_adopted_before_the_image_has_it(proposed):
    proposal = proposed.try_propose_isr(now=1.0)
    state = image(isr=ALL, version=1)
    proposed.isr_answered(proposal, ErrorCode.NONE, state)
    assert proposed.isr == ALL
    assert propose(proposed) is None


def test_an_answer_of_an_earlier_leadership_changes_nothing(proposed):
    proposal = proposed.try_propose_isr(now=1.0)
    proposed.become_leader(image(epoch=1, version=2, isr=(OWN, SECOND)), now=1.0)
    proposed.isr_answered(proposal, ErrorCode.NONE, image(isr=ALL, version=1))
    proposed.isr_answered(replace(proposal, leader_epoch=1), ErrorCode.NONE, image(isr=ALL))
    assert proposed.isr == (OWN, SECOND)


def test_a_follower_that_lags_leaves_and_the_marks_wait_for_the_answer():
    led = leader(isr=(OWN, SECOND))
    append(led)
    proposal = led.try_propose_isr(now=1.0 + LAG_S_MAX)
    assert ids_of(proposal.isr) == (OWN,)
    assert led.high_watermark == 0
    led.isr_answered(proposal, ErrorCode.NONE, image(version=1))
    assert led.high_watermark == 1


def test_under_flush_group_a_follower_joins_only_with_all_that_is_durable_on_its_disk():
    led = leader()
    append(led, 4)
    fetched(SECOND, led, 4, flushed=3)
    assert propose(led) is None
    fetched(SECOND, led, 4, flushed=4)
    assert propose(led) == (OWN, SECOND)


def test_a_new_leader_admits_nobody_who_has_not_flushed_up_to_the_start_of_its_epoch():
    """Its durable offset starts low: what it promised before may be on other disks only."""
    log = SlowLog()
    led = leader(log)
    append(led, 4)
    log.flush()
    led.become_leader(image(epoch=1, version=1), now=1.0)
    led.durable_offset = 0
    fetched(SECOND, led, 4, flushed=3)
    assert propose(led) is None


def test_below_the_minimum_a_follower_joins_only_while_it_keeps_up():
    led = leader(isr=(OWN,), in_sync_min=2)
    append(led, 4, acks=1)
    fetched(SECOND, led, 2)
    assert propose(led) is None
    fetched(SECOND, led, 4)
    assert propose(led) == (OWN, SECOND)


def test_a_candidate_is_announced_once():
    led = leader(isr=(OWN, SECOND))
    heard: list[int] = []
    led.candidate_came = lambda: heard.append(1)
    append(led, 4)
    fetched(SECOND, led, 4)
    fetched(THIRD, led, 3)
    assert heard == []
    fetched(THIRD, led, 4)
    fetched(THIRD, led, 4)
    assert heard == [1]


def test_H8_a_restarted_member_holds_the_marks_until_it_fetches():
    led = leader(isr=(OWN, SECOND))
    append(led, 2)
    led.follower_restarted(SECOND)
    led.maybe_advance_marks()
    assert led.high_watermark == 0
    fetched(SECOND, led, 2)
    assert led.high_watermark == 2


def test_one_that_has_gone_does_not_join_again_because_the_marks_still_wait_for_it():
    led = leader(isr=(OWN, SECOND), in_sync_min=2)
    append(led)
    fetched(SECOND, led, 1)
    append(led, acks=1)
    late = 2.0 + LAG_S_MAX
    shrunk = led.try_propose_isr(now=late)
    assert shrunk is not None
    assert ids_of(shrunk.isr) == (OWN,)
    led.isr_answered(shrunk, ErrorCode.NONE, image(isr=(OWN,), version=1))
    assert led.high_watermark == 1
    assert propose(led, now=late) is None
    fetched(SECOND, led, 2, now=late)
    assert propose(led, now=late) == (OWN, SECOND)


def test_marks_do_not_wait_for_ever_for_one_that_has_gone_while_its_proposal_was_in_doubt(proposed):
    lost = proposed.try_propose_isr(now=1.0)
    assert lost is not None
    proposed.isr_unanswered(lost)
    late = 2.0 + LAG_S_MAX
    append(proposed, 4)
    fetched(SECOND, proposed, 8, now=late)
    again = proposed.try_propose_isr(now=late)
    assert again == lost
    proposed.isr_answered(lost, ErrorCode.INELIGIBLE_REPLICA, None)
    proposed.review_marks(now=late)
    touch = proposed.try_propose_isr(now=late)
    assert touch is not None
    assert ids_of(touch.isr) == (OWN, SECOND)
    proposed.isr_answered(touch, ErrorCode.NONE, image(isr=(OWN, SECOND), version=1))
    assert proposed.high_watermark == 8


def test_a_follower_that_fetches_but_does_not_flush_any_more_leaves_the_in_sync_set():
    led = leader(isr=ALL)
    for second in range(1, int(LAG_S_MAX) + 5):
        append(led)
        fetched(SECOND, led, second, now=second)
        fetched(THIRD, led, second, flushed=1, now=second)
        led.review_marks(now=second)
        if second <= LAG_S_MAX:
            assert propose(led, now=second) is None
    # Then: what waits for disks does not wait for its disk for ever.
    assert propose(led, now=second) == (OWN, SECOND)


def test_a_disk_that_hangs_does_not_hold_up_marks_as_that_of_a_candidate():
    led = leader(isr=(OWN, SECOND))
    for second in range(1, int(LAG_S_MAX) + 5):
        append(led)
        fetched(SECOND, led, second, now=second)
        fetched(THIRD, led, second, flushed=0, now=second)
        led.review_marks(now=second)
    assert led.durable_offset == second


def test_where_acknowledgements_do_not_wait_for_disks_a_follower_need_not_flush():
    led = leader(isr=ALL)
    led.set_settings(replace(led.settings, flush_before_ack=False))
    for second in range(1, int(LAG_S_MAX) + 5):
        append(led)
        fetched(SECOND, led, second, flushed=0, now=second)
        fetched(THIRD, led, second, flushed=0, now=second)
        led.review_marks(now=second)
        assert propose(led, now=second) is None
