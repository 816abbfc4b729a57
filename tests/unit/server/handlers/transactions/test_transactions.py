"""Transactions of one broker, from the bytes of a request to the markers in the logs."""

from __future__ import annotations

import pytest

from tests.unit.server.transaction_requests import (
    ID,
    TV1_END,
    TV2_END,
    Producer,
    coordinate_transactions,
    fetched_offset,
    is_open,
    let_markers_be_written,
    state_of,
)
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation

NONE = ErrorCode.NONE


@pytest.fixture
def producer(broker):
    coordinate_transactions(broker)
    broker.make_topic("orders", 3)
    return Producer(broker)


def begin(producer, *partitions):
    assert producer.init() is NONE
    assert set(producer.add("orders", *partitions)) == {NONE}
    for index in partitions:
        producer.append("orders", index)


@pytest.mark.parametrize("version", range(5))
def test_T54_a_commit_over_three_partitions_ends_all_of_them(broker, producer, version):
    begin(producer, 0, 1, 2)
    assert all(is_open(broker, "orders", index) for index in range(3))
    assert producer.end(version=version) is NONE
    let_markers_be_written(broker)
    assert not any(is_open(broker, "orders", index) for index in range(3))
    assert state_of(broker).transaction_state == "CompleteCommit"
    assert len(broker.coordinators.sender) == 0


def test_T54_the_same_outcome_may_be_asked_for_again_and_the_other_one_not(broker, producer):
    begin(producer, 0)
    assert producer.end(is_commit=False) is NONE
    let_markers_be_written(broker)
    assert producer.end(is_commit=False) is NONE
    assert producer.end(is_commit=True) is ErrorCode.INVALID_TXN_STATE


def test_T55_offsets_of_the_next_transaction_wait_for_the_markers_of_the_last(broker, producer):
    """The client would come again after a tenth of a second only (KIP-890)."""
    begin(producer, 0)
    assert producer.end(version=TV2_END) is NONE
    assert len(broker.coordinators.sender) == 1, "its marker is written in the next turn"
    assert producer.commit_offset("orders", 7, version=5) is NONE


def test_T52_a_second_instance_fences_the_first_and_ends_what_it_left(broker, producer):
    begin(producer, 0)
    second = Producer(broker)
    assert second.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    let_markers_be_written(broker)
    assert not is_open(broker, "orders")
    assert second.init() is NONE
    assert second.name.producer_id == producer.name.producer_id
    assert second.name.epoch > producer.name.epoch
    assert producer.add("orders", 1) == [ErrorCode.PRODUCER_FENCED]
    assert producer.end() is ErrorCode.PRODUCER_FENCED


def test_versions_that_do_not_know_the_code_get_the_older_one_for_a_fenced_producer(
    broker, producer
):
    producer.init()
    Producer(broker).init()
    older = ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add("orders", 0, version=1) == [older]
    assert producer.end(version=1) is older
    assert producer.add_offsets(version=1) is older
    assert producer.init(version=3, resumed=producer.name) is older
    assert producer.init(version=4, resumed=producer.name) is ErrorCode.PRODUCER_FENCED


def test_T52_a_timeout_beyond_the_limit_is_refused(producer):
    assert producer.init(timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=900_000) is NONE


def test_T53_an_unknown_partition_is_not_added_and_the_others_are_not_attempted(producer):
    producer.init()
    assert producer.add("orders", 0, 9) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_T53_a_partition_that_was_not_added_is_told_to_brokers_that_ask(producer):
    producer.init()
    producer.add("orders", 0)
    assert producer.verify("orders", 0, 1) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]


def test_T53_every_end_of_the_second_generation_raises_the_epoch(broker, producer):
    producer.init()
    first = producer.name
    assert producer.verify("orders", 0, add=True) == [NONE]
    producer.append("orders")
    assert producer.end(version=TV2_END) is NONE
    assert producer.name == (first.producer_id, first.epoch + 1)
    let_markers_be_written(broker)
    assert not is_open(broker, "orders")
    assert producer.end(version=TV2_END) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(is_commit=False, version=TV2_END) is NONE
    assert producer.name == (first.producer_id, first.epoch + 2)


def test_I22_a_late_request_of_the_transaction_before_is_refused(broker, producer):
    producer.init()
    late = Producer(broker)
    late.name = producer.name
    producer.verify("orders", 0, add=True)
    producer.end(version=TV2_END)
    let_markers_be_written(broker)
    producer.verify("orders", 0, add=True)
    assert late.verify("orders", 0, add=True) == [ErrorCode.PRODUCER_FENCED]
    assert late.end(version=TV2_END, is_commit=False) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_no_one_was_given_is_refused(broker, producer):
    producer.init()
    stranger = Producer(broker)
    stranger.name = producer.name._replace(producer_id=999_999)
    refused = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.add("orders", 0) == [refused]
    assert stranger.end() is refused
    assert stranger.end(version=TV2_END) is refused
    assert stranger.add_offsets() is refused
    assert Producer(broker, "never-heard-of").end() is refused


def test_an_empty_transactional_id_is_an_invalid_request(broker, producer):
    nobody = Producer(broker, "")
    assert nobody.init() is ErrorCode.INVALID_REQUEST
    assert nobody.end(version=TV1_END) is ErrorCode.INVALID_REQUEST
    assert nobody.add("orders", 0) == [ErrorCode.INVALID_REQUEST]


def test_more_transactional_ids_than_allowed_are_refused_and_the_known_ones_work_on(broker):
    coordinate_transactions(broker)
    broker.coordinators.transactions._limit.ids_max = 2
    codes = [Producer(broker, f"id-{number}").init() for number in range(4)]
    assert codes == [NONE, NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    assert Producer(broker, "id-1").init() is NONE


def test_a_client_without_the_permission_is_refused(broker, producer):
    producer.init()
    broker.permissions.deny(Operation.WRITE, ID)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert producer.init() is refused
    assert producer.add("orders", 0) == [refused]
    assert producer.end() is refused
    assert producer.add_offsets() is refused


def test_a_store_that_gives_no_producer_ids_makes_the_client_ask_again(broker, producer):
    broker.store.suspend(broker.session)
    assert producer.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.store.resume(broker.session)
    assert producer.init() is NONE


# --- offsets -------------------------------------------------------------------------------------


def begin_offsets(producer):
    assert producer.init() is NONE
    assert producer.add_offsets() is NONE


def test_T55_offsets_show_after_the_commit(broker, producer):
    begin_offsets(producer)
    assert producer.commit_offset("orders", 7) is NONE
    assert fetched_offset(broker, "orders") == -1
    producer.end()
    let_markers_be_written(broker)
    assert fetched_offset(broker, "orders") == 7


def test_T55_offsets_of_an_aborted_transaction_never_show(broker, producer):
    begin_offsets(producer)
    producer.commit_offset("orders", 7)
    producer.end(is_commit=False)
    let_markers_be_written(broker)
    assert fetched_offset(broker, "orders") == -1


def test_T55_a_reader_that_wants_stable_offsets_waits_for_the_end(broker, producer):
    begin_offsets(producer)
    producer.commit_offset("orders", 7)
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert fetched_offset(broker, "orders", require_stable=True) is unstable
    assert fetched_offset(broker, "orders", require_stable=True, index=1) == -1
    producer.end()
    let_markers_be_written(broker)
    assert fetched_offset(broker, "orders", require_stable=True) == 7


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_T53_offsets_of_a_group_that_was_not_added_are_refused(producer, version, code):
    producer.init()
    producer.add("orders", 0)
    assert producer.commit_offset("orders", 7, version=version) is code


def test_T53_the_second_generation_adds_the_group_by_itself(broker, producer):
    producer.init()
    assert producer.commit_offset("orders", 7, version=5) is NONE
    assert producer.end(version=TV2_END) is NONE
    let_markers_be_written(broker)
    assert fetched_offset(broker, "orders") == 7


def test_T55_a_member_of_another_generation_cannot_commit(producer):
    begin_offsets(producer)
    code = producer.commit_offset("orders", 7, generation_id=4, member_id="m")
    assert code is ErrorCode.ILLEGAL_GENERATION


def test_offsets_that_come_after_the_end_are_refused(broker, producer):
    begin_offsets(producer)
    producer.end()
    let_markers_be_written(broker)
    assert producer.commit_offset("orders", 7) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(4))
def test_a_view_cannot_be_part_of_a_transaction(broker, producer, version):
    broker.make_topic("eu", partitions=-1, overrides={"tidemill.view.of": "orders"})
    producer.init()
    assert producer.add("eu", 0, version=version) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert state_of(broker).transaction_state == "Empty"
