"""Members that subscribe with a regular expression: what it matches, and when that changes."""

from __future__ import annotations

import pytest

from tests.support.consumer_desk import (
    Client,
    ConsumerDesk,
    beat_request,
    join_request,
    settle,
)
from tidemill.coordinators.group.base.group import Caller
from tidemill.coordinators.group.base.records import decode_value, try_decode_key
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import CONSUMER_PATTERNS_MAX, PATTERN_PAUSE_MS, QUICK_HEARTBEAT_MS
from tidemill.wire.generated.consumer_group_regular_expression_record import (
    ConsumerGroupRegularExpressionKey,
)

ORDERS = "^orders-.*"
LONG_MS = 1_000
"""Enough for any number of slices."""


@pytest.fixture
def desk() -> ConsumerDesk:
    return ConsumerDesk({"orders-eu": 2, "orders-us": 1, "payments": 1, "__consumer_offsets": 1})


def join(desk, member_id="m", pattern=ORDERS, *names, sees_topic=None):
    """Join with a regular expression; the topics and partitions of the answer."""
    request = join_request(
        member_id, subscribed_topic_names=list(names), subscribed_topic_regex=pattern
    )
    if sees_topic is None:
        return read(desk, desk.beat(request))
    caller = Caller("c", "/h", "fresh", sees_topic)
    result = desk.group.heartbeat(request, caller, version=1, now=desk.now)
    desk.apply(result)
    return read(desk, result.response)


def read(desk, response):
    return None if response.assignment is None else sorted(desk.names(response.assignment))


def beat(desk, member_id="m", **fields):
    """A heartbeat in the member's own epoch; the answered assignment."""
    epoch = desk.member(member_id).member_epoch
    return read(desk, desk.beat(beat_request(member_id, epoch, **fields)))


def pattern_records(desk):
    """The last record of each regular expression in the log: its topics."""
    found = {}
    for raw_key, raw_value in desk.log:
        key = try_decode_key(raw_key)
        if isinstance(key, ConsumerGroupRegularExpressionKey):
            value = None if raw_value is None else decode_value(key, raw_value)
            found[key.regular_expression] = None if value is None else value.topics
    return found


def reason(desk, pattern):
    """Why a regular expression is refused."""
    with pytest.raises(KafkaError) as refusal:
        join(desk, pattern=pattern)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    return refusal.value.detail


# --- what matches --------------------------------------------------------------------------------


def test_T48_a_member_gets_the_topics_that_match_with_its_first_heartbeat(desk):
    assert join(desk) == [("orders-eu", 0), ("orders-eu", 1), ("orders-us", 0)]


def test_T48_an_expression_must_match_the_whole_name(desk):
    assert join(desk, "m", "orders") == []
    assert join(desk, "n", "orders-us|pay") == [("orders-us", 0)]


def test_T48_internal_topics_never_match(desk):
    assert ("__consumer_offsets", 0) not in join(desk, "m", ".*")


def test_T48_a_member_may_name_topics_beside_its_expression(desk):
    assert join(desk, "m", "orders-us", "payments") == [("orders-us", 0), ("payments", 0)]


def test_T48_only_topics_that_the_member_may_see_match(desk):
    assert join(desk, sees_topic=lambda name: name != "orders-eu") == [("orders-us", 0)]


def test_T48_members_with_the_same_expression_share_the_partitions(desk):
    topics = ["orders-eu", "orders-us"]
    clients = [Client(desk, name, topics, by_pattern=True) for name in ("m", "n")]
    settle(*clients)
    assert sorted(len(client.reading) for client in clients) == [1, 2]
    assert list(pattern_records(desk)) == ["orders-eu|orders-us"]


# --- when it changes -----------------------------------------------------------------------------


def test_T48_a_topic_that_is_created_later_is_assigned_with_the_next_heartbeat(desk):
    join(desk, "m", "orders-(us|asia)")
    desk.put_topic("orders-asia", 1)
    assert beat(desk) == [("orders-asia", 0), ("orders-us", 0)]
    assert pattern_records(desk)["orders-(us|asia)"] == ["orders-asia", "orders-us"]


def test_T48_a_topic_that_is_deleted_is_taken_away(desk):
    join(desk)
    desk.delete_topic("orders-eu")
    assert beat(desk, topic_partitions=[]) == [("orders-us", 0)]


def test_T48_a_topic_that_does_not_match_changes_nothing(desk):
    join(desk)
    desk.put_topic("invoices", 1)
    before = len(desk.log)
    assert beat(desk) is None
    assert len(desk.log) == before


def test_T48_another_expression_replaces_the_first_in_the_log_too(desk):
    join(desk)
    assert beat(desk, subscribed_topic_regex="pay.*", topic_partitions=[]) == []
    assert beat(desk) == [("payments", 0)]
    assert pattern_records(desk) == {ORDERS: None, "pay.*": ["payments"]}


def test_T48_an_empty_expression_withdraws_it(desk):
    join(desk, "m", ORDERS, "payments")
    assert beat(desk, subscribed_topic_regex="", topic_partitions=[]) == [("payments", 0)]
    assert desk.member("m").subscribed_topic_regex is None
    assert pattern_records(desk) == {ORDERS: None}


def test_T48_an_expression_is_forgotten_with_the_last_member_that_uses_it(desk):
    join(desk, "m")
    join(desk, "n")
    desk.beat(beat_request("m", -1))
    assert pattern_records(desk)[ORDERS] is not None
    desk.beat(beat_request("n", -1))
    assert pattern_records(desk)[ORDERS] is None


def test_T48_an_unchanged_heartbeat_that_repeats_the_expression_writes_nothing(desk):
    join(desk)
    before = len(desk.log)
    assert beat(desk, subscribed_topic_regex=ORDERS) is None
    assert len(desk.log) == before


def beat_as(desk, member_id, sees_topic):
    """A heartbeat of a member that may see only some topics."""
    request = beat_request(member_id, desk.member(member_id).member_epoch)
    caller = Caller("c", "/h", "fresh", sees_topic)
    desk.apply(desk.group.heartbeat(request, caller, version=1, now=desk.now))


def test_a_match_that_another_member_names_already_is_assigned_too(desk):
    desk.put_topic("orders-eu", 4)
    join(desk, "m", sees_topic=lambda name: name != "orders-eu")
    beat_as(desk, "m", lambda name: name != "orders-eu")
    desk.beat(join_request("n", "orders-eu"))
    desk.put_topic("unrelated", 1)
    beat_as(desk, "m", lambda _name: True)
    target = desk.names(desk.member("m").target_assignment)
    assert {topic for topic, _ in target} == {"orders-eu", "orders-us"}


def test_members_that_see_different_topics_do_not_rebalance_for_ever(desk):
    join(desk, "m")
    join(desk, "n")
    desk.put_topic("orders-asia", 1)
    epochs = []
    for _ in range(5):
        beat_as(desk, "m", lambda _name: True)
        beat_as(desk, "n", lambda name: name != "orders-asia")
        epochs.append(desk.describe().group_epoch)
    assert epochs[1] == epochs[-1]


# --- the log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacts", [False, True])
def test_I28_the_next_coordinator_knows_the_expression_and_its_topics(desk, compacts):
    join(desk)
    if compacts:
        desk.compact()
    desk.load()
    assert desk.member("m").subscribed_topic_regex == ORDERS
    assert desk.group.subscribes_to("orders-eu")
    before = len(desk.log)
    beat(desk)
    assert len(desk.log) == before


def test_I28_the_next_coordinator_notices_topics_that_it_missed(desk):
    join(desk)
    desk.image = desk._with_topic("orders-asia", 1).after  # nobody is told
    desk.load()
    assert ("orders-asia", 0) in beat(desk)


def test_a_group_that_is_deleted_leaves_no_expression_behind(desk):
    join(desk)
    tombstones = [try_decode_key(key) for key, value in desk.group.tombstones() if value is None]
    assert any(isinstance(key, ConsumerGroupRegularExpressionKey) for key in tombstones)


def test_I28_an_expression_that_the_engine_no_longer_accepts_keeps_its_topics(desk):
    join(desk)

    class Refuses:
        def check(self, pattern):
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, "no engine")

        def try_search(self, pattern):
            self.check(pattern)

    desk.matcher = Refuses()
    desk.load()
    beat(desk)
    assert desk.group.subscribes_to("orders-eu")
    assert pattern_records(desk)[ORDERS] == ["orders-eu", "orders-us"]


def test_the_description_shows_the_expression(desk):
    join(desk)
    assert desk.member("m").subscribed_topic_regex == ORDERS
    assert desk.member("m").subscribed_topic_names == []


def test_offsets_of_matching_topics_count_as_subscribed(desk):
    join(desk)
    assert desk.group.subscribes_to("orders-us")
    assert not desk.group.subscribes_to("payments")


# --- bounds --------------------------------------------------------------------------------------


def test_S37_an_expression_that_is_not_valid_is_refused_with_the_reason(desk):
    assert "missing" in reason(desk, "orders-(")
    assert desk.member_ids() == []


def test_S37_a_group_has_few_expressions(desk):
    for number in range(CONSUMER_PATTERNS_MAX):
        join(desk, f"m{number}", f"orders-{number}")
    assert str(CONSUMER_PATTERNS_MAX) in reason(desk, "one-more")
    join(desk, "n", "orders-0")  # one that is known already


def test_S41_an_expression_that_matches_more_than_a_record_holds_is_refused():
    desk = ConsumerDesk({f"{number}-{'x' * 240}": 1 for number in range(1_200)})
    desk.beat(join_request(subscribed_topic_names=[], subscribed_topic_regex=".*"))
    desk.pass_ms(LONG_MS)  # it takes more than one slice to find out
    assert pattern_records(desk) == {}
    assert desk.refusal(beat_request("m", 1)) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "too wide" in reason(desk, ".*")


def test_S41_a_topic_too_many_does_not_end_the_consumers_that_are_there():
    """The refusal is fatal for them: they keep what they have, also if they restart."""
    names = [f"{number:04}-{'x' * 240}" for number in range(1_069)]
    desk = ConsumerDesk(dict.fromkeys(names, 1))
    desk.beat(join_request(subscribed_topic_names=[], subscribed_topic_regex=".*"))
    desk.pass_ms(LONG_MS)
    assert len(beat(desk)) == len(names)
    for number in range(2):
        desk.put_topic(f"{number}-more-{'x' * 240}", 1)
    assert desk.refusal(beat_request("m", desk.member("m").member_epoch)) is ErrorCode.NONE
    desk.pass_ms(LONG_MS)
    assert len(pattern_records(desk)[".*"]) == len(names)
    assert join(desk, "n", ".*") is not None


def test_S11_a_long_evaluation_goes_on_in_slices_between_heartbeats():
    desk = ConsumerDesk({f"orders-{number}": 1 for number in range(2_500)})
    request = join_request(subscribed_topic_names=[], subscribed_topic_regex=ORDERS)
    first = desk.beat(request)
    assert read(desk, first) == []
    assert first.heartbeat_interval_ms == QUICK_HEARTBEAT_MS
    assert pattern_records(desk) == {}

    desk.pass_ms(LONG_MS)
    assert len(pattern_records(desk)[ORDERS]) == 2_500
    assert desk.describe().group_state == "Assigning"
    assert len(beat(desk)) == 2_500
    desk.pass_ms(LONG_MS)
    assert beat(desk) is None


def test_S37_a_long_evaluation_leaves_most_of_the_time_to_others():
    desk = ConsumerDesk({f"orders-{number}": 1 for number in range(2_500)})
    desk.beat(join_request(subscribed_topic_names=[], subscribed_topic_regex=ORDERS))
    desk.pass_ms(PATTERN_PAUSE_MS)
    assert pattern_records(desk) == {}
    next_ms = desk.context.deadlines.next_ms()
    assert next_ms == desk.now_ms + PATTERN_PAUSE_MS


def test_S11_topics_that_appear_during_a_long_evaluation_are_found_too():
    desk = ConsumerDesk({f"orders-{number}": 1 for number in range(2_500)})
    desk.beat(join_request(subscribed_topic_names=[], subscribed_topic_regex=ORDERS))
    desk.put_topic("orders-late", 1)
    desk.pass_ms(LONG_MS)
    assert ("orders-late", 0) in beat(desk)
