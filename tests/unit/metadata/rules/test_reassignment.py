from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.rules.election import Live, new_partition
from tidemill.metadata.rules.reassignment import advanced, cancelled, reassigned

ALL = range(6)


def live(*brokers: int) -> Live:
    return Live(frozenset(brokers), frozenset(brokers))


def moving(*, isr: tuple[int, ...], leader: int = 0, elr: tuple[int, ...] = ()) -> PartitionImage:
    """From 0 1 2 to 3 1."""
    return PartitionImage(
        leader=leader,
        leader_epoch=4,
        replicas=(3, 1, 0, 2),
        isr=isr,
        elr=elr,
        last_known_leader=leader,
        adding=(3,),
        removing=(0, 2),
    )


def sets(found: PartitionImage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return found.replicas, found.adding, found.removing


def refusal(work: object, *arguments: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        work(*arguments)  # type: ignore[operator]
    return caught.value.code


# --- the beginning ---


def test_a_move_begins_with_old_and_new_replicas_and_the_same_leader():
    begun = reassigned(new_partition((0, 1, 2)), (3, 1), ALL, 2)
    assert sets(begun) == ((3, 1, 0, 2), (3,), (0, 2))
    assert (begun.leader, begun.leader_epoch, begun.isr) == (0, 0, (0, 1, 2))
    assert begun.target == (3, 1)


@pytest.mark.parametrize(
    ("suspects", "last_leader"), [((3,), -1), ((3,), 3), ((), 3)], ids=["suspect", "both", "leader"]
)
def test_I1_a_new_replica_that_alone_may_have_everything_is_not_dropped(suspects, last_leader):
    """Nobody is certain to have everything: those that ended unclean, or led last, come next."""
    before = replace(moving(isr=(), leader=-1), suspects=suspects, last_known_leader=last_leader)
    assert refusal(reassigned, before, (0, 1), ALL, 2) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert 3 in reassigned(before, (3, 0), ALL, 2).replicas
    others = replace(before, suspects=(0,))
    assert 3 not in reassigned(others, (0, 1), ALL, 2).replicas


def test_I1_no_suspect_is_dropped_before_it_has_told_where_its_log_ends():
    """The longest log of several leads: a single one that is left would not even be asked."""
    before = replace(moving(isr=(), leader=-1), suspects=(3, 0))
    assert refusal(reassigned, before, (0, 1), ALL, 2) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert 3 in reassigned(before, (3, 0), ALL, 2).replicas


def test_another_order_of_the_same_replicas_is_no_move():
    turned = reassigned(new_partition((0, 1, 2)), (2, 0, 1), ALL, 2)
    assert sets(turned) == ((2, 0, 1), (), ())
    assert turned.leader == 0


def test_the_replicas_of_now_are_nothing_to_change():
    before = new_partition((0, 1))
    assert reassigned(before, [0, 1], ALL, 1) == before


@pytest.mark.parametrize("target", [(), (1, 1), (9,), (0, 9)])
def test_replicas_that_cannot_be_are_refused(target):
    before = new_partition((0, 1))
    assert refusal(reassigned, before, target, ALL, 1) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_dead_replica_may_stay_one():
    assert reassigned(new_partition((0, 9)), (9, 0), [0], 1).replicas == (9, 0)


def test_a_move_that_is_replaced_drops_what_it_had_added_in_the_next_epoch():
    other = reassigned(moving(isr=(0, 1, 3)), (4, 1), ALL, 2)
    assert sets(other) == ((4, 1, 0, 2), (4,), (0, 2))
    assert (other.leader, other.leader_epoch, other.isr) == (0, 5, (0, 1))


def test_a_new_replica_that_leads_goes_like_one_that_is_removed():
    other = reassigned(moving(isr=(3, 1), leader=3), (0, 1), ALL, 2)
    assert sets(other) == ((0, 1, 3, 2), (), (3, 2))
    assert (other.leader, other.leader_epoch) == (3, 4)


def test_a_new_replica_that_led_a_moment_ago_is_kept_for_now():
    other = reassigned(moving(isr=(0, 1, 3)), (0, 1), ALL, 2, led_lately=[3])
    assert sets(other) == ((0, 1, 3, 2), (), (3, 2))


def test_the_only_complete_replica_is_not_dropped():
    lost = replace(moving(isr=(3,), leader=3), leader=-1)
    assert refusal(reassigned, lost, (0, 1), ALL, 1) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


# --- the way ---


def test_a_move_waits_until_the_whole_target_is_in_sync():
    waiting = moving(isr=(0, 1, 2))
    assert advanced(waiting, live(*ALL), 2) == waiting
    assert advanced(moving(isr=(0, 3)), live(*ALL), 2).leader == 0


def test_a_leader_that_goes_hands_over_first_and_stays_in_the_isr():
    handed = advanced(moving(isr=(3, 1, 0, 2)), live(*ALL), 2)
    assert (handed.leader, handed.leader_epoch) == (3, 5)
    assert handed.isr == (3, 1, 0, 2)
    assert sets(handed) == ((3, 1, 0, 2), (3,), (0, 2))


def test_nobody_takes_over_who_is_about_to_stop():
    handed = advanced(moving(isr=(3, 1, 0)), Live(frozenset(ALL), frozenset({0, 1, 2})), 2)
    assert handed.leader == 1


def test_I8_a_former_leader_stays_a_replica_until_it_must_know():
    handed = moving(isr=(3, 1, 0), leader=3)
    assert advanced(handed, live(*ALL), 2, led_lately=[0]) == handed
    done = advanced(handed, live(*ALL), 2)
    assert sets(done) == ((3, 1), (), ())


def test_a_replica_that_leaves_ends_the_leader_epoch():
    done = advanced(moving(isr=(3, 1, 0), leader=3), live(*ALL), 2)
    assert (done.leader, done.leader_epoch, done.isr) == (3, 5, (3, 1))


def test_a_partition_that_only_grows_keeps_its_epoch():
    grown = replace(new_partition((0, 1)), isr=(0, 1), adding=(1,))
    done = advanced(grown, live(*ALL), 1)
    assert (sets(done), done.leader_epoch) == (((0, 1), (), ()), 0)


def test_without_a_leader_nothing_moves_on():
    lost = replace(moving(isr=(3, 1)), leader=-1)
    assert advanced(lost, live(1, 2, 3), 2) == lost


# --- the minimum ---


def test_growing_from_one_replica_to_three_needs_one_in_sync_until_it_is_done():
    begun = reassigned(new_partition((0,)), (0, 1, 2), ALL, 2)
    assert begun.in_sync_min(2) == 1
    done = advanced(replace(begun, isr=(0, 1, 2)), live(*ALL), 2)
    assert done.in_sync_min(2) == 2


def test_shrinking_to_one_replica_lowers_the_minimum_and_clears_the_elr():
    before = replace(new_partition((0, 1, 2)), isr=(0,), elr=(1,))
    begun = reassigned(before, (0,), ALL, 2)
    assert (begun.in_sync_min(2), begun.elr) == (1, ())


def test_the_elr_stays_where_there_is_no_leader():
    before = replace(new_partition((0, 1, 2)), leader=-1, isr=(), elr=(1,))
    assert reassigned(before, (0,), ALL, 2).elr == (1,)


# --- taking it back ---


def test_a_move_that_is_taken_back_leaves_the_replicas_of_before_in_the_next_epoch():
    back = cancelled(moving(isr=(0, 1, 3)), live(*ALL), 2)
    assert sets(back) == ((1, 0, 2), (), ())
    assert (back.leader, back.leader_epoch, back.isr) == (0, 5, (0, 1))


def test_taking_back_is_refused_where_no_earlier_replica_is_in_sync():
    lost = moving(isr=(3,), leader=3)
    assert refusal(cancelled, lost, live(*ALL), 1) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_taking_back_is_refused_where_no_earlier_replica_could_lead():
    alone = moving(isr=(3, 0), leader=3)
    assert refusal(cancelled, alone, live(3), 1) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_new_leader_hands_over_when_its_move_is_taken_back():
    back = cancelled(moving(isr=(3, 1), leader=3), live(*ALL), 1)
    assert sets(back) == ((1, 0, 2, 3), (), (3,))
    assert (back.leader, back.leader_epoch, back.isr) == (1, 5, (3, 1))


def test_a_move_that_is_taken_back_twice_keeps_none_of_the_new_replicas():
    back = cancelled(moving(isr=(0, 1, 2, 3), leader=3), live(*ALL), 1)
    assert sets(back) == ((1, 0, 2, 3), (), (3,))
    assert refusal(cancelled, back, live(*ALL), 1, [3]) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_that_is_taken_back_twice_keeps_none_while_an_earlier_replica_is_not_in_sync():
    back = cancelled(moving(isr=(0, 2, 3), leader=3), live(*ALL), 1)
    assert sets(back) == ((1, 0, 2, 3), (), (3,))
    assert refusal(cancelled, back, live(*ALL), 1, [3]) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_replica_that_goes_is_taken_back_while_another_one_is_not_in_sync():
    fewer = replace(new_partition((0, 1, 2)), isr=(0, 2), removing=(2,))
    assert sets(cancelled(fewer, live(*ALL), 1)) == ((0, 1, 2), (), ())


def test_nothing_is_taken_back_where_nothing_moves():
    still = new_partition((0, 1))
    assert refusal(cancelled, still, live(0), 1) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
