from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.core.ids import ZERO_UUID
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState

VERSIONS = range(1, 7)
UNKNOWN_ID = UUID(int=77)


def delete(broker, *names, version=6):
    if version >= 6:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    else:
        request = DeleteTopicsRequest(topic_names=list(names))
    return broker.call(request, version).responses


def delete_ids(broker, *topic_ids):
    topics = [DeleteTopicState(topic_id=topic_id) for topic_id in topic_ids]
    return broker.call(DeleteTopicsRequest(topics=topics), 6).responses


@pytest.mark.parametrize("version", VERSIONS)
def test_T22_a_topic_is_gone_when_the_answer_leaves(broker, version):
    broker.make_topic("t")
    (answer,) = delete(broker, "t", version=version)
    assert (answer.name, answer.error_code) == ("t", ErrorCode.NONE)
    assert broker.image.topics == {}
    assert broker.partition("t") is None


def test_T17_a_topic_is_deleted_by_its_id(broker):
    topic_id = broker.make_topic("t").topic_id
    (answer,) = delete_ids(broker, topic_id)
    assert (answer.name, answer.topic_id, answer.error_code) == ("t", topic_id, ErrorCode.NONE)
    assert broker.image.topics == {}


def test_T17_the_old_id_of_a_recreated_topic_is_unknown(broker):
    old_id = broker.make_topic("t").topic_id
    delete(broker, "t")
    broker.make_topic("t")
    (answer,) = delete_ids(broker, old_id)
    assert (answer.name, answer.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert list(broker.image.topics) == ["t"]


@pytest.mark.parametrize("version", VERSIONS)
def test_results_come_in_the_order_of_the_request(broker, version):
    broker.make_topic("a")
    broker.make_topic("c")
    broker.permissions.deny(Operation.DELETE, "c")

    answers = delete(broker, "c", "b", "a", version=version)

    assert [(one.name, one.error_code) for one in answers] == [
        ("c", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", ErrorCode.NONE),
    ]
    assert list(broker.image.topics) == ["c"]


def test_several_unknown_ids_are_each_unknown(broker):
    answers = delete_ids(broker, UNKNOWN_ID, UUID(int=78))
    assert [one.error_code for one in answers] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_that_occurs_twice_is_not_deleted_and_is_answered_once(broker, version):
    broker.make_topic("t")
    broker.make_topic("u")
    answers = delete(broker, "t", "u", "t", version=version)
    assert [(one.name, one.error_code) for one in answers] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert list(broker.image.topics) == ["t"]


def test_an_id_that_occurs_twice_is_not_deleted_and_is_answered_once(broker):
    topic_id = broker.make_topic("t").topic_id
    (answer,) = delete_ids(broker, topic_id, topic_id)
    assert (answer.name, answer.topic_id) == (None, topic_id)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert list(broker.image.topics) == ["t"]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_topic_that_is_named_by_name_and_by_id_is_not_deleted(broker, reverse):
    topic_id = broker.make_topic("t").topic_id
    topics = [DeleteTopicState(name="t"), DeleteTopicState(topic_id=topic_id)]
    if reverse:
        topics.reverse()
    (answer,) = broker.call(DeleteTopicsRequest(topics=topics), 6).responses
    assert (answer.name, answer.topic_id) == ("t", topic_id)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert list(broker.image.topics) == ["t"]


def test_a_name_and_an_id_together_do_not_reveal_that_they_are_one_hidden_topic(broker):
    topic_id = broker.make_topic("secret").topic_id
    broker.permissions.deny(Operation.DELETE, "secret")
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    topics = [DeleteTopicState(name="secret"), DeleteTopicState(topic_id=topic_id)]
    answers = broker.call(DeleteTopicsRequest(topics=topics), 6).responses
    assert [one.error_code for one in answers] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2


@pytest.mark.parametrize(
    "wanted",
    [
        DeleteTopicState(name="t", topic_id=UNKNOWN_ID),
        DeleteTopicState(name=None, topic_id=ZERO_UUID),
    ],
)
def test_a_topic_is_named_by_either_name_or_id(broker, wanted):
    broker.make_topic("t")
    (answer,) = broker.call(DeleteTopicsRequest(topics=[wanted]), 6).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert list(broker.image.topics) == ["t"]


def test_an_id_does_not_reveal_the_name_of_a_hidden_topic(broker):
    topic_id = broker.make_topic("secret").topic_id
    broker.permissions.deny(Operation.DELETE, "secret")
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    (answer,) = delete_ids(broker, topic_id)
    assert (answer.name, answer.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("version", VERSIONS)
def test_T18_a_broker_that_finds_no_controller_refuses(broker, version):
    broker.make_topic("t")
    broker.depose()
    (answer,) = delete(broker, "t", version=version)
    assert (answer.name, answer.error_code) == ("t", ErrorCode.NOT_CONTROLLER)
