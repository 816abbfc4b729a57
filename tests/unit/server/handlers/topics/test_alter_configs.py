"""AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import pytest

from tests.unit.server.config_requests import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    alter_all,
    replace_all,
    resource_of,
)
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation


def overrides(broker):
    return dict(broker.image.topic("t").overrides)


@pytest.mark.parametrize("version", range(3))
def test_T57_alter_configs_replaces_everything(broker, version):
    broker.make_topic("t", overrides={"retention.ms": "1", "segment.bytes": "2048"})
    answer = replace_all(broker, {"retention.bytes": "5"}, version)
    assert (answer.error_code, answer.resource_name) == (ErrorCode.NONE, "t")
    assert overrides(broker) == {"retention.bytes": "5"}


@pytest.mark.parametrize("version", range(2))
def test_T57_incremental_changes_leave_other_keys_alone(broker, version):
    broker.make_topic("t", overrides={"retention.ms": "1", "segment.bytes": "2048"})
    answer = alter(
        broker, ("retention.ms", SET, "7"), ("segment.bytes", DELETE, None), version=version
    )
    assert (answer.error_code, answer.resource_name) == (ErrorCode.NONE, "t")
    assert overrides(broker) == {"retention.ms": "7"}


def test_T57_lists_grow_and_shrink(broker):
    broker.make_topic("t")
    key = "leader.replication.throttled.replicas"
    alter(broker, (key, SET, "0:1,1:1"))
    alter(broker, (key, APPEND, "2:1"))
    alter(broker, (key, SUBTRACT, "1:1"))
    assert overrides(broker) == {key: "0:1,2:1"}


def test_T22_a_partition_has_its_new_configuration_when_the_answer_leaves(broker):
    broker.make_topic("t")
    alter(broker, ("retention.ms", SET, "7"))
    assert broker.partition("t").log.config.retention_ms == 7


def test_T57_an_unknown_operation_is_refused(broker):
    broker.make_topic("t")
    answer = alter(broker, ("retention.ms", 4, "7"))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "4" in answer.error_message


def test_T57_one_bad_key_keeps_the_whole_resource_as_it_is(broker):
    broker.make_topic("t")
    answer = alter(broker, ("retention.ms", SET, "7"), ("retention.mss", SET, "7"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in answer.error_message
    assert overrides(broker) == {}


def test_T57_a_key_changes_once_per_request(broker):
    broker.make_topic("t")
    answer = alter(broker, ("retention.ms", SET, "7"), ("retention.ms", SET, "8"))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_validation_changes_nothing(broker):
    broker.make_topic("t")
    resources = [resource_of([("retention.ms", SET, "7")])]
    assert alter_all(broker, resources, validate_only=True)[0].error_code == ErrorCode.NONE
    assert replace_all(broker, {"retention.ms": "7"}, validate_only=True).error_code == 0
    assert overrides(broker) == {}


def test_each_resource_has_its_own_result_in_the_order_of_the_request(broker):
    broker.make_topic("t")
    change = [("retention.ms", SET, "7")]
    answers = alter_all(
        broker,
        [
            resource_of(change, name="u"),
            resource_of(change, name="t"),
            resource_of(change, name="no/name"),
        ],
    )
    assert [(one.resource_name, one.error_code) for one in answers] == [
        ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.NONE),
        ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


def test_a_resource_that_is_named_twice_stays_as_it_is(broker):
    broker.make_topic("t")
    answers = alter_all(broker, [resource_of([("retention.ms", SET, "7")])] * 2)
    assert [one.error_code for one in answers] == [ErrorCode.INVALID_REQUEST] * 2
    assert overrides(broker) == {}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (BROKER, ErrorCode.INVALID_CONFIG),
        (GROUP, ErrorCode.INVALID_CONFIG),
        (BROKER_LOGGER, ErrorCode.INVALID_REQUEST),
    ],
)
def test_S35_a_key_outside_the_list_never_changes_at_run_time(broker, kind, code):
    before = broker.services.config.current
    answers = [
        alter(broker, ("data.dir", SET, "/elsewhere"), kind=kind, name="1"),
        replace_all(broker, {"data.dir": "/elsewhere"}, kind=kind, name="1"),
    ]
    assert [one.error_code for one in answers] == [code] * 2
    assert all(one.error_message for one in answers)
    assert broker.services.config.current is before


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (BROKER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_each_type_of_resource_has_its_own_permission_and_error(broker, kind, code):
    broker.make_topic("t")
    broker.permissions.deny(Operation.ALTER_CONFIGS)
    assert alter(broker, ("retention.ms", SET, "7"), kind=kind).error_code == code
    assert overrides(broker) == {}


def test_T18_a_broker_that_finds_no_controller_refuses(broker):
    broker.make_topic("t")
    broker.depose()
    answers = [alter(broker, ("retention.ms", SET, "7")), replace_all(broker, {})]
    assert [one.error_code for one in answers] == [ErrorCode.NOT_CONTROLLER] * 2


def test_who_may_not_read_the_base_does_not_alter_what_a_view_shows_of_it(broker):
    """Nor may it make such a view; the filter may be all that keeps records from it."""
    broker.make_topic("orders")
    view = {"tidemill.view.of": "orders", "tidemill.view.filter": "region = 'eu'"}
    broker.make_topic("t", partitions=-1, overrides=view)
    broker.permissions.deny(Operation.READ, "orders")
    for answer in (
        alter(broker, ("tidemill.view.filter", DELETE, None)),
        alter(broker, ("tidemill.view.filter", SET, "TRUE")),
        replace_all(broker, {"tidemill.view.filter": ""}),
    ):
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert answer.error_message == "orders may not be read"
    assert overrides(broker) == view
