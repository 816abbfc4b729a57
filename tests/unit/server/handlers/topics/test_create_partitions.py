from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)

VERSIONS = range(4)


def grow(name, count, assignments=None):
    chosen = None
    if assignments is not None:
        chosen = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    return CreatePartitionsTopic(name=name, count=count, assignments=chosen)


def create(broker, *topics, version=3, validate_only=False):
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    return broker.call(request, version).results


@pytest.mark.parametrize("version", VERSIONS)
def test_T22_new_partitions_exist_when_the_answer_leaves(broker, version):
    broker.make_topic("t")
    (answer,) = create(broker, grow("t", 3), version=version)
    assert (answer.name, answer.error_code) == ("t", ErrorCode.NONE)
    assert len(broker.image.topic("t").partitions) == 3
    assert broker.partition("t", 2).is_leader


def test_results_come_in_the_order_of_the_request(broker):
    broker.make_topic("a", 2)
    broker.make_topic("c")
    broker.make_topic("d")
    broker.permissions.deny(Operation.ALTER, "d")

    answers = create(broker, grow("d", 2), grow("c", 2), grow("b", 2), grow("a", 2))

    assert [(one.name, one.error_code) for one in answers] == [
        ("d", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("c", ErrorCode.NONE),
        ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", ErrorCode.INVALID_PARTITIONS),
    ]
    assert "2" in answers[3].error_message


def test_validation_changes_nothing(broker):
    broker.make_topic("t")
    (answer,) = create(broker, grow("t", 3), validate_only=True)
    assert answer.error_code == ErrorCode.NONE
    assert len(broker.image.topic("t").partitions) == 1


def test_replicas_of_the_new_partitions_can_be_chosen(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [1]})
    create(broker, grow("t", 3, [[2], [1]]))
    assert [one.replicas for one in broker.image.topic("t").partitions] == [(1,), (2,), (1,)]


def test_a_topic_that_is_named_twice_stays_as_it_is_and_is_answered_once(broker):
    broker.make_topic("t")
    answers = create(broker, grow("t", 2), grow("t", 3))
    assert [(one.name, one.error_code) for one in answers] == [("t", ErrorCode.INVALID_REQUEST)]
    assert len(broker.image.topic("t").partitions) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_T18_a_broker_that_finds_no_controller_refuses(broker, version):
    broker.make_topic("t")
    broker.depose()
    (answer,) = create(broker, grow("t", 2), version=version)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
