"""Groups with members change between the classic and the consumer protocol (KIP-848)."""

from __future__ import annotations

import pytest

from tests.support.mixed_group import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicConsumer,
    MixedDesk,
    NewConsumer,
    settle_all,
)
from tests.support.shard_desk import (
    CHECK_INTERVAL_MS,
    GROUP,
    RETENTION_MS,
    commit_request,
    refusal,
    topic_image,
)
from tidemill.coordinators.group.base.group import DeadlineKey, DeadlineKind
from tidemill.coordinators.group.migration import downgrade
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.generated.heartbeat import HeartbeatRequest

ALL = {0, 1, 2, 3}


@pytest.fixture
def desk():
    return MixedDesk()


@pytest.fixture(params=[False, True], ids=["eager", "cooperative"])
def classic(request):
    def make(desk, name, instance_id=None):
        return ClassicConsumer(desk, name, instance_id, is_cooperative=request.param)

    return make


def pair(desk, classic):
    """A classic group of two."""
    clients = classic(desk, "ana"), classic(desk, "ben")
    settle_all(*clients)
    assert (desk.kind, desk.state) == ("classic", "Stable")
    assert [len(one.reading) for one in clients] == [2, 2]
    return clients


def reads_all(*clients):
    """Whether the clients read every partition, each by one of them."""
    return sorted(n for one in clients for n in one.reading) == sorted(ALL)


def test_a_new_consumer_makes_a_classic_group_a_consumer_group(desk, classic):
    ana, ben = pair(desk, classic)
    generation = ana.generation
    new = NewConsumer(desk, "new")
    new.step()
    assert new.last_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert desk.kind == "consumer"
    assert desk.member_ids() == {ana.member_id, ben.member_id}
    described = desk.shard.describe_consumer_group(GROUP)
    assert described.group_epoch == generation
    assert {one.member_type for one in described.members} == {0}
    settle_all(ana, ben, new)
    assert reads_all(ana, ben, new)
    assert new.reading
    assert desk.state == "Stable"


def test_members_of_both_protocols_are_the_same_after_a_load(desk, classic):
    ana, ben = pair(desk, classic)
    new = NewConsumer(desk, "new")
    settle_all(ana, ben, new)
    before = desk.shard.describe_consumer_group(GROUP)
    desk.reload()
    assert desk.shard.describe_consumer_group(GROUP) == before
    settle_all(ana, ben, new)
    assert reads_all(ana, ben, new)


def test_the_group_is_classic_again_when_the_last_new_consumer_leaves(desk, classic):
    ana, ben = pair(desk, classic)
    new = NewConsumer(desk, "new")
    settle_all(ana, ben, new)
    new.leave()
    assert desk.kind == "classic"
    assert desk.member_ids() == {ana.member_id, ben.member_id}
    settle_all(ana, ben)
    assert (desk.kind, desk.state) == ("classic", "Stable")
    assert reads_all(ana, ben)


def test_a_rolling_change_there_and_back(desk, classic):
    ana, ben = pair(desk, classic)
    one, two = NewConsumer(desk, "one"), NewConsumer(desk, "two")
    for old, new, stays in ((ana, one, ben), (ben, two, one)):
        old.leave()
        settle_all(stays, new)
        assert reads_all(stays, new)
    assert desk.kind == "consumer"
    assert {one.member_type for one in desk.shard.describe_consumer_group(GROUP).members} == {1}
    back = classic(desk, "cyd"), classic(desk, "dan")
    for old, new, stays in ((one, back[0], two), (two, back[1], back[0])):
        old.leave()
        settle_all(stays, new)
        assert reads_all(stays, new)
    assert (desk.kind, desk.state) == ("classic", "Stable")


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_round_follows_a_downgrade_even_if_the_coordinator_is_lost_at_once(desk, is_loaded):
    ana = ClassicConsumer(desk, "ana")
    new = NewConsumer(desk, "new")
    settle_all(ana)
    settle_all(ana, new)
    desk.settle = lambda: None
    new.leave()
    del desk.settle
    if is_loaded:
        desk.reload()
    assert desk.kind == "classic"
    settle_all(ana)
    assert ana.reading == ALL


def test_a_new_consumer_that_dies_downgrades_the_group(desk, classic):
    ana = classic(desk, "ana")
    new = NewConsumer(desk, "new")
    settle_all(ana)
    settle_all(ana, new)
    assert len(ana.reading) == 2
    for _ in range(3):
        desk.pass_time(SESSION_MS // 2)
        ana.step()
    settle_all(ana)
    assert desk.kind == "classic"
    assert ana.reading == ALL


def test_classic_members_have_sessions_after_an_upgrade_and_a_downgrade(desk):
    ana, ben, new = ClassicConsumer(desk, "a"), ClassicConsumer(desk, "b"), NewConsumer(desk, "n")
    settle_all(ana, ben)
    new.step()
    assert desk.kind == "consumer"
    desk.pass_time(SESSION_MS)
    assert desk.member_ids() == set()
    settle_all(ana, ben)
    settle_all(ana, ben, new)
    new.leave()
    assert desk.kind == "classic"
    desk.pass_time(REBALANCE_MS)
    assert desk.member_ids() == set()


def test_a_classic_member_that_does_not_join_again_is_fenced(desk):
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(ana)
    new.step()
    new.step()
    ana.step()
    assert ana.last_code is ErrorCode.REBALANCE_IN_PROGRESS
    ana.phase = "member"
    for _ in range(REBALANCE_MS // 5_000):
        desk.pass_time(5_000)
        ana.step()
        new.step()
        ana.phase = "member"
    assert desk.member_ids() == {new.member_id}
    assert new.reading == ALL


def test_I26_a_member_that_was_fenced_gives_up_its_partitions_before_it_joins_again(desk):
    ana, new = ClassicConsumer(desk, "ana", is_cooperative=True), NewConsumer(desk, "new")
    settle_all(ana)
    new.step()
    new.step()
    ana.step()
    assert (ana.phase, ana.reading) == ("out", ALL)
    for _ in range(2):
        desk.pass_time(SESSION_MS // 2)
        new.step()
    new.step()
    assert new.reading == ALL
    ana.step()
    assert ana.last_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert ana.reading == set()
    settle_all(ana, new)
    assert reads_all(ana, new)


def test_a_classic_member_that_does_not_ask_for_its_assignment_is_fenced(desk):
    new, ana = NewConsumer(desk, "new"), ClassicConsumer(desk, "ana")
    settle_all(new)
    ana.step()
    ana.step()
    assert ana.phase == "joined"
    for _ in range(REBALANCE_MS // 5_000):
        desk.pass_time(5_000)
        ana._beat()
        new.step()
    assert desk.member_ids() == {new.member_id}


def test_requests_that_wait_for_a_round_are_answered_by_an_upgrade(desk):
    ana, ben = ClassicConsumer(desk, "ana"), ClassicConsumer(desk, "ben")
    settle_all(ana)
    ben.step()
    ben.step()
    assert ben.parked is not None
    new = NewConsumer(desk, "new")
    new.step()
    ben.step()
    assert ben.last_code is ErrorCode.REBALANCE_IN_PROGRESS
    settle_all(ana, ben, new)
    assert reads_all(ana, ben, new)


def test_T42_a_static_classic_member_is_replaced_by_its_new_self(desk):
    ana, new = ClassicConsumer(desk, "ana", "i"), NewConsumer(desk, "new", "i")
    settle_all(ana)
    settle_all(new)
    assert desk.member_ids() == {new.member_id}
    assert new.reading == ALL
    ana.step()
    assert ana.last_code is ErrorCode.FENCED_INSTANCE_ID


def test_T42_a_static_new_consumer_is_replaced_by_its_classic_self(desk, classic):
    new, ana = NewConsumer(desk, "new", "i"), classic(desk, "ana", "i")
    settle_all(new)
    new.leave()
    settle_all(ana)
    assert desk.member_ids() == {ana.member_id}
    assert ana.reading == ALL
    assert (desk.kind, desk.state) == ("classic", "Stable")


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_may_forbid_an_upgrade(policy):
    desk = MixedDesk(group_consumer_migration_policy=policy)
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(ana)
    new.step()
    assert new.last_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert (desk.kind, desk.state) == ("classic", "Stable")


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_policy_may_forbid_a_downgrade(policy):
    desk = MixedDesk(group_consumer_migration_policy=policy)
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(new)
    settle_all(ana, new)
    new.leave()
    settle_all(ana)
    assert desk.kind == "consumer"
    assert ana.reading == ALL


def test_classic_members_that_are_left_alone_notice_that_their_topic_grows():
    desk = MixedDesk(group_consumer_migration_policy="upgrade")
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(new)
    settle_all(ana, new)
    new.leave()
    settle_all(ana)
    assert (desk.kind, ana.reading) == ("consumer", ALL)
    desk.change_topics(topic_image("t", 1, 6))
    settle_all(ana)
    assert ana.reading == {*ALL, 4, 5}
    assert (ana.phase, desk.state) == ("member", "Stable")


def test_members_of_the_consumer_protocol_cannot_use_the_classic_one(desk):
    new = NewConsumer(desk, "new")
    settle_all(new)
    heartbeat = HeartbeatRequest(group_id=GROUP, member_id=new.member_id, generation_id=new.epoch)
    code, _ = desk.ask(lambda: desk.shard.heartbeat(heartbeat, now=desk.now))
    assert code is ErrorCode.UNKNOWN_MEMBER_ID
    (left,) = desk.leave(new.member_id).members
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.member_ids() == {new.member_id}


def test_clients_that_are_no_consumers_cannot_join_a_consumer_group(desk):
    settle_all(NewConsumer(desk, "new"))
    code = refusal(desk.join, protocol_type="connect")
    assert code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_that_is_not_of_consumers_stays_classic(desk):
    desk.join(protocol_type="connect")
    new = NewConsumer(desk, "new")
    new.step()
    assert new.last_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.kind == "classic"


def test_I26_commits_of_classic_members_need_their_generation(desk):
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(ana)
    old = ana.generation
    settle_all(ana, new)
    assert ana.generation > old

    def code(generation):
        request = commit_request(5, member=ana.member_id, generation=generation)
        answer, _ = desk.ask(lambda: desk.shard.offsets.commit(request, version=8, now=desk.now))
        return answer if isinstance(answer, ErrorCode) else ErrorCode.NONE

    assert code(ana.generation) is ErrorCode.NONE
    assert code(old) is ErrorCode.ILLEGAL_GENERATION


def test_S41_heartbeats_do_not_try_a_downgrade_again_that_does_not_fit(desk, monkeypatch):
    monkeypatch.setattr(downgrade, "GROUP_RECORD_BYTES_MAX", 10)
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(new)
    settle_all(ana, new)
    new.leave()
    settle_all(ana)
    assert (desk.kind, ana.reading) == ("consumer", ALL)
    tried = []
    monkeypatch.setattr(downgrade, "group_metadata_record", lambda *args: tried.append(args))
    settle_all(ana)
    assert not tried


# --- what must not change a group's kind ---------------------------------------------------------


@pytest.mark.parametrize("epoch", [-1, 5])
def test_only_a_consumer_that_joins_changes_a_classic_group(desk, classic, epoch):
    pair(desk, classic)
    late = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="gone", member_epoch=epoch)
    code, _ = desk.ask(
        lambda: desk.shard.consumer_heartbeat(late, desk.caller("gone"), version=1, now=desk.now)
    )
    assert code is ErrorCode.UNKNOWN_MEMBER_ID
    assert (desk.kind, desk.state) == ("classic", "Stable")


@pytest.mark.parametrize(
    "wrong", [{"subscribed_topic_regex": "("}, {"server_assignor": "none-such"}]
)
def test_a_join_that_is_not_valid_leaves_a_classic_group_as_it_is(desk, classic, wrong):
    pair(desk, classic)
    code = refusal(desk.heartbeat, **wrong)
    assert code in (ErrorCode.INVALID_REGULAR_EXPRESSION, ErrorCode.UNSUPPORTED_ASSIGNOR)
    assert (desk.kind, desk.state) == ("classic", "Stable")


def test_I28_a_late_heartbeat_does_not_make_an_empty_group_lose_its_offsets(desk):
    ana = ClassicConsumer(desk, "ana")
    settle_all(ana)
    desk.commit(7, member=ana.member_id, generation=ana.generation)
    desk.now = Now(desk.now.monotonic_ms, desk.now.wall_ms + 2 * RETENTION_MS)
    ana.leave()
    refusal(desk.heartbeat, member_id="gone", epoch=-1)
    desk.pass_time(CHECK_INTERVAL_MS)
    desk.pass_time(CHECK_INTERVAL_MS)
    assert desk.committed() == 7


# --- beside members with regular expressions -----------------------------------------------------


def test_a_classic_member_does_not_inherit_a_regular_expression(desk):
    desk.change_topics(topic_image("t", 1, 4), topic_image("u", 2, 1))
    desk.heartbeat(topics=[], subscribed_topic_regex="u", instance_id="i")
    desk.heartbeat(member_id="other", topics=["t"])
    ana = ClassicConsumer(desk, "ana", "i")
    ana.step()
    (member,) = (
        one
        for one in desk.shard.describe_consumer_group(GROUP).members
        if one.member_id == ana.member_id
    )
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], None)


def test_a_static_member_that_returns_without_its_regular_expression_has_none(desk):
    desk.heartbeat(topics=[], subscribed_topic_regex="u", instance_id="i")
    desk.heartbeat(epoch=-2, instance_id="i")
    desk.heartbeat(member_id="n", instance_id="i")
    (member,) = desk.shard.describe_consumer_group(GROUP).members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], None)


def test_an_evaluation_that_is_due_after_a_downgrade_does_not_end_the_sync_phase(desk):
    ana, new = ClassicConsumer(desk, "ana"), NewConsumer(desk, "new")
    settle_all(ana)
    settle_all(ana, new)
    new.leave()
    ana.step()
    ana.step()
    assert (desk.kind, ana.phase) == ("classic", "joined")
    evaluation = DeadlineKey(GROUP, DeadlineKind.PATTERNS)
    desk.shard._context.deadlines.set(evaluation, desk.now.monotonic_ms)
    desk.settle()
    assert desk.member_ids() == {ana.member_id}


def test_a_classic_member_that_was_fenced_learns_it_from_an_old_commit_too(desk):
    new = NewConsumer(desk, "new")
    settle_all(new)
    request = commit_request(5, member="fenced", generation=3)
    code, _ = desk.ask(lambda: desk.shard.offsets.commit(request, version=2, now=desk.now))
    assert code is ErrorCode.UNKNOWN_MEMBER_ID
