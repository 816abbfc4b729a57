"""FindCoordinator: the leader of the partition that a group's name hashes to."""

from __future__ import annotations

import pytest

from tidemill.coordinators.runtime.coordinator import java_hash
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import COORDINATED_NAME_CHARS_MAX
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidemill.server.handlers.groups.find_coordinator import KEYS_PER_SLICE
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest


@pytest.mark.parametrize("version", range(4))
def test_F54_a_group_is_coordinated_by_the_leader_of_its_partition(broker, version):
    answer = broker.call(FindCoordinatorRequest(key="group"), version)
    assert answer.error_code == ErrorCode.NONE
    assert (answer.node_id, answer.host, answer.port) == (1, "broker.example", 9092)


@pytest.mark.parametrize("version", range(4, 7))
def test_F54_one_request_may_name_several_groups(broker, version):
    answer = broker.call(FindCoordinatorRequest(coordinator_keys=["a", "b"]), version)
    assert [(one.key, one.node_id) for one in answer.coordinators] == [("a", 1), ("b", 1)]


def test_the_first_request_creates_the_offsets_topic(broker):
    assert OFFSETS_TOPIC not in broker.image.topics
    broker.call(FindCoordinatorRequest(key="group"), 3)
    topic = broker.image.topics[OFFSETS_TOPIC]
    assert topic.internal
    assert len(topic.partitions) == 50
    assert topic.overrides["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("group", 98629247),
        ("my-consumer-group", 1_513_705_513),
        ("polygenelubricants", 0),
        ("Gr\u00fc\u00dfe", 69_215_351),
        ("\U0001f30a", 1_773_134),
    ],
)
def test_F54_names_hash_as_in_java_without_the_sign(text, expected):
    assert java_hash(text) == expected


def test_a_partition_without_a_leader_gets_a_retriable_error(broker):
    other = broker.join_broker(9)
    broker.make_topic(OFFSETS_TOPIC, -1, assignments={0: [9]})
    assert broker.call(FindCoordinatorRequest(key="group"), 3).node_id == 9
    broker.store.expire(other)
    broker.run(broker.cluster.catch_up())
    answer = broker.call(FindCoordinatorRequest(key="group"), 3)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer.node_id == -1


def test_a_group_that_may_not_be_described_is_refused(broker):
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    answer = broker.call(FindCoordinatorRequest(coordinator_keys=["secret", "open"]), 4)
    codes = [ErrorCode(one.error_code) for one in answer.coordinators]
    assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.NONE]


@pytest.mark.parametrize("version", range(4, 7))
def test_T52_transactional_ids_have_a_coordinator_and_their_topic_is_created(broker, version):
    assert TRANSACTION_STATE_TOPIC not in broker.image.topics
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"])
    answer = broker.call(request, version)
    assert [(one.key, one.node_id) for one in answer.coordinators] == [("a", 1), ("b", 1)]
    topic = broker.image.topics[TRANSACTION_STATE_TOPIC]
    assert topic.internal
    assert len(topic.partitions) == 50
    assert topic.overrides["cleanup.policy"] == "compact"


@pytest.mark.parametrize("version", [1, 2])
def test_T52_older_clients_find_the_coordinator_of_a_transactional_id(broker, version):
    answer = broker.call(FindCoordinatorRequest(key_type=1, key="a"), version)
    assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, 1)


def test_a_transactional_id_that_may_not_be_described_is_refused(broker):
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    answer = broker.call(FindCoordinatorRequest(key_type=1, key="secret"), 2)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_an_unknown_key_type_is_an_invalid_request(broker):
    request = FindCoordinatorRequest(key_type=9, coordinator_keys=["a"])
    assert broker.call(request, 4).coordinators[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4, 7))
def test_no_key_has_no_answer(broker, version):
    assert broker.call(FindCoordinatorRequest(), version).coordinators == []


# --- hostile keys --------------------------------------------------------------------------------


def test_S11_a_request_with_very_many_keys_gives_other_tasks_turns(broker):
    broker.call(FindCoordinatorRequest(key="group"), 3)
    keys = [f"g{number}" for number in range(5 * KEYS_PER_SLICE)]
    request = FindCoordinatorRequest(coordinator_keys=keys)
    assert [one.key for one in broker.call(request, 4).coordinators] == keys
    assert broker.turns_of(request, 4) >= 4


@pytest.mark.parametrize(
    ("key_type", "code"),
    [(0, ErrorCode.INVALID_GROUP_ID), (1, ErrorCode.INVALID_REQUEST)],
)
def test_S38_a_key_that_is_too_long_is_refused_and_not_hashed(broker, key_type, code):
    java_hash.cache_clear()
    long = "x" * (COORDINATED_NAME_CHARS_MAX + 1)
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[long, long[1:]])
    refused, found = broker.call(request, 4).coordinators
    assert (refused.error_code, found.error_code) == (code, ErrorCode.NONE)
    assert "1024 characters" in refused.error_message
    assert java_hash.cache_info().misses == 1
