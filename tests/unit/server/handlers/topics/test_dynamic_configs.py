"""Configuration of brokers and groups at run time: set, described, refused, kept."""

from __future__ import annotations

import pytest

from tests.unit.server.config_requests import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    alter,
    alter_all,
    by_name,
    describe,
    replace_all,
    resource_of,
)
from tests.unit.server.group_requests import coordinate, heartbeat, settled_heartbeat
from tests.unit.server.one_broker import OneBroker
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import options_of
from tidemill.core.errors import ErrorCode
from tidemill.metadata import override_writer
from tidemill.wire.generated.incremental_alter_configs import IncrementalAlterConfigsRequest

OWN = "1"
EVERY = ""
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, DYNAMIC_GROUP = 1, 2, 3, 4, 5, 8
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def set_key(broker, key, value, *, kind=BROKER, name=OWN):
    answer = alter(broker, (key, SET, value), kind=kind, name=name)
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def refused(broker, *changes, kind=BROKER, name=OWN):
    """The code and the reason of a refusal."""
    answer = alter(broker, *changes, kind=kind, name=name)
    return ErrorCode(answer.error_code), answer.error_message


def synonyms(broker, key, *, kind=BROKER, name=OWN):
    found = by_name(describe(broker, kind, name, synonyms=True))[key]
    listed = [(one.name, one.value, one.source) for one in found.synonyms]
    assert (found.value, found.config_source) == listed[0][1:]
    return listed


# --- brokers -----------------------------------------------------------------------------------


def test_T56_a_broker_beats_all_brokers_beats_the_file_beats_the_default():
    broker = OneBroker(**{"fetch.max.bytes": 4000})
    set_key(broker, "fetch.max.bytes", "3000", name=EVERY)
    set_key(broker, "fetch.max.bytes", "2000", name=OWN)
    assert broker.services.config.current.fetch_max_bytes == 2000
    assert synonyms(broker, "fetch.max.bytes") == [
        ("fetch.max.bytes", "2000", DYNAMIC_BROKER),
        ("fetch.max.bytes", "3000", DYNAMIC_DEFAULT),
        ("fetch.max.bytes", "4000", STATIC),
        ("fetch.max.bytes", str(55 << 20), DEFAULT),
    ]
    alter(broker, ("fetch.max.bytes", DELETE, None), kind=BROKER, name=OWN)
    assert broker.services.config.current.fetch_max_bytes == 3000
    alter(broker, ("fetch.max.bytes", DELETE, None), kind=BROKER, name=EVERY)
    broker.close()
    assert broker.services.config.current.fetch_max_bytes == 4000


def test_T56_a_topic_shows_the_dynamic_default_that_it_inherits(broker):
    broker.make_topic("t")
    set_key(broker, "log.retention.ms", "5", name=EVERY)
    assert synonyms(broker, "retention.ms", kind=TOPIC, name="t") == [
        ("log.retention.ms", "5", DYNAMIC_DEFAULT),
        ("log.retention.ms", str(14 * 24 * 3600 * 1000), DEFAULT),
    ]


def test_T56_the_defaults_of_all_brokers_list_what_was_set(broker):
    set_key(broker, "log.retention.ms", "5", name=EVERY)
    set_key(broker, "log.segment.bytes", "2048", name=OWN)
    (key,) = describe(broker, BROKER, EVERY).configs
    assert (key.name, key.value, key.config_source) == ("log.retention.ms", "5", DYNAMIC_DEFAULT)


def test_T56_exactly_the_dynamic_keys_can_be_written(broker):
    found = by_name(describe(broker, BROKER, OWN))
    assert {name for name, key in found.items() if not key.read_only} == {
        option.key for option in options_of(BrokerConfig).values() if option.dynamic
    }


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("data.dir", "restart"),
        ("listeners", "restart"),
        ("request.memory.bytes", "restart"),
        ("min.insync.replicas", "restart"),
        ("log.retention.mss", "log.retention.ms"),
        ("no.such.key", "unknown"),
    ],
)
def test_S35_a_key_that_cannot_change_is_refused_with_the_reason(broker, key, reason):
    for name in (OWN, EVERY):
        code, message = refused(broker, (key, SET, "1"), name=name)
        assert code is ErrorCode.INVALID_CONFIG
        assert reason in message


def test_a_key_of_the_whole_cluster_cannot_differ_between_brokers(broker):
    code, message = refused(broker, ("num.partitions", SET, "3"), name=OWN)
    assert (code, "all brokers" in message) == (ErrorCode.INVALID_CONFIG, True)
    set_key(broker, "num.partitions", "3", name=EVERY)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("log.segment.bytes", "10", "1024"),
        ("log.segment.bytes", "much", "whole number"),
        ("auto.create.topics.enable", "perhaps", "true or false"),
        ("tidemill.flush", "never", "group, os"),
        ("message.max.bytes", "200000000", "socket.request.max.bytes"),
        ("fetch.max.bytes", "2000000000", "response.memory.bytes"),
        ("group.min.session.timeout.ms", "2000000", "group.max.session.timeout.ms"),
        ("group.consumer.heartbeat.interval.ms", "45000", "group.consumer.session.timeout.ms"),
    ],
)
def test_a_value_is_checked_as_it_is_at_start(broker, key, value, named):
    before = broker.services.config.current
    code, message = refused(broker, (key, SET, value))
    assert (code, named in message) == (ErrorCode.INVALID_CONFIG, True)
    assert broker.services.config.current is before


def test_removing_a_value_that_another_one_needs_is_refused(broker):
    both = [("group.max.session.timeout.ms", SET, "3000000")]
    both.append(("group.min.session.timeout.ms", SET, "2000000"))
    assert alter(broker, *both, kind=BROKER, name=OWN).error_code == ErrorCode.NONE
    code, _ = refused(broker, ("group.max.session.timeout.ms", DELETE, None))
    assert code is ErrorCode.INVALID_CONFIG


def test_one_bad_key_keeps_the_whole_broker_as_it_is(broker):
    code, _ = refused(broker, ("log.retention.ms", SET, "5"), ("data.dir", SET, "/x"))
    assert code is ErrorCode.INVALID_CONFIG
    assert broker.image.overrides == {}


def test_T56_a_broker_changes_no_other_broker(broker):
    code, _ = refused(broker, ("log.retention.ms", SET, "5"), name="2")
    assert code is ErrorCode.INVALID_REQUEST


def test_validation_changes_nothing(broker):
    resources = [
        resource_of([("log.retention.ms", SET, "5")], kind=BROKER, name=OWN),
        resource_of([("data.dir", SET, "/x")], kind=BROKER, name=EVERY),
        resource_of([(SESSION, SET, "50000")], kind=GROUP, name="g"),
    ]
    answers = alter_all(broker, resources, validate_only=True)
    assert [one.error_code for one in answers] == [0, ErrorCode.INVALID_CONFIG, 0]
    assert broker.image.overrides == {}


def test_T57_alter_configs_replaces_everything_that_was_set(broker):
    set_key(broker, "log.retention.ms", "5")
    replace_all(broker, {"log.segment.bytes": "2048"}, kind=BROKER, name=OWN)
    assert broker.services.config.own_overrides == {"log.segment.bytes": "2048"}


def test_T57_a_number_cannot_grow_like_a_list(broker):
    code, _ = refused(broker, ("log.retention.ms", APPEND, "5"))
    assert code is ErrorCode.INVALID_CONFIG


def test_a_request_may_change_topics_brokers_and_groups_together(broker):
    broker.make_topic("t")
    answers = alter_all(
        broker,
        [
            resource_of([(SESSION, SET, "50000")], kind=GROUP, name="g"),
            resource_of([("retention.ms", SET, "7")], kind=TOPIC, name="t"),
            resource_of([("log.retention.ms", SET, "5")], kind=BROKER, name=OWN),
            resource_of([("retention.ms", SET, "7")], kind=TOPIC, name="unknown"),
        ],
    )
    assert [(one.resource_name, one.error_code) for one in answers] == [
        ("g", 0),
        ("t", 0),
        (OWN, 0),
        ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_a_broker_that_is_not_the_controller_checks_its_own_keys_first(broker):
    broker.make_topic("t")
    broker.depose()
    broker.run(broker.cluster.catch_up())
    answers = alter_all(
        broker,
        [
            resource_of([("retention.ms", SET, "7")], kind=TOPIC, name="t"),
            resource_of([("log.retention.ms", SET, "no number")], kind=BROKER, name=OWN),
            resource_of([("log.retention.ms", SET, "5")], kind=BROKER, name="77"),
        ],
    )
    assert [one.error_code for one in answers] == [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
    ]


# --- groups ------------------------------------------------------------------------------------


def test_T56_a_group_beats_the_broker(broker):
    set_key(broker, "group.consumer.session.timeout.ms", "50000")
    set_key(broker, SESSION, "60000", kind=GROUP, name="g")
    assert synonyms(broker, SESSION, kind=GROUP, name="g") == [
        (SESSION, "60000", DYNAMIC_GROUP),
        ("group.consumer.session.timeout.ms", "50000", DYNAMIC_BROKER),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    assert synonyms(broker, SESSION, kind=GROUP, name="other")[0][1] == "50000"


@pytest.mark.parametrize("name", ["g", "a/b", "../..", "~all", "%41", "grüppchen", "a b", "."])
def test_S8_any_name_of_a_group_will_do(broker, name):
    set_key(broker, SESSION, "60000", kind=GROUP, name=name)
    assert synonyms(broker, SESSION, kind=GROUP, name=name)[0][1] == "60000"
    assert broker.services.config.current is broker.services.config.static


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (SESSION, "44999", "group.consumer.min.session.timeout.ms"),
        (SESSION, "60001", "group.consumer.max.session.timeout.ms"),
        (HEARTBEAT, "4999", "group.consumer.min.heartbeat.interval.ms"),
        (HEARTBEAT, "15001", "group.consumer.max.heartbeat.interval.ms"),
        (SESSION, "soon", "whole number"),
        ("consumer.assignment.interval.ms", "1", "at once"),
        ("share.record.lock.duration.ms", "30000", "share groups"),
        ("streams.heartbeat.interval.ms", "5000", "streams groups"),
        ("consumer.session.timeout", "1", SESSION),
        ("session.timeout.ms", "1", "unknown"),
    ],
)
def test_what_a_group_cannot_have_is_refused_with_the_reason(broker, key, value, reason):
    code, message = refused(broker, (key, SET, value), kind=GROUP, name="g")
    assert code is ErrorCode.INVALID_CONFIG
    assert reason in message


def test_a_group_sends_heartbeats_more_often_than_its_session_lasts(broker):
    set_key(broker, "group.consumer.min.session.timeout.ms", "5000")
    code, message = refused(broker, (SESSION, SET, "5000"), kind=GROUP, name="g")
    assert (code, HEARTBEAT in message) == (ErrorCode.INVALID_CONFIG, True)


def test_a_group_without_a_name_is_refused(broker):
    code, _ = refused(broker, (SESSION, SET, "60000"), kind=GROUP, name="")
    assert code is ErrorCode.INVALID_REQUEST


def test_S38_the_groups_with_keys_of_their_own_are_limited(broker, monkeypatch):
    monkeypatch.setattr(override_writer, "OVERRIDDEN_GROUPS_MAX", 2)
    set_key(broker, SESSION, "60000", kind=GROUP, name="a")
    set_key(broker, SESSION, "60000", kind=GROUP, name="b")
    code, message = refused(broker, (SESSION, SET, "60000"), kind=GROUP, name="c")
    assert (code, "2 groups" in message) == (ErrorCode.POLICY_VIOLATION, True)
    set_key(broker, SESSION, "50000", kind=GROUP, name="a")
    alter(broker, (SESSION, DELETE, None), kind=GROUP, name="a")
    set_key(broker, SESSION, "60000", kind=GROUP, name="c")


def test_S38_a_group_with_a_long_name_cannot_have_keys_of_its_own(broker):
    code, _ = refused(broker, (SESSION, SET, "60000"), kind=GROUP, name="g" * 1025)
    assert code is ErrorCode.POLICY_VIOLATION


def test_S11_many_groups_change_in_slices(broker):
    one = [(SESSION, SET, "60000")]
    count = 4 * override_writer.OWNERS_PER_SLICE
    resources = [resource_of(one, kind=GROUP, name=f"g{number}") for number in range(count)]
    # Each entry is looked at twice, first by the handler and then by the cluster.
    assert broker.turns_of(IncrementalAlterConfigsRequest(resources=resources), 1) >= 2 * 4 - 1
    assert len(broker.image.overrides) == count


def test_members_are_held_to_their_groups_timeouts_from_their_next_heartbeat_on(broker):
    shard = coordinate(broker)
    joined = heartbeat(broker, "m")
    set_key(broker, SESSION, "60000", kind=GROUP, name="g")
    set_key(broker, HEARTBEAT, "15000", kind=GROUP, name="g")
    broker.clock.now_ms += 30_000
    answer = heartbeat(broker, "m", epoch=joined.member_epoch)
    assert answer.heartbeat_interval_ms == 15_000
    assert shard.next_deadline_ms() == broker.clock.now_ms + 60_000
    assert settled_heartbeat(broker, group_id="other").heartbeat_interval_ms == 5_000


def test_a_coordinator_that_loads_a_group_later_knows_its_timeouts(broker):
    set_key(broker, SESSION, "60000", kind=GROUP, name="g")
    shard = coordinate(broker)
    heartbeat(broker, "m")
    assert shard.next_deadline_ms() == broker.clock.now_ms + 60_000
