from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.isr_proposal import IsrProposal
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    PartitionImage,
    Return,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.rules import decisions
from tidemill.metadata.rules.decisions import (
    changed_in_sync_set,
    is_unheard,
    leads_what_could_get_lost,
    leads_what_others_could,
    let_in,
    live_brokers,
    log_end_questions,
    missing_members,
    returns,
)
from tidemill.metadata.rules.election import PartitionChange
from tidemill.metadata.rules.log_ends import LogEnd, LogEnds, ToldEnds

TOPIC_ID = TopicId(UUID(int=1))
DISK, OTHER_DISK = UUID(int=7), UUID(int=8)


def reconcile(image: MetadataImage, **options) -> list[PartitionChange]:
    return finished(decisions.reconcile(image, **options))


def broker(broker_id: int, *, epoch: int = 1, **fields) -> BrokerImage:
    return BrokerImage(broker_id=broker_id, epoch=epoch, host="h", port=1, **fields)


def member(broker_id: int, *, epoch: int = 1, directory_id: UUID = DISK) -> MemberImage:
    return MemberImage(broker_id=broker_id, epoch=epoch, directory_id=directory_id)


def partition(leader: int, isr: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(
        leader=leader,
        leader_epoch=4,
        replicas=(0, 1, 2),
        isr=isr,
        last_known_leader=leader,
        partition_epoch=9,
    )


def image(
    *partitions: PartitionImage, brokers: list[BrokerImage], members: list[MemberImage]
) -> MetadataImage:
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=partitions, config=TopicConfig())
    return MetadataImage(
        brokers={one.broker_id: one for one in brokers},
        members={one.broker_id: one for one in members},
        topics={"t": topic},
        names={TOPIC_ID: "t"},
    )


def unheard_by(*said: int, epoch: int = 5) -> MetadataImage:
    """A cluster whose brokers say of these epochs of the controller that they do not hear it."""
    found = image(
        brokers=[broker(at, unheard_controller=one) for at, one in enumerate(said)],
        members=[member(at) for at in range(len(said))],
    )
    return replace(found, controller_broker_id=0, controller_epoch=epoch)


def test_a_controller_that_most_live_brokers_do_not_hear_is_unheard():
    assert is_unheard(unheard_by(-1, 5, 5))
    assert is_unheard(unheard_by(-1, 5, 5, 5, -1))


def test_a_controller_that_half_of_the_brokers_hear_stays():
    assert not is_unheard(unheard_by(-1, -1, 5))
    assert not is_unheard(unheard_by(-1, 5))
    assert not is_unheard(unheard_by(-1, 5, 5, -1))


def test_what_brokers_said_of_an_earlier_controller_does_not_count():
    assert not is_unheard(unheard_by(-1, 4, 4))


def test_what_fenced_brokers_say_of_the_controller_does_not_count():
    found = unheard_by(-1, 5, 5)
    assert not is_unheard(replace(found, members={0: member(0), 1: member(1)}))


@pytest.mark.parametrize(
    ("isr", "elr", "allows_unclean", "could"),
    [
        ((0,), (), True, True),
        ((0,), (), False, False),
        ((0, 1), (), True, False),
        ((0,), (1,), True, False),
        ((0, 2), (), True, True),  # broker 2 is gone
    ],
)
def test_a_leader_stays_where_an_unclean_election_would_follow(isr, elr, allows_unclean, could):
    found = image(
        replace(partition(0, isr), elr=elr),
        brokers=[broker(0), broker(1)],
        members=[member(0), member(1), member(2)],
    )
    config = TopicConfig(unclean_leader_election_enable=allows_unclean)
    topics = {"t": replace(found.topics["t"], config=config)}
    assert leads_what_could_get_lost(replace(found, topics=topics), 0) is could


def test_only_a_broker_that_is_let_in_and_whose_disk_works_is_live():
    found = image(
        brokers=[
            broker(0),
            broker(1, epoch=2),
            broker(2, failed=True),
            broker(3, leaving=True),
            broker(4),
        ],
        members=[member(0), member(1), member(2), member(3)],
    )
    live = live_brokers(found)
    assert (live.brokers, live.electable, live.leaving) == ({0, 3}, {0}, {3})


def test_a_broker_is_let_in_in_the_epoch_of_its_registration_unless_its_disk_failed():
    found = image(
        brokers=[broker(0, epoch=5, directory_id=DISK), broker(1, epoch=6, failed=True)],
        members=[member(0), member(1), member(2)],
    )
    after = let_in(found)
    assert [(one, after[one].epoch) for one in sorted(after)] == [(0, 5), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"directory_id": DISK}, Return.CLEAN),
        ({"directory_id": DISK, "unclean": True}, Return.UNCLEAN),
        ({"directory_id": OTHER_DISK}, Return.NEW_DISK),
        ({"directory_id": OTHER_DISK, "unclean": True}, Return.NEW_DISK),
        ({}, Return.CLEAN),
    ],
)
def test_a_registration_says_what_a_broker_still_has(fields, how):
    found = image(brokers=[broker(0, epoch=2, **fields)], members=[member(0)])
    assert returns(found) == {0: how}


def test_a_broker_in_the_epoch_that_was_let_in_does_not_return():
    assert returns(image(brokers=[broker(0, unclean=True)], members=[member(0)])) == {}


def test_reconcile_names_only_partitions_that_must_change():
    found = reconcile(
        image(
            partition(1, (1,)),
            partition(0, (0, 1)),
            brokers=[broker(1), broker(2)],
            members=[member(0), member(1), member(2)],
        )
    )
    assert [(one.partition, one.after.leader) for one in found] == [(1, 1)]
    assert found[0].before.partition_epoch == 9


def test_a_fenced_broker_is_not_elected_and_leaves_the_in_sync_set():
    (change,) = reconcile(
        image(
            partition(0, (0, 1)),
            brokers=[broker(0, epoch=2), broker(1)],
            members=[member(0), member(1)],
        )
    )
    assert (change.after.leader, change.after.isr) == (1, (1,))


def test_one_change_lets_an_unclean_leader_in_and_elects_another_or_nobody_yet():
    found = image(
        partition(0, (0, 1)),
        partition(0, (0,)),
        partition(1, (1,)),
        brokers=[broker(0, epoch=2, unclean=True), broker(1)],
        members=[member(0, directory_id=UUID(int=0)), member(1)],
    )
    changes = reconcile(found, returned=returns(found))
    after = [(one.partition, one.after.leader, one.after.isr) for one in changes]
    assert after == [(0, 1, (1,)), (1, -1, ())]
    assert all(one.after.leader_epoch > one.before.leader_epoch for one in changes)


@pytest.mark.parametrize("emptied", [0, 1])
def test_of_two_that_return_at_once_the_one_that_has_something_leads(emptied):
    kept = 1 - emptied
    found = image(
        partition(emptied, (0, 1)),
        brokers=[
            broker(emptied, epoch=2, directory_id=OTHER_DISK),
            broker(kept, epoch=2, directory_id=DISK, unclean=True),
        ],
        members=[member(0), member(1)],
    )
    told = LogEnds({kept: LogEnd(0, 5)})
    (change,) = reconcile(
        found, returned=dict(sorted(returns(found).items())), told=lambda *_partition: told
    )
    assert (change.after.leader, change.after.isr) == (kept, (kept,))


ALL_RETURN_UNCLEAN = image(
    partition(0, (0, 1, 2)),
    brokers=[broker(one, epoch=2, unclean=True) for one in range(3)],
    members=[member(one) for one in range(3)],
)


def after_loss_of_power(*, brokers: list[BrokerImage] | None = None) -> MetadataImage:
    """All brokers have returned and were let in: the partition has no leader yet."""
    found = ALL_RETURN_UNCLEAN
    (change,) = reconcile(found, returned=returns(found))
    return image(
        change.after,
        brokers=brokers or list(found.brokers.values()),
        members=list(let_in(found).values()),
    )


def test_I12_if_all_return_after_a_loss_of_power_nobody_leads_before_all_were_asked():
    found = after_loss_of_power()
    waiting = found.topics["t"].partitions[0]
    assert (waiting.leader, waiting.leader_epoch, waiting.suspects) == (-1, 5, (0, 1, 2))
    asked = log_end_questions(found, found.topics["t"], 0, {0, 1, 2})
    assert [(one.broker_id, one.broker_epoch, one.leader_epoch) for one in asked] == [
        (0, 2, 5),
        (1, 2, 5),
        (2, 2, 5),
    ]
    assert not reconcile(found)


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_I12_the_longest_log_of_all_that_ended_unclean_leads(longest):
    found = after_loss_of_power()
    told = ToldEnds()
    for question in log_end_questions(found, found.topics["t"], 0, {0, 1, 2}):
        told.ask(question, now=0.0)
        told.answer(question, LogEnd(3, 10 + (question.broker_id == longest)))
    (change,) = reconcile(
        found, told=lambda topic_id, index, now: told.of(topic_id, index, now, found.brokers, 0.0)
    )
    assert (change.after.leader, change.after.isr) == (longest, (longest,))
    assert change.after.unclean_epoch == change.after.leader_epoch == 6


def test_I15_the_answer_of_a_former_life_is_void():
    found = after_loss_of_power()
    told = ToldEnds()
    for question in log_end_questions(found, found.topics["t"], 0, {0, 1, 2}):
        told.ask(question, now=0.0)
        told.answer(question, LogEnd(3, 10))
    again = after_loss_of_power(
        brokers=[broker(0, epoch=2), broker(1, epoch=7, unclean=True), broker(2, epoch=2)]
    )
    changes = reconcile(
        again,
        returned=returns(again),
        told=lambda topic_id, index, now: told.of(topic_id, index, now, again.brokers, 0.0),
    )
    assert not changes


def test_a_broker_that_is_waited_for_keeps_its_leaderships_but_is_given_none():
    found = image(
        partition(0, (0, 1)),
        partition(2, (2, 0)),
        brokers=[broker(1)],
        members=[member(0), member(1), member(2)],
    )
    changes = reconcile(found, waited_for={0})
    assert [(one.partition, one.after.leader, one.after.isr) for one in changes] == [(1, -1, (0,))]


def test_members_are_missing_only_while_an_in_sync_set_counts_on_them():
    found = image(
        partition(0, (0, 1)),
        brokers=[broker(1)],
        members=[member(0), member(1), member(2)],
    )
    assert missing_members(found) == {0}


@pytest.mark.parametrize(
    ("isr", "leaving", "could"),
    [((0, 1), False, True), ((0,), False, False), ((0, 1), True, False)],
)
def test_a_broker_can_hand_over_only_to_one_that_is_in_sync_and_stays(isr, leaving, could):
    found = image(
        partition(0, isr),
        brokers=[broker(0, leaving=True), broker(1, leaving=leaving)],
        members=[member(0), member(1)],
    )
    assert leads_what_others_could(found, 0) is could


# --- in-sync sets ---

LED = image(
    partition(0, (0,)),
    brokers=[broker(0), broker(1, epoch=3), broker(2, leaving=True)],
    members=[member(0), member(1, epoch=3), member(2)],
)


def propose(*isr: tuple[int, int], sender: int = 0, index: int = 0) -> PartitionImage:
    proposal = IsrProposal(
        topic_id=TOPIC_ID, partition=index, leader_epoch=4, partition_epoch=9, isr=isr
    )
    return changed_in_sync_set(LED, LED.brokers[sender], proposal).after


def test_a_follower_joins_in_the_life_in_which_it_caught_up():
    assert propose((0, 1), (1, 3)).isr == (0, 1)


@pytest.mark.parametrize(
    ("isr", "fields", "code"),
    [
        ([(0, 1), (1, 2)], {}, ErrorCode.INELIGIBLE_REPLICA),
        ([(0, 1), (2, 1)], {}, ErrorCode.INELIGIBLE_REPLICA),
        ([(0, 1)], {"sender": 1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ([(0, 1)], {"index": 1}, ErrorCode.UNKNOWN_TOPIC_ID),
        ([(1, 3)], {}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_proposal_is_refused_with_its_own_code(isr, fields, code):
    with pytest.raises(KafkaError) as refused:
        propose(*isr, **fields)
    assert refused.value.code is code
