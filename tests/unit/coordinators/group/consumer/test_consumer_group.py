"""A consumer group: the answers to its members, its records, and when members are dropped."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.consumer_desk import (
    CONFIG,
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Client,
    ConsumerDesk,
    beat_request,
    join_request,
    listed,
    settle,
)
from tidemill.coordinators.group.base.group import (
    CommitIdentity,
    DeadlineKey,
    DeadlineKind,
    GroupType,
)
from tidemill.coordinators.group.base.records import decode_value, try_decode_key
from tidemill.coordinators.group.consumer.records import current_of
from tidemill.coordinators.runtime.shard import CoordinatorRecord
from tidemill.core.errors import ErrorCode, KafkaError, ProtocolViolation
from tidemill.core.limits import QUICK_HEARTBEAT_MS
from tidemill.wire.generated.consumer_group_current_member_assignment_record import (
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)


@pytest.fixture
def desk() -> ConsumerDesk:
    return ConsumerDesk({"t": 4, "u": 2})


def pair(desk: ConsumerDesk) -> tuple[Client, Client]:
    """Two members of a stable group."""
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one, other)
    return one, other


def is_about(record: CoordinatorRecord, member_id: str) -> bool:
    return getattr(try_decode_key(record.key), "member_id", None) == member_id


# --- heartbeats ----------------------------------------------------------------------------------


def test_T48_first_member_gets_everything_at_once(desk):
    response = desk.beat(join_request("m", "t", "u"))
    assert (response.member_id, response.member_epoch) == ("m", 1)
    assert response.assignment is not None
    assert len(desk.names(response.assignment)) == 6


def test_T48_heartbeats_come_quickly_until_a_change_has_settled(desk):
    joined = desk.beat(join_request("m"))
    assert joined.heartbeat_interval_ms == QUICK_HEARTBEAT_MS
    desk.pass_ms(INTERVAL_MS - 1)
    assert desk.beat(beat_request("m", 1)).heartbeat_interval_ms == QUICK_HEARTBEAT_MS
    desk.pass_ms(1)
    assert desk.beat(beat_request("m", 1)).heartbeat_interval_ms == INTERVAL_MS
    desk.beat(join_request("n"))
    assert desk.beat(beat_request("m", 1)).heartbeat_interval_ms == QUICK_HEARTBEAT_MS


def test_T48_assignment_is_null_while_it_does_not_change(desk):
    desk.beat(join_request("m"))
    assert desk.beat(beat_request("m", 1)).assignment is None


def test_T48_heartbeat_that_changes_nothing_writes_nothing(desk):
    pair(desk)
    assert desk.ask(beat_request("m", 2), client="m").records == []


def test_T48_full_request_gets_a_full_answer(desk):
    desk.beat(join_request("m"))
    owned = listed({(desk.topic_id("t"), number) for number in range(4)})
    response = desk.beat(join_request("m", member_epoch=1, topic_partitions=owned))
    assert response.assignment is not None
    assert len(desk.names(response.assignment)) == 4


def test_T48_member_may_start_over_at_any_time(desk):
    one, _ = pair(desk)
    response = desk.beat(join_request("m"), client="m")
    assert response.member_epoch == one.epoch
    assert response.assignment is not None
    assert len(desk.names(response.assignment)) == 2


def test_T48_starting_over_gives_up_what_was_to_be_given_up(desk):
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    other.beat()
    one.beat()
    desk.beat(join_request("m"), client="m")
    other.beat()
    assert len(other.told) == 2


def test_T48_static_member_that_lost_its_first_answer_joins_in_place(desk):
    desk.beat(join_request("m", instance_id="i"))
    response = desk.beat(join_request("m", instance_id="i"))
    assert response.member_epoch == 1
    assert desk.describe().group_epoch == 1


def test_T48_static_member_returns_under_its_own_id(desk):
    desk.beat(join_request("m", instance_id="i"))
    left = desk.beat(beat_request("m", -2, instance_id="i"))
    assert left.member_epoch == -2
    response = desk.beat(join_request("m", instance_id="i"))
    assert (response.member_epoch, desk.describe().group_epoch) == (1, 1)
    assert desk.group.state_name == "Stable"


def test_T48_static_member_may_leave_for_good_by_its_member_id(desk):
    desk.beat(join_request("m", instance_id="i"))
    assert desk.beat(beat_request("m", -1)).member_epoch == -1
    assert desk.group.is_empty


def test_member_without_a_subscription_raises_no_epoch(desk):
    settle(Client(desk, "m", ["t"]))
    response = desk.beat(join_request("n", subscribed_topic_names=[]))
    assert response.member_epoch == 1
    assert desk.group.state_name == "Stable"


def test_successor_of_a_static_member_with_another_subscription_inherits_what_fits(
    desk,
):
    desk.beat(join_request("m", "t", instance_id="i"))
    desk.beat(beat_request("m", -2, instance_id="i"))
    response = desk.beat(join_request("n", "t", "u", instance_id="i"))
    assert response.member_epoch == 2
    assert response.assignment is not None
    assert len(desk.names(response.assignment)) == 6
    assert desk.member_ids() == ["n"]


def test_changed_client_id_is_recorded_without_a_new_plan(desk):
    pair(desk)
    desk.beat(beat_request("m", 2), client="elsewhere")
    assert desk.member("m").client_id == "elsewhere"
    assert desk.describe().group_epoch == 2


def test_what_a_member_does_not_say_stays_as_it_was(desk):
    desk.beat(join_request("m", rack_id="r", server_assignor="range", instance_id="i"))
    desk.beat(beat_request("m", 1, subscribed_topic_names=["u"]))
    member = desk.member("m")
    assert (member.rack_id, member.instance_id) == ("r", "i")
    assert desk.describe().assignor_name == "range"


def test_assignor_that_most_members_name_is_used(desk):
    desk.beat(join_request("m", server_assignor="range"))
    assert desk.describe().assignor_name == "range"
    desk.beat(join_request("n"))
    desk.beat(join_request("o", server_assignor="uniform"))
    desk.beat(join_request("p", server_assignor="uniform"))
    assert desk.describe().assignor_name == "uniform"


def test_I27_next_heartbeat_recovers_from_a_failed_append(desk):
    client = Client(desk, "m", ["t"])
    settle(client)
    desk.put_topic("t", 6)
    client.beat(fails=True)
    settle(client)
    assert len(client.reading) == 6


def test_topics_that_changed_in_ways_that_do_not_matter_raise_no_epoch(
    desk,
):
    settle(Client(desk, "m", ["t"]))
    topic = desk.image.topics["t"]
    moved = replace(topic.partitions[0], leader_epoch=7)
    draft = type(desk)._with_topic(desk, "t", 4)
    after = replace(
        draft.after, topics={**draft.after.topics, "t": replace(topic, partitions=(moved,) * 4)}
    )
    desk._change(replace(draft, after=after, topics_changed=("t",)))
    assert desk.ask(beat_request("m", 1), client="m").records == []


# --- time ----------------------------------------------------------------------------------------


def test_T48_silent_member_is_dropped_after_its_session(desk):
    one, other = pair(desk)
    desk.pass_ms(SESSION_MS - 1)
    one.beat()
    desk.pass_ms(1)
    assert desk.member_ids() == ["m"]
    assert other.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(one)
    assert len(one.reading) == 4


def test_T48_member_that_gives_nothing_up_is_fenced_after_its_rebalance_timeout(
    desk,
):
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    other.beat()
    for _ in range(REBALANCE_MS // 5_000):
        one.beat()
        other.beat()
        assert desk.member_ids() == ["m", "n"]
        desk.pass_ms(5_000)
    assert desk.member_ids() == ["n"]


def test_T48_member_that_gave_up_in_time_is_not_fenced_later(desk):
    one, other = pair(desk)
    for _ in range(REBALANCE_MS // 5_000 + 1):
        desk.pass_ms(5_000)
        one.beat()
        other.beat()
    assert desk.member_ids() == ["m", "n"]


def test_loading_gives_members_a_new_session_and_a_new_time_to_give_up(desk):
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    other.beat()
    one.beat()
    desk.pass_ms(SESSION_MS - 1)
    desk.load()
    desk.pass_ms(SESSION_MS - 1)
    assert desk.member_ids() == ["m", "n"]
    kinds = [kind for kind in DeadlineKind if DeadlineKey("g", kind, "m") in desk.context.deadlines]
    assert kinds == [DeadlineKind.SESSION, DeadlineKind.REBALANCE]


@pytest.mark.parametrize(
    ("kind", "member_id"),
    [
        (DeadlineKind.SESSION, "gone"),
        (DeadlineKind.REBALANCE, "m"),
        (DeadlineKind.SYNC, "m"),
    ],
)
def test_deadline_that_no_longer_matters_does_nothing(desk, kind, member_id):
    pair(desk)
    assert desk.group.deadlines_passed([DeadlineKey("g", kind, member_id)], desk.now).records == []


def test_group_is_empty_since_its_last_member_left(desk):
    one, other = pair(desk)
    one.leave()
    desk.pass_ms(500)
    other.leave()
    assert (desk.group.state_name, desk.group.is_empty) == ("Empty", True)
    assert desk.group.empty_since_ms == WALL_MS + desk.now_ms
    described = desk.describe()
    assert described.group_epoch == described.assignment_epoch
    desk.compact()
    desk.load()
    assert desk.group.empty_since_ms == WALL_MS + desk.now_ms


# --- offsets -------------------------------------------------------------------------------------


def test_T46_simple_commit_is_taken_only_while_the_group_is_empty(desk):
    assert desk.commit_refusal("", -1) is ErrorCode.NONE
    desk.beat(join_request("m"))
    assert desk.commit_refusal("", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T48_commit_needs_the_member_s_epoch(desk):
    pair(desk)
    assert desk.commit_refusal("m", 2) is ErrorCode.NONE
    assert desk.commit_refusal("m", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert desk.commit_refusal("m", 3) is ErrorCode.STALE_MEMBER_EPOCH
    assert desk.commit_refusal("x", 2) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("is_loaded", [False, True])
def test_I26_commit_with_an_older_epoch_is_taken_for_what_the_member_kept(desk, is_loaded):
    """KIP-1251: it was sent just before a rebalance."""
    one, other = pair(desk)
    third = Client(desk, "o", ["t"])
    settle(one, other, third)
    if is_loaded:
        desk.compact()
        desk.load()
    assert (one.epoch, other.epoch) == (3, 3)
    kept = one.reading | other.reading
    assert kept
    for client, epochs in ((one, (1, 2, 3)), (other, (2, 3))):
        for partition in client.reading:
            for epoch in epochs:
                assert desk.commit_refusal(client.member_id, epoch, partition) is ErrorCode.NONE
    for partition in other.reading:
        assert desk.commit_refusal("n", 1, partition) is ErrorCode.STALE_MEMBER_EPOCH
        assert desk.commit_refusal("m", 2, partition) is ErrorCode.STALE_MEMBER_EPOCH
    for partition in third.reading:
        assert desk.commit_refusal("m", 1, partition) is ErrorCode.STALE_MEMBER_EPOCH


def test_commit_with_an_older_epoch_is_taken_while_partitions_are_given_up(desk):
    one, other = pair(desk)
    third = Client(desk, "o", ["t"])
    third.beat()
    for client in (one, other):
        client.beat()
        for partition in client.reading:
            assert desk.commit_refusal(client.member_id, 2, partition) is ErrorCode.NONE


def test_I26_member_that_started_over_has_its_partitions_from_then_on(desk):
    one, other = pair(desk)
    settle(one, other, Client(desk, "o", ["t"]))
    desk.beat(join_request("m"), client="m")
    for partition in one.reading:
        assert desk.commit_refusal("m", 3, partition) is ErrorCode.NONE
        assert desk.commit_refusal("m", 2, partition) is ErrorCode.STALE_MEMBER_EPOCH


def test_records_without_assignment_epochs_are_loaded():
    """As older brokers wrote them: only the member's own epoch is safe."""
    topic_id = UUID(int=1)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=7,
        assigned_partitions=[TopicPartitions(topic_id=topic_id, partitions=[1, 0])],
    )
    current = current_of(value)
    assert current.assigned == {topic_id: (0, 1)}
    assert current.since == {topic_id: {0: 7, 1: 7}}


def test_assignment_epochs_are_written_as_kafka_does(desk):
    pair(desk)
    record = desk.log[-1]
    value = decode_value(try_decode_key(record.key), record.value)
    (topic,) = value.assigned_partitions
    assert is_about(record, "n")
    assert (topic.partitions, topic.assignment_epochs) == ([2, 3], [2, 2])


def test_I26_commit_of_a_member_that_was_replaced_is_refused(desk):
    desk.beat(join_request("m", instance_id="i"))
    desk.beat(beat_request("m", -2, instance_id="i"))
    assert desk.commit_refusal("m", 1) is ErrorCode.STALE_MEMBER_EPOCH
    desk.beat(join_request("n", instance_id="i"))
    assert desk.commit_refusal("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T45_offsets_are_shown_to_members_and_to_clients_that_name_no_member(
    desk,
):
    desk.beat(join_request("m"))
    desk.group.check_fetch(CommitIdentity("", -1))
    desk.group.check_fetch(CommitIdentity("m", 1))
    with pytest.raises(KafkaError, match="STALE_MEMBER_EPOCH"):
        desk.group.check_fetch(CommitIdentity("m", 0))
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        desk.group.check_fetch(CommitIdentity("x", 1))


# --- description ---------------------------------------------------------------------------------


def test_group_says_what_it_is(desk):
    assert (desk.group.group_id, desk.group.group_type) == ("g", GroupType.CONSUMER)
    assert desk.group.protocol_type == "consumer"
    assert list(desk.group.parked()) == []


def test_states_follow_the_three_epochs(desk):
    states = [desk.group.state_name]
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    states.append(desk.group.state_name)
    other.beat()
    states.append(desk.group.state_name)
    other.leave()
    states.append(desk.group.state_name)
    assert states == ["Empty", "Stable", "Reconciling", "Assigning"]


def test_topics_of_live_members_are_subscribed_to(desk):
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t", "u"])
    settle(one, other)
    other.leave()
    assert desk.group.subscribes_to("t")
    assert not desk.group.subscribes_to("u")


def test_T44_description_names_topics_and_shows_both_assignments(desk):
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    other.beat()
    member = desk.member("m")
    [now] = member.assignment.topic_partitions
    [goal] = member.target_assignment.topic_partitions
    assert (now.topic_name, now.partitions) == ("t", [0, 1, 2, 3])
    assert (goal.topic_id, goal.partitions) == (desk.topic_id("t"), [0, 1])
    assert (member.client_host, member.subscribed_topic_names) == ("/127.0.0.1", ["t"])
    assert member.member_type == 1


def test_description_leaves_out_topics_that_are_gone(desk):
    settle(Client(desk, "m", ["t"]))
    desk.delete_topic("t")
    assert desk.member("m").assignment.topic_partitions == []


# --- the log -------------------------------------------------------------------------------------


def test_tombstones_delete_everything_that_is_known(desk):
    pair(desk)
    desk.log += desk.group.tombstones()
    desk.load()
    described = desk.describe()
    assert (described.group_epoch, described.assignment_epoch, described.members) == (0, 0, [])
    assert desk.context.deadlines.next_ms() is None


def test_tombstones_of_what_was_never_known_are_passed_over(desk):
    pair(desk)
    tombstones = desk.group.tombstones()
    empty = ConsumerDesk({"t": 4})
    empty.log = tombstones
    empty.load()
    assert empty.group.is_empty


def test_F26_log_compacted_in_any_order_of_a_member_s_records_is_understood(
    desk,
):
    """A subscription that changed later follows the earlier assignment in the log."""
    one, _ = pair(desk)
    desk.beat(beat_request("m", 2), client="moved")
    before = desk.describe()
    desk.compact()
    desk.load()
    after = desk.describe()
    before.members.sort(key=lambda member: member.member_id)
    after.members.sort(key=lambda member: member.member_id)
    assert after == before
    assert one.beat() is ErrorCode.NONE


def test_I26_partition_that_two_records_name_belongs_to_the_later_one(desk):
    """An interrupted cleaner may leave a member's older record before another member's."""
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    stale = list(desk.log)
    settle(one, other)
    desk.compact()
    desk.log = stale + sorted(desk.log, key=lambda record: is_about(record, "m"))
    desk.load()
    assert desk.commit_refusal("m", 2) is ErrorCode.NONE
    settle(one, other)
    assert one.reading.isdisjoint(other.reading)
    assert desk.group.state_name == "Stable"


def test_state_of_a_newer_broker_is_not_guessed():
    with pytest.raises(ProtocolViolation, match="state is 9"):
        current_of(ConsumerGroupCurrentMemberAssignmentValue(state=9))


def test_loaded_group_gets_a_new_plan_if_topics_changed_meanwhile(
    desk,
):
    client = Client(desk, "m", ["t"])
    settle(client)
    desk.image = desk._with_topic("t", 6).after
    desk.load()
    settle(client)
    assert len(client.reading) == 6


# --- size ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_S41_join_of_five_hundred_rewrites_only_the_rows_that_changed():
    desk = ConsumerDesk({"t": 500}, replace(CONFIG, group_max_size=500))
    clients = [Client(desk, f"m{number}", ["t"]) for number in range(500)]
    for client in clients:
        client.beat()
        client.comply()
    assert len(desk.log) < 10 * len(clients)
    desk.pass_ms(INTERVAL_MS)
    settle(*clients, rounds=3)
    assert desk.group.state_name == "Stable"
    assert all(len(client.reading) == 1 for client in clients)


def test_a_member_may_have_more_partitions_than_a_request_may_have_elements():
    """Its record must stay readable: a partition that cannot be loaded is lost for all groups."""
    topics = {f"t{number}": 6_000 for number in range(10)}
    desk = ConsumerDesk(topics)
    desk.beat(join_request("m", *topics))
    desk.load()
    assert sum(len(one.partitions) for one in desk.member("m").assignment.topic_partitions) == sum(
        topics.values()
    )


def test_I26_a_list_that_is_older_than_the_assignment_gives_nothing_away(desk):
    first, second = Client(desk, "m1", ["t"]), Client(desk, "m2", ["t"])
    first.beat()  # it was given everything
    second.beat()
    first.beat(complies=True)  # it lists nothing, and begins to read before it hears the answer

    second.beat()
    second.comply()

    assert not first.reading & second.reading
    settle(first, second)
    assert first.reading
    assert second.reading
    assert not first.reading & second.reading


def test_I26_an_unchanged_list_gives_away_nothing_that_it_had(desk):
    first, second = Client(desk, "m1", ["t"]), Client(desk, "m2", ["t"])
    settle(first)
    second.beat()
    first.beat()  # it is told to give up two
    first.beat()
    first.beat()

    second.beat()
    second.comply()

    assert not second.reading
    settle(first, second)
    assert first.reading
    assert second.reading


def test_I26_who_lists_what_it_was_told_to_give_up_has_it_until_it_lists_less(desk):
    first, second = Client(desk, "m1", ["t"]), Client(desk, "m2", ["t"])
    first.beat()
    second.beat()
    first.beat(complies=True)  # it lists nothing, and is told to give up two while it begins
    first.beat()  # it lists all four
    first.beat()  # nothing is new: it has not given up the two yet

    second.beat()
    second.comply()

    assert not first.reading & second.reading
    settle(first, second)
    assert first.reading
    assert second.reading
    assert not first.reading & second.reading


def test_I27_who_listed_less_before_it_was_told_need_not_list_again(desk):
    first, second = Client(desk, "m1", ["t"]), Client(desk, "m2", ["t"])
    first.beat()
    second.beat()
    first.beat()  # it lists nothing, and is told to give up two; it will read two

    desk.beat(beat_request("m1", first.epoch))  # as Java does, whose list has not changed
    second.beat()
    second.comply()

    assert len(second.reading) == 2
