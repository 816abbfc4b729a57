from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, StoreUnavailable
from tidemill.core.ids import ZERO_UUID
from tidemill.core.limits import PARTITIONS_PER_REQUEST_MAX
from tidemill.server.handlers.topics.topic_changes import ENTRIES_PER_SLICE
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

VERSIONS = range(2, 8)


def topic(name, partitions=1, factor=1, *, assignments=(), **configs):
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def create(broker, *topics, version=7, validate_only=False):
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return broker.call(request, version).topics


@pytest.mark.parametrize("version", VERSIONS)
def test_T22_a_topic_exists_when_the_answer_leaves(broker, version):
    (answer,) = create(broker, topic("t", 3, retention_ms="60000"), version=version)

    assert (answer.name, answer.error_code) == ("t", ErrorCode.NONE)
    made = broker.image.topic("t")
    assert len(made.partitions) == 3
    assert made.overrides == {"retention.ms": "60000"}
    assert broker.partition("t", 2).is_leader


@pytest.mark.parametrize("version", VERSIONS)
def test_T21_the_answer_describes_the_topic_from_version_5_and_names_its_id_from_7(broker, version):
    (answer,) = create(broker, topic("t", 3, retention_ms="60000"), version=version)

    assert answer.num_partitions == (3 if version >= 5 else -1)
    assert answer.replication_factor == (1 if version >= 5 else -1)
    configs = {one.name: (one.value, one.config_source) for one in answer.configs or []}
    assert configs.get("retention.ms") == (("60000", 1) if version >= 5 else None)
    wanted_id = broker.image.topic("t").topic_id if version >= 7 else ZERO_UUID
    assert answer.topic_id == wanted_id


@pytest.mark.parametrize("version", range(4, 8))
def test_T21_minus_one_takes_the_brokers_defaults(broker, version):
    create(broker, topic("t", -1, -1), version=version)
    made = broker.image.topic("t")
    assert len(made.partitions) == broker.config.num_partitions
    assert made.replication_factor == broker.config.default_replication_factor


@pytest.mark.parametrize("wanted", [topic("__consumer_offsets", 4), topic("__transaction_state")])
def test_an_internal_topic_is_not_made_with_a_clients_settings(broker, wanted):
    (answer,) = create(broker, wanted)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not broker.image.topics


def test_an_internal_topic_without_settings_is_made_as_its_coordinator_makes_it(broker):
    (answer,) = create(broker, topic("__consumer_offsets", -1, -1))
    assert answer.error_code == ErrorCode.NONE
    made = broker.image.topic("__consumer_offsets")
    assert len(made.partitions) == 50
    assert made.config.cleanup_policy == ("compact",)


def test_T21_results_come_in_the_order_of_the_request(broker):
    broker.make_topic("b")
    broker.permissions.deny(Operation.CREATE, "c")
    broker.permissions.deny(Operation.CREATE, "kafka-cluster")

    answers = create(broker, topic("d"), topic("c"), topic("b"), topic("a/"), topic("z"))

    assert [(one.name, one.error_code) for one in answers] == [
        ("d", ErrorCode.NONE),
        ("c", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("b", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a/", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("z", ErrorCode.NONE),
    ]
    assert sorted(broker.image.topics) == ["b", "d", "z"]


def test_T21_validation_creates_nothing(broker):
    good, bad = create(broker, topic("t", 2), topic("u", 0), validate_only=True)
    assert (good.error_code, good.num_partitions) == (ErrorCode.NONE, 2)
    assert good.topic_id == ZERO_UUID
    assert bad.error_code == ErrorCode.INVALID_PARTITIONS
    assert broker.image.topics == {}


def test_T21_an_unknown_key_is_refused_with_a_reason(broker):
    (answer,) = create(broker, topic("t", no_such_key="1"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "no.such.key" in answer.error_message
    assert broker.image.topics == {}


def test_T21_the_configuration_is_hidden_from_a_client_that_may_not_describe_it(broker):
    broker.permissions.deny(Operation.DESCRIBE_CONFIGS, "t")
    (answer,) = create(broker, topic("t"))
    assert (answer.error_code, answer.configs) == (ErrorCode.NONE, None)
    assert answer.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (answer.num_partitions, answer.replication_factor) == (-1, -1)


def test_a_name_that_occurs_twice_creates_no_topic_and_is_answered_once(broker):
    answers = create(broker, topic("t"), topic("u"), topic("t", 2))
    assert [(one.name, one.error_code) for one in answers] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert list(broker.image.topics) == ["u"]


def test_replicas_can_be_chosen(broker):
    broker.join_broker(2)
    create(broker, topic("t", -1, -1, assignments=[(1, [1, 2]), (0, [2, 1])]))
    assert [one.replicas for one in broker.image.topic("t").partitions] == [(2, 1), (1, 2)]


def test_a_partition_that_is_assigned_twice_is_refused(broker):
    (answer,) = create(broker, topic("t", -1, -1, assignments=[(0, [1]), (0, [1])]))
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_S39_a_request_for_too_many_partitions_is_refused(broker):
    (answer,) = create(broker, topic("t", PARTITIONS_PER_REQUEST_MAX + 1))
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert broker.image.topics == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_T18_a_broker_that_finds_no_controller_refuses_every_topic(broker, version):
    broker.depose()
    answers = create(broker, topic("t"), topic("u"), topic("u"), version=version)
    assert [one.error_code for one in answers] == [ErrorCode.NOT_CONTROLLER] * 3


def test_a_store_that_fails_during_the_change_leaves_the_outcome_open(broker):
    async def fail(ops):
        raise StoreUnavailable("the connection broke")

    broker.session.multi = fail
    answers = create(broker, topic("t"), topic("u"), topic("u"))
    assert [one.error_code for one in answers] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_REQUEST,
    ]


def test_S11_a_long_list_is_answered_in_slices(broker):
    many = [topic(f"no/name/{n}") for n in range(3 * ENTRIES_PER_SLICE)]
    assert broker.turns_of(CreateTopicsRequest(topics=many), 7) >= 3
