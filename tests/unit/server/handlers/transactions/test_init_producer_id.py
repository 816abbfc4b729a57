from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.metadata.producer_ids import BLOCK_SIZE
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.message import Message

VERSIONS = range(6)
EPOCH_LAST = 2**15 - 2


def ask(broker, version=5, **identity):
    return broker.call(InitProducerIdRequest(transactional_id=None, **identity), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_T30_every_producer_gets_an_id_of_its_own_in_epoch_0(broker, version):
    answers = [ask(broker, version) for _ in range(3)]
    assert {(one.error_code, one.producer_epoch) for one in answers} == {(ErrorCode.NONE, 0)}
    assert len({one.producer_id for one in answers}) == 3


def test_T30_ids_do_not_repeat_over_a_used_up_block_and_another_broker(broker):
    ids = [ask(broker).producer_id for _ in range(BLOCK_SIZE + 1)]
    others = broker.run(broker.cluster.reserve_producer_ids(BLOCK_SIZE))
    assert len({*ids, *others}) == len(ids) + len(others)


def test_T30_only_a_used_up_block_needs_the_store(broker):
    ask(broker)
    answer, _ = broker.start(InitProducerIdRequest(transactional_id=None), 5)
    assert isinstance(answer, Message)


@pytest.mark.parametrize("version", range(3, 6))
def test_T30_a_producer_goes_on_in_the_next_epoch(broker, version):
    answer = ask(broker, version, producer_id=77, producer_epoch=4)
    assert (answer.producer_id, answer.producer_epoch) == (77, 5)


def test_T30_asking_again_after_a_lost_answer_gives_the_same(broker):
    answers = [ask(broker, producer_id=77, producer_epoch=4) for _ in range(2)]
    assert answers[0] == answers[1]


def test_T30_a_producer_out_of_epochs_gets_a_fresh_id(broker):
    answer = ask(broker, producer_id=77, producer_epoch=EPOCH_LAST)
    assert answer.producer_id != 77
    assert answer.producer_epoch == 0


@pytest.mark.parametrize("identity", [(77, -1), (-1, 4), (-2, -2)])
def test_an_id_without_its_epoch_is_refused(broker, identity):
    answer = ask(broker, producer_id=identity[0], producer_epoch=identity[1])
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_T52_each_instance_of_a_transactional_id_gets_the_next_epoch(broker, version):
    broker.call(FindCoordinatorRequest(key_type=1, key="billing"), 3)
    request = InitProducerIdRequest(transactional_id="billing", transaction_timeout_ms=1000)
    answers = [broker.call(request, version) for _ in range(3)]
    assert [one.producer_epoch for one in answers] == [0, 1, 2]
    assert len({one.producer_id for one in answers}) == 1


def test_a_transactional_id_without_a_coordinator_is_not_answered_here(broker):
    request = InitProducerIdRequest(transactional_id="billing", transaction_timeout_ms=1000)
    assert broker.call(request, 4).error_code == ErrorCode.NOT_COORDINATOR


def test_a_client_that_may_not_write_idempotently_gets_no_id(broker):
    broker.permissions.deny(Operation.IDEMPOTENT_WRITE)
    assert ask(broker).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_store_that_does_not_answer_makes_the_client_ask_again(broker):
    broker.store.suspend(broker.session)
    assert ask(broker).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.store.resume(broker.session)
    assert ask(broker).error_code == ErrorCode.NONE
