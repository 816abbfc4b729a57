"""The shard of a group coordinator: its groups, by name."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.classic_desk import subscription
from tests.support.shard_desk import (
    CHECK_INTERVAL_MS,
    EMPTY_CLASSIC,
    GROUP,
    PARTITION,
    ShardDesk,
    image_of,
    refusal,
    topic_image,
)
from tidemill.coordinators.group.base.group import Caller, DeadlineKind
from tidemill.coordinators.group.base.records import encode_tombstone
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.group.registry import GroupLimit
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import PATTERN_PAUSE_MS, PATTERNS_KEPT_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import difference
from tidemill.wire.generated.consumer_group_metadata_record import ConsumerGroupMetadataKey
from tidemill.wire.generated.group_metadata_record import GroupMetadataKey
from tidemill.wire.generated.heartbeat import HeartbeatRequest
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.generated.leave_group import LeaveGroupRequest
from tidemill.wire.generated.sync_group import SyncGroupRequest


@pytest.fixture
def desk():
    return ShardDesk()


# --- names of groups -----------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", ["sync", "heartbeat"])
def test_members_of_no_group_are_not_known(desk, attempt):
    request = {"sync": SyncGroupRequest, "heartbeat": HeartbeatRequest}[attempt]
    ask = getattr(desk.shard, attempt)
    named = request(group_id="nobody's", member_id="m")
    assert refusal(ask, named, now=desk.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(ask, request(), now=desk.now) is ErrorCode.INVALID_GROUP_ID


def test_leaving_a_group_that_does_not_exist_is_refused(desk):
    request = LeaveGroupRequest(group_id="nobody's", member_id="m")
    code = refusal(desk.shard.leave, request, version=0, now=desk.now)
    assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_joining_a_group_without_a_name_is_refused(desk):
    assert refusal(desk.join, "") is ErrorCode.INVALID_GROUP_ID
    assert refusal(desk.heartbeat, "") is ErrorCode.INVALID_REQUEST


def test_a_join_with_a_member_id_does_not_create_a_group(desk):
    assert refusal(desk.join, member_id="m") is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(desk.heartbeat, epoch=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.shard.group_count == 0


def test_a_join_that_is_refused_leaves_no_group_behind(desk):
    request = JoinGroupRequest(group_id=GROUP, session_timeout_ms=1, protocol_type="consumer")
    caller = Caller("c", "/h", "fresh")
    code = refusal(desk.shard.join, request, caller, version=3, now=desk.now)
    assert code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert desk.shard.group_count == 0


# --- two kinds under one name --------------------------------------------------------------------


def test_an_empty_classic_group_makes_way_for_a_consumer_group(desk):
    joined = desk.join()
    desk.commit(5, generation=joined.generation_id, member=joined.member_id)
    desk.leave(joined.member_id)
    assert desk.heartbeat().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert desk.heartbeat().error_code == ErrorCode.NONE
    assert desk.listed()[GROUP][0] == "consumer"
    assert desk.committed() == desk.reloaded().committed() == 5
    assert desk.reloaded().listed() == desk.listed()


def test_an_empty_consumer_group_makes_way_for_a_classic_group(desk):
    epoch = desk.heartbeat().member_epoch
    desk.commit(5, generation=epoch, member="m")
    desk.heartbeat(epoch=-1)
    assert desk.join().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert desk.join().error_code == ErrorCode.NONE
    assert desk.listed() == desk.reloaded().listed() == {GROUP: ("classic", "Stable")}
    assert desk.committed() == 5


def test_a_group_with_offsets_only_becomes_of_either_kind_at_once():
    for become in (ShardDesk.join, ShardDesk.heartbeat):
        desk = ShardDesk()
        desk.commit(5)
        assert become(desk).error_code == ErrorCode.NONE
        assert desk.committed() == desk.reloaded().committed() == 5
        assert desk.reloaded().listed() == desk.listed()


def test_a_consumer_group_is_loaded_though_its_offsets_come_first(desk):
    epoch = desk.heartbeat().member_epoch
    desk.commit(5, generation=epoch, member="m")
    compacted = ShardDesk(log=[desk.log[-1], *desk.log[:-1]])
    assert compacted.listed() == desk.listed()
    assert compacted.committed() == 5


@pytest.mark.parametrize("offsets", [0, 1])
def test_a_refused_first_heartbeat_leaves_the_group_unchanged(desk, offsets):
    for _ in range(offsets):
        desk.commit(5)
    before = desk.listed()
    assert refusal(desk.heartbeat, topics=[], member_id="") is ErrorCode.INVALID_REQUEST
    assert desk.listed() == before


@pytest.mark.parametrize("offsets", [0, 1])
def test_a_first_heartbeat_that_was_not_written_does_not_keep_the_name(desk, offsets):
    for _ in range(offsets):
        desk.commit(5)
    take, desk.take = desk.take, lambda result: result.response
    desk.heartbeat()
    desk.take = take
    assert desk.join().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert desk.join().error_code == ErrorCode.NONE
    assert desk.listed() == desk.reloaded().listed() == {GROUP: ("classic", "Stable")}


def test_a_group_that_was_never_written_down_is_forgotten_in_time(desk):
    take, desk.take = desk.take, lambda result: result.response
    desk.heartbeat()
    desk.take = take
    desk.pass_time(CHECK_INTERVAL_MS)
    assert (desk.shard.group_count, desk.log) == (0, [])


# --- commits and groups --------------------------------------------------------------------------


def test_T46_a_simple_consumer_may_commit_to_a_group_that_does_not_exist(desk):
    assert desk.commit(5) is ErrorCode.NONE
    assert desk.listed() == desk.reloaded().listed() == {GROUP: EMPTY_CLASSIC}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_T46_a_member_of_a_group_that_does_not_exist_commits_nothing(desk, version, code):
    assert refusal(desk.commit, 5, generation=1, member="m", version=version) is code


def test_T46_a_simple_consumer_may_not_commit_while_there_are_members(desk):
    desk.join()
    assert refusal(desk.commit, 5) is ErrorCode.UNKNOWN_MEMBER_ID
    desk.heartbeat("other")
    assert refusal(desk.commit, 5, group_id="other") is ErrorCode.UNKNOWN_MEMBER_ID


def test_T46_an_old_generation_commits_nothing(desk):
    joined = desk.join()
    code = refusal(desk.commit, 5, generation=joined.generation_id - 1, member=joined.member_id)
    assert code is ErrorCode.ILLEGAL_GENERATION


def test_T46_a_member_that_left_commits_nothing(desk):
    joined = desk.join()
    desk.leave(joined.member_id)
    code = refusal(desk.commit, 5, generation=joined.generation_id, member=joined.member_id)
    assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_T46_a_member_of_the_consumer_protocol_commits_with_its_epoch(desk):
    epoch = desk.heartbeat().member_epoch
    assert desk.commit(5, generation=epoch, member="m") is ErrorCode.NONE
    code = refusal(desk.commit, 5, generation=epoch - 1, member="m")
    assert code is ErrorCode.STALE_MEMBER_EPOCH


@pytest.mark.parametrize("version", [9, 10])
def test_T46_a_member_commits_what_it_kept_also_with_an_older_epoch(desk, version):
    """KIP-1251: the commit was sent just before a rebalance."""
    first = desk.heartbeat().member_epoch
    desk.heartbeat(member_id="n")
    assert desk.heartbeat(epoch=first, owned=[0]).member_epoch == first  # told to give 1 up
    assert desk.heartbeat(epoch=first, owned=[0]).member_epoch == first + 1
    topic = UUID(int=1) if version == 10 else "t"
    as_member = {"generation": first, "member": "m", "topic": topic, "version": version}
    assert desk.commit(5, index=0, **as_member) is ErrorCode.NONE
    assert refusal(desk.commit, 5, index=1, **as_member) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(desk.commit, 5, index=9, **as_member) is ErrorCode.STALE_MEMBER_EPOCH


def test_T46_a_member_of_the_consumer_protocol_needs_version_9(desk):
    epoch = desk.heartbeat().member_epoch
    code = refusal(desk.commit, 5, generation=epoch, member="m", version=8)
    assert code is ErrorCode.UNSUPPORTED_VERSION


# --- listing and describing groups ---------------------------------------------------------------


def test_groups_are_listed_by_state_and_type(desk):
    desk.commit(5, group_id="simple")
    desk.join("classic")
    desk.heartbeat("consumer")
    assert desk.listed().keys() == {"simple", "classic", "consumer"}
    assert desk.listed(states={"empty"}) == {"simple": EMPTY_CLASSIC}
    assert desk.listed(types={"consumer"}).keys() == {"consumer"}
    assert desk.listed(states={"stable"}, types={"classic"}).keys() == {"classic"}
    assert desk.listed(states={"no such state"}) == {}


def test_each_kind_of_group_is_described_by_its_own_request(desk):
    desk.join("classic")
    desk.heartbeat("consumer")
    assert desk.shard.describe_classic_group("classic").group_state == "Stable"
    assert desk.shard.describe_consumer_group("consumer").group_id == "consumer"
    for ask, names in (
        (desk.shard.describe_classic_group, ("consumer", "nobody's")),
        (desk.shard.describe_consumer_group, ("classic", "nobody's")),
    ):
        assert {refusal(ask, name) for name in names} == {ErrorCode.GROUP_ID_NOT_FOUND}


# --- bounds --------------------------------------------------------------------------------------


def test_S38_no_more_groups_than_the_broker_has_room_for():
    limit = GroupLimit(3)
    one, two = ShardDesk(limit=limit), ShardDesk(limit=limit)
    one.commit(5, group_id="a")
    two.join("b")
    one.heartbeat("c")
    assert refusal(two.commit, 5, group_id="d") is ErrorCode.POLICY_VIOLATION
    assert refusal(one.join, "d") is ErrorCode.POLICY_VIOLATION
    assert refusal(two.heartbeat, "d") is ErrorCode.POLICY_VIOLATION
    assert one.commit(6, group_id="a") is ErrorCode.NONE


def test_S38_a_deleted_group_and_a_lost_shard_make_room():
    limit = GroupLimit(2)
    one, two = ShardDesk(limit=limit), ShardDesk(limit=limit)
    one.commit(5, group_id="a")
    two.commit(5, group_id="b")
    one.delete_group("a")
    two.shard.resign()
    assert limit.count == 0


def test_S38_the_log_is_loaded_though_there_is_no_room():
    desk = ShardDesk()
    for name in "abc":
        desk.commit(5, group_id=name)
    limit = GroupLimit(1)
    assert ShardDesk(limit=limit, log=desk.log).shard.group_count == 3
    assert limit.count == 3


def ask_for_an_id(desk, fresh="fresh"):
    """A new client of a version that is given an id first."""
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    answer = desk.take(desk.shard.join(request, Caller("c", "/h", fresh), version=9, now=desk.now))
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return answer.member_id


def test_S38_a_group_whose_first_members_never_joined_is_forgotten(desk):
    ask_for_an_id(desk)
    ask_for_an_id(desk, "another")
    assert desk.shard.group_count == 1
    desk.pass_time(10_000)
    assert (desk.shard.group_count, desk.log) == (0, [])


def test_S38_a_group_whose_first_member_leaves_before_joining_is_forgotten(desk):
    desk.leave(ask_for_an_id(desk))
    assert (desk.shard.group_count, desk.log) == (0, [])


def test_a_sweep_does_not_forget_clients_about_to_join(desk):
    desk.pass_time(CHECK_INTERVAL_MS - 1)
    ask_for_an_id(desk)
    desk.pass_time(1)
    assert desk.shard.group_count == 1


# --- the shard as a whole ------------------------------------------------------------------------


def test_records_of_unknown_kinds_are_passed_over(desk):
    desk.shard.replay(b"\x00\x63whatever", b"\x00\x00")
    assert desk.shard.group_count == 0


def test_an_idle_shard_has_nothing_due_before_the_next_check(desk):
    assert desk.shard.next_deadline_ms() == CHECK_INTERVAL_MS


def test_groups_ignore_a_change_of_leaders(desk):
    for number in range(250):
        desk.heartbeat(f"g{number}")
    moved = replace(PARTITION, leader_epoch=1)
    changed = image_of(replace(topic_image("t", 1), partitions=(moved, moved)))
    desk.take(desk.shard.metadata_changed(difference(desk.image, changed), desk.now))
    assert desk.shard.next_deadline_ms() != 0


def test_groups_deleted_meanwhile_are_not_told():
    desk = ShardDesk()
    for number in range(250):
        desk.commit(5, group_id=f"g{number}")
    grown = image_of(topic_image("t", 1, partitions=3))
    desk.take(desk.shard.metadata_changed(difference(desk.image, grown), desk.now))
    for number in range(250):
        desk.delete_group(f"g{number}")
    desk.settle()
    assert desk.shard.next_deadline_ms() == CHECK_INTERVAL_MS


def test_tombstones_of_unknown_groups_change_nothing(desk):
    desk.shard.replay(*encode_tombstone(GroupMetadataKey(group="gone")))
    desk.shard.replay(*encode_tombstone(ConsumerGroupMetadataKey(group_id="gone")))
    assert desk.shard.group_count == 0


def test_rebalances_are_counted(desk):
    desk.join()
    assert desk.shard.rebalances > 0


def test_S37_one_pass_over_deadlines_evaluates_one_slice_of_regular_expressions(monkeypatch):
    evaluated = []
    try_search = Re2Matcher.try_search

    def count(self, pattern):
        evaluated.append(pattern)
        return try_search(self, pattern)

    monkeypatch.setattr(Re2Matcher, "try_search", count)
    desk = ShardDesk(*(topic_image(f"t{number}", number + 1) for number in range(2_500)))
    for number in range(3):
        pattern = f"t.*{number}"
        desk.heartbeat(f"g{number}", topics=(), subscribed_topic_regex=pattern)
    evaluated.clear()
    desk.now = Now(desk.now.monotonic_ms + PATTERN_PAUSE_MS, desk.now.wall_ms)
    desk.take(desk.shard.expire(desk.now))
    assert len(evaluated) == 1
    assert desk.shard.next_deadline_ms() <= desk.now.monotonic_ms
    desk.pass_time(1_000)
    assert set(evaluated) == {"t.*0", "t.*1", "t.*2"}


@pytest.mark.parametrize(("groups", "patterns"), [(PATTERNS_KEPT_MAX + 70, 1), (12, 8)])
def test_S37_more_expressions_than_are_remembered_are_evaluated_to_their_end(groups, patterns):
    desk = ShardDesk(*(topic_image(f"topic-{number}", number + 1, 1) for number in range(1_500)))
    for group in range(groups):
        for number in range(patterns):
            pattern = f"topic-.*{number}|{group}"
            name = {"member_id": f"m{number}", "subscribed_topic_regex": pattern}
            desk.heartbeat(f"g{group}", topics=(), **name)
    for _ in range(300):
        desk.pass_time(PATTERN_PAUSE_MS)
        if DeadlineKind.PATTERNS not in {key.kind for key in desk.shard._context.deadlines._at}:
            break
    for name in range(groups):
        group = desk.shard._groups.try_find(f"g{name}")
        assert all(group.subscribes_to(f"topic-{number}") for number in range(patterns))


def test_groups_are_told_of_new_partitions_in_slices():
    desk = ShardDesk(topic_image("t", 1))
    for number in range(250):
        desk.heartbeat(f"g{number}")
    grown = image_of(topic_image("t", 1, partitions=3))
    desk.take(desk.shard.metadata_changed(difference(desk.image, grown), desk.now))
    slices = 1
    while desk.shard.next_deadline_ms() == 0:
        desk.take(desk.shard.expire(desk.now))
        slices += 1
    assert slices == 3


def test_parked_requests_are_handed_over_when_the_shard_resigns():
    desk = ShardDesk(group_initial_rebalance_delay_ms=3_000)
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    result = desk.shard.join(request, Caller("c", "/h", "fresh"), version=3, now=desk.now)
    assert isinstance(result.response, Deferred)
    assert desk.shard.resign() == [result.response]
