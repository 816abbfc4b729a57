from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import PartitionImage, Return
from tidemill.metadata.rules.election import (
    ElectionRules,
    Live,
    after_choice,
    after_isr_change,
    after_return,
    new_partition,
    preferred_election,
    unclean_election,
    who_must_tell,
    with_live_brokers,
)
from tidemill.metadata.rules.log_ends import LogEnd, LogEnds

ONE = ElectionRules(min_isr=1)
TWO = ElectionRules(min_isr=2)
UNCLEAN = ElectionRules(min_isr=1, allows_unclean=True)


def partition(
    leader: int, *, isr: tuple[int, ...], elr: tuple[int, ...] = (), last: int | None = None
) -> PartitionImage:
    return PartitionImage(
        leader=leader,
        leader_epoch=4,
        replicas=(0, 1, 2),
        isr=isr,
        elr=elr,
        last_known_leader=leader if last is None else last,
        partition_epoch=9,
    )


def live(*brokers: int) -> Live:
    return Live(frozenset(brokers), frozenset(brokers))


def state(found: PartitionImage) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return found.leader, found.leader_epoch, found.isr, found.elr


def test_a_new_partition_is_led_by_its_first_replica_with_all_in_sync():
    made = new_partition((2, 0))
    assert state(made) == (2, 0, (2, 0), ())
    assert made.last_known_leader == 2


def test_with_all_brokers_alive_nothing_changes():
    before = partition(0, isr=(0, 1, 2))
    assert with_live_brokers(before, live(0, 1, 2), TWO) == before


def test_a_dead_follower_leaves_the_isr_in_the_same_epoch():
    after = with_live_brokers(partition(0, isr=(0, 1, 2)), live(0, 1), TWO)
    assert state(after) == (0, 4, (0, 1), ())


def test_I11_a_dead_leader_is_replaced_from_the_isr_in_the_next_epoch():
    after = with_live_brokers(partition(0, isr=(0, 2)), live(1, 2), ONE)
    assert state(after) == (2, 5, (2,), ())
    assert after.last_known_leader == 2


def test_a_replica_that_leaves_an_isr_below_the_minimum_moves_to_the_elr():
    after = with_live_brokers(partition(0, isr=(0, 1)), live(0), TWO)
    assert state(after) == (0, 4, (0,), (1,))


def test_with_no_in_sync_replica_alive_the_partition_has_no_leader():
    after = with_live_brokers(partition(0, isr=(0,)), live(1, 2), ONE)
    assert state(after) == (-1, 5, (), (0,))
    assert after.last_known_leader == 0
    assert with_live_brokers(after, live(1, 2), ONE) == after


def test_the_last_in_sync_replica_leads_again_when_it_comes_back():
    waiting = partition(-1, isr=(), elr=(0,), last=0)
    assert state(with_live_brokers(waiting, live(0, 1), ONE)) == (0, 5, (0,), ())


def test_a_leader_from_the_elr_keeps_the_rest_of_the_elr():
    waiting = partition(-1, isr=(), elr=(1, 0), last=0)
    assert state(with_live_brokers(waiting, live(1), TWO)) == (1, 5, (1,), (0,))


def test_a_leader_from_the_isr_is_preferred_to_one_from_the_elr():
    waiting = partition(-1, isr=(2,), elr=(0,), last=2)
    assert with_live_brokers(waiting, live(0, 2), TWO).leader == 2


def test_the_last_known_leader_returns_only_when_isr_and_elr_are_empty():
    lost = partition(-1, isr=(), elr=(), last=1)
    assert state(with_live_brokers(lost, live(0, 1), TWO)) == (1, 5, (1,), ())
    waiting = partition(-1, isr=(), elr=(0,), last=1)
    assert with_live_brokers(waiting, live(1), TWO).leader == -1


def test_an_unclean_election_happens_only_where_the_topic_allows_it():
    before = partition(0, isr=(0,))
    assert with_live_brokers(before, live(2), ONE).leader == -1
    assert state(with_live_brokers(before, live(2), UNCLEAN)) == (2, 5, (2,), ())


def test_an_unclean_election_of_several_waits_until_each_has_told_its_end_or_stays_silent():
    waiting = with_live_brokers(partition(0, isr=(0,)), live(1, 2), UNCLEAN)
    assert state(waiting) == (-1, 5, (), (0,))
    assert who_must_tell(waiting, {1, 2}, UNCLEAN) == [1, 2]
    one_told = LogEnds({1: LogEnd(3, 9)})
    assert with_live_brokers(waiting, live(1, 2), UNCLEAN, one_told) == waiting
    both_told = LogEnds({1: LogEnd(3, 9), 2: LogEnd(4, 2)})
    after = with_live_brokers(waiting, live(1, 2), UNCLEAN, both_told)
    assert state(after) == (2, 6, (2,), ())
    assert after.unclean_epoch == 6
    one_silent = LogEnds({1: LogEnd(3, 9)}, silent={2})
    assert with_live_brokers(waiting, live(1, 2), UNCLEAN, one_silent).leader == 1
    assert with_live_brokers(waiting, live(1, 2), UNCLEAN, LogEnds({}, {1, 2})) == waiting


def test_an_elr_beside_a_large_enough_isr_is_cleared():
    stale = partition(0, isr=(0,), elr=(1,))
    assert state(with_live_brokers(stale, live(0, 1), ONE)) == (0, 4, (0,), ())
    # The leader dies at the same moment: a replica in the stale elr may lack records.
    assert state(with_live_brokers(stale, live(1), ONE)) == (-1, 5, (), (0,))


# --- unclean restarts ---


def test_I14_an_unclean_broker_leaves_isr_and_elr():
    assert state(after_return(partition(0, isr=(0, 1)), 1, Return.UNCLEAN)) == (0, 4, (0,), ())
    assert state(after_return(partition(0, isr=(0,), elr=(1,)), 1, Return.UNCLEAN)) == (
        0,
        4,
        (0,),
        (),
    )


def test_I14_an_unclean_leader_resigns_if_others_are_in_sync():
    assert state(after_return(partition(0, isr=(0, 1)), 0, Return.UNCLEAN)) == (-1, 5, (1,), ())
    waiting = partition(0, isr=(0,), elr=(1,))
    assert state(after_return(waiting, 0, Return.UNCLEAN)) == (-1, 5, (), (1,))


def test_the_only_in_sync_replica_is_a_suspect_after_an_unclean_stop_if_there_are_others():
    after = after_return(partition(0, isr=(0,)), 0, Return.UNCLEAN)
    assert (state(after), after.suspects) == ((-1, 5, (), ()), (0,))


def test_the_only_replica_leads_in_a_new_epoch_after_an_unclean_stop():
    alone = replace(new_partition((0,)), leader_epoch=7)
    assert state(after_return(alone, 0, Return.UNCLEAN)) == (0, 8, (0,), ())


def test_an_unclean_broker_outside_isr_and_elr_changes_nothing():
    before = partition(0, isr=(0, 1))
    assert after_return(before, 2, Return.UNCLEAN) == before


def test_a_leader_that_returns_leads_in_the_next_epoch():
    """No two lives of a broker share a leader epoch."""
    before = partition(0, isr=(0, 1))
    assert state(after_return(before, 0, Return.CLEAN)) == (0, 5, (0, 1), ())
    assert after_return(before, 1, Return.CLEAN) == before
    alone = new_partition((0,))
    assert after_return(alone, 0, Return.CLEAN) == alone


def test_a_broker_with_a_new_disk_leaves_isr_and_elr_and_never_leads_by_itself():
    assert state(after_return(partition(0, isr=(0, 1)), 0, Return.NEW_DISK)) == (-1, 5, (1,), ())
    alone = after_return(partition(0, isr=(0,)), 0, Return.NEW_DISK)
    assert state(alone) == (-1, 5, (), ())
    assert with_live_brokers(alone, live(0, 1, 2), ONE) == alone
    lost = partition(-1, isr=(), last=0)
    assert with_live_brokers(lost, live(0), ONE).leader == 0
    assert with_live_brokers(after_return(lost, 0, Return.NEW_DISK), live(0), ONE).leader == -1


# --- suspects ---


def suspected(*suspects: int, last: int = 0) -> PartitionImage:
    return replace(partition(-1, isr=(), last=last), suspects=suspects)


def ends(**told: tuple[int, int]) -> LogEnds:
    return LogEnds({int(name[1:]): LogEnd(*end) for name, end in told.items()})


@pytest.mark.parametrize(
    ("told", "leader"),
    [
        (ends(b0=(4, 9), b1=(4, 9)), 0),
        (ends(b0=(4, 9), b1=(4, 10)), 1),
        (ends(b0=(4, 12), b1=(5, 10)), 1),
        (ends(b0=(5, 9), b1=(4, 12), b2=(6, 12)), 0),
    ],
    ids=["as long: the last leader", "longer", "of a later epoch", "others do not count"],
)
def test_I12_the_suspect_with_the_longest_log_leads_in_an_unclean_epoch(told, leader):
    after = with_live_brokers(suspected(0, 1), live(0, 1, 2), TWO, told)
    assert state(after) == (leader, 5, (leader,), ())
    assert after.unclean_epoch == 5
    assert after.suspects == (1 - leader,)


def test_I12_a_suspect_that_is_down_or_silent_is_waited_for():
    waiting = suspected(0, 1)
    assert with_live_brokers(waiting, live(0, 2), TWO, ends(b0=(4, 9))) == waiting
    silent = LogEnds({0: LogEnd(4, 9)}, silent={1})
    assert with_live_brokers(waiting, live(0, 1, 2), TWO, silent) == waiting
    assert who_must_tell(waiting, {0, 2}, TWO) == []
    assert who_must_tell(waiting, {0, 1, 2}, TWO) == [0, 1, 2]


def test_a_topic_that_allows_unclean_elections_waits_for_no_suspect_that_is_down():
    waiting = suspected(0, 1)
    assert who_must_tell(waiting, {0, 2}, UNCLEAN) == [0, 2]
    told = ends(b0=(4, 9), b2=(4, 7))
    assert with_live_brokers(waiting, live(0, 2), UNCLEAN, told).leader == 0


def test_a_topic_that_allows_unclean_elections_waits_for_no_silent_suspect():
    waiting = suspected(0, 1)
    assert who_must_tell(waiting, {0, 1, 2}, UNCLEAN) == [0, 1, 2]
    told = LogEnds({0: LogEnd(4, 9), 2: LogEnd(4, 7)})
    assert with_live_brokers(waiting, live(0, 1, 2), UNCLEAN, told) == waiting
    silent = LogEnds(told.ends, silent={1})
    assert with_live_brokers(waiting, live(0, 1, 2), UNCLEAN, silent).leader == 0


def test_a_single_suspect_leads_once_it_has_told_that_it_has_something():
    assert who_must_tell(suspected(1), {0, 1, 2}, TWO) == [0, 1, 2]
    assert with_live_brokers(suspected(1), live(0, 1, 2), TWO) == suspected(1)
    told = ends(b0=(4, 12), b1=(4, 3))
    assert with_live_brokers(suspected(1), live(0, 1), TWO, told).leader == 1


def test_I1_a_suspect_whose_log_has_nothing_does_not_lead_before_all_replicas_have_told():
    waiting, empty = suspected(1), {"b1": (-1, 0)}
    for told in (ends(**empty), ends(**empty, b0=(4, 12))):
        assert with_live_brokers(waiting, live(0, 1), TWO, told) == waiting
    told = ends(**empty, b0=(4, 12), b2=(4, 9))
    assert with_live_brokers(waiting, live(0, 1, 2), TWO, told).leader == 0


def test_a_partition_without_any_record_goes_on_when_all_replicas_have_told():
    nothing = ends(b0=(-1, 0), b1=(-1, 0), b2=(-1, 0))
    assert with_live_brokers(suspected(1), live(0, 1, 2), TWO, nothing).leader in {0, 1, 2}


def test_the_only_replica_is_not_asked():
    alone = replace(suspected(1), replicas=(1,))
    assert who_must_tell(alone, {1}, ONE) == []
    assert with_live_brokers(alone, live(1), ONE).leader == 1


def test_whoever_is_certain_leads_although_there_are_suspects():
    waiting = replace(suspected(0, 1), elr=(2,))
    assert who_must_tell(waiting, {0, 1, 2}, TWO) == []
    assert with_live_brokers(waiting, live(0, 1), TWO, ends(b0=(4, 9), b1=(4, 9))) == waiting
    after = with_live_brokers(waiting, live(0, 1, 2), TWO)
    assert (after.leader, after.suspects) == (2, (0, 1))


def test_a_suspect_counts_only_while_the_marks_stand_still_without_it():
    few = replace(partition(0, isr=(0,)), suspects=(1,))
    assert with_live_brokers(few, live(0, 1), TWO) == few
    enough = replace(partition(0, isr=(0, 2)), suspects=(1,))
    assert with_live_brokers(enough, live(0, 1, 2), TWO).suspects == ()
    assert proposed(few, (0, 1)).suspects == ()
    # The return of 0 and 2 is waited for: nothing can have moved on without 1.
    awaited = Live(frozenset({0, 1, 2}), frozenset({1}))
    assert with_live_brokers(enough, awaited, TWO) == enough


# --- brokers that are about to stop ---


def test_a_leader_that_is_about_to_stop_hands_over_and_stays_in_sync():
    all_live = Live(frozenset({0, 1, 2}), frozenset({1, 2}), frozenset({0}))
    after = with_live_brokers(partition(0, isr=(0, 2)), all_live, ONE)
    assert state(after) == (2, 5, (0, 2), ())


def test_a_leader_that_is_about_to_stop_goes_on_where_no_other_is_in_sync():
    all_live = Live(frozenset({0, 1, 2}), frozenset({1, 2}), frozenset({0}))
    alone = partition(0, isr=(0,))
    assert with_live_brokers(alone, all_live, ONE) == alone


# --- elections that somebody asks for ---


def test_the_preferred_replica_leads_again_if_it_is_in_sync():
    assert state(preferred_election(partition(1, isr=(1, 0)), live(0, 1))) == (0, 5, (1, 0), ())


@pytest.mark.parametrize(
    ("before", "alive", "code"),
    [
        (partition(0, isr=(0, 1)), (0, 1), ErrorCode.ELECTION_NOT_NEEDED),
        (partition(1, isr=(1,)), (0, 1), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (partition(1, isr=(0, 1)), (1,), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ],
)
def test_a_preferred_election_that_cannot_be_is_refused(before, alive, code):
    with pytest.raises(KafkaError) as refused:
        preferred_election(before, live(*alive))
    assert refused.value.code is code


BOTH_TOLD = ends(b0=(4, 7), b1=(4, 9))


@pytest.mark.parametrize(
    ("before", "alive", "told", "after"),
    [
        (partition(-1, isr=(), elr=(2,), last=0), (0, 1, 2), BOTH_TOLD, (2, 5, (2,), ())),
        (partition(-1, isr=(), elr=(2,), last=0), (0, 1), BOTH_TOLD, (1, 5, (1,), ())),
        (partition(-1, isr=(), last=-1), (0, 1, 2), BOTH_TOLD, (1, 5, (1,), ())),
        (partition(-1, isr=(), last=-1), (2,), LogEnds(), (2, 5, (2,), ())),
        (suspected(0, 1), (0, 2), ends(b0=(4, 7), b2=(3, 9)), (0, 5, (0,), ())),
    ],
    ids=["certain", "longest", "of those that told", "the only one", "a suspect is gone"],
)
def test_an_unclean_election_prefers_who_is_certain_then_the_longest_log(
    before, alive, told, after
):
    elected = unclean_election(before, live(*alive), told)
    assert state(elected) == after
    assert elected.suspects == ()


def test_an_unclean_election_replaces_no_leader_that_lives_and_needs_a_live_replica():
    for before, alive, code in (
        (partition(0, isr=(0,)), (0, 1), ErrorCode.ELECTION_NOT_NEEDED),
        (partition(-1, isr=()), (), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (partition(-1, isr=()), (0, 1), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ):
        with pytest.raises(KafkaError) as refused:
            unclean_election(before, live(*alive))
        assert refused.value.code is code


# --- proposals of the leader ---


def proposed(
    before: PartitionImage,
    isr: tuple[int, ...],
    *,
    leader_epoch: int = 4,
    partition_epoch: int = 9,
    min_isr: int = 2,
) -> PartitionImage:
    return after_isr_change(
        before,
        isr,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        eligible={0, 1},
        min_isr=min_isr,
    )


def test_a_follower_joins_the_isr_and_the_elr_empties():
    after = proposed(partition(1, isr=(1,), elr=(0, 2)), (1, 0))
    assert state(after) == (1, 4, (0, 1), ())


def test_a_follower_leaves_the_isr_for_the_elr_when_too_few_are_left():
    assert state(proposed(partition(0, isr=(0, 1)), (0,))) == (0, 4, (0,), (1,))
    assert state(proposed(partition(0, isr=(0, 1)), (0,), min_isr=1)) == (0, 4, (0,), ())


def test_one_joins_while_another_leaves():
    assert state(proposed(partition(0, isr=(0, 2)), (0, 1))) == (0, 4, (0, 1), ())


@pytest.mark.parametrize(
    ("isr", "epochs", "code"),
    [
        ((0, 1), {"leader_epoch": 3}, ErrorCode.FENCED_LEADER_EPOCH),
        ((0, 1), {"leader_epoch": 5}, ErrorCode.FENCED_LEADER_EPOCH),
        ((0, 1), {"partition_epoch": 8}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1,), {}, ErrorCode.INVALID_REQUEST),
        ((0, 7), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((0, 2), {}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_I15_a_proposal_that_is_stale_or_wrong_has_no_effect(isr, epochs, code):
    with pytest.raises(KafkaError) as refused:
        proposed(partition(0, isr=(0,)), isr, **epochs)
    assert refused.value.code is code


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("live"), st.sets(st.integers(0, 2))),
        st.tuples(st.just("unclean"), st.integers(0, 2)),
        st.tuples(st.just("clean"), st.integers(0, 2)),
        st.tuples(st.just("new disk"), st.integers(0, 2)),
        st.tuples(st.just("isr"), st.sets(st.integers(0, 2))),
    ),
    max_size=20,
)


@given(events=EVENTS, rules=st.sampled_from([ONE, TWO, UNCLEAN]))
def test_I11_epochs_never_go_back_and_a_leader_is_always_in_its_isr(events, rules):
    now = new_partition((0, 1, 2))
    alive = {0, 1, 2}
    for event, argument in events:
        before = now
        match event, argument:
            case "live", set(brokers):
                alive = brokers
                now = with_live_brokers(now, live(*alive), rules)
            case str(how), int(broker):
                now = after_return(now, broker, Return(how))
            case "isr", set(isr) if now.leader in isr and isr <= alive:
                now = after_isr_change(
                    now,
                    tuple(sorted(isr)),
                    leader_epoch=now.leader_epoch,
                    partition_epoch=now.partition_epoch,
                    eligible=alive,
                    min_isr=rules.min_isr,
                )
        assert now.leader_epoch >= before.leader_epoch
        assert now.leader == before.leader or now.leader_epoch > before.leader_epoch
        assert now.leader == -1 or now.leader in now.isr
        assert not set(now.isr) & set(now.elr)
        assert not set(now.suspects) & {*now.isr, *now.elr}
        assert len({*now.suspects}) == len(now.suspects)
        assert set(now.isr) | set(now.elr) <= {0, 1, 2}


def test_I13_a_chosen_follower_leads_alone_in_an_unclean_epoch():
    chosen = after_choice(partition(0, isr=(0, 1)), 2, in_epoch=4, live=live(0, 1, 2))
    assert state(chosen) == (2, 5, (2,), ())
    assert chosen.unclean_epoch == 5


def test_I13_a_chosen_leader_stays_with_its_in_sync_set_in_an_unclean_epoch():
    chosen = after_choice(partition(0, isr=(0, 1)), 0, in_epoch=4, live=live(0, 1, 2))
    assert state(chosen) == (0, 5, (0, 1), ())
    assert chosen.unclean_epoch == 5


@pytest.mark.parametrize(
    ("leader", "in_epoch", "code"),
    [
        (0, 3, ErrorCode.FENCED_LEADER_EPOCH),
        (2, 4, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (7, 4, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
    ids=["another epoch", "a dead replica", "no replica"],
)
def test_I13_a_choice_that_was_made_for_something_else_is_refused(leader, in_epoch, code):
    with pytest.raises(KafkaError) as caught:
        after_choice(partition(0, isr=(0, 1)), leader, in_epoch=in_epoch, live=live(0, 1, 7))
    assert caught.value.code is code
