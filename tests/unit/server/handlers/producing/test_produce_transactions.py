"""Produce: a batch that would open a transaction is verified with the coordinator (KIP-890)."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.partition_verifier import MARKER_PAUSES_S
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

FIRST_WITH_ABORTABLE = 11
TOPIC_BY_NAME_MAX = 12
PRODUCER = 5
QUESTIONS_MAX = 10


class StubVerifier:
    """Says what a test wants, and does something meanwhile."""

    def __init__(self):
        self.codes = {}
        self.asked = []
        self.meanwhile = lambda: None

    async def verify(self, transactional_id, producer_id, producer_epoch, partitions, *, add):
        names = [(name.topic, name.partition) for name in partitions]
        self.asked.append((transactional_id, producer_id, producer_epoch, names, add))
        assert len(self.asked) <= QUESTIONS_MAX, "it asks for ever"
        self.meanwhile()
        return {name: self.codes.get(name.partition, ErrorCode.NONE) for name in partitions}


@pytest.fixture
def orders(broker):
    broker.make_topic("orders", 3)
    broker.services.verifier = StubVerifier()
    return broker


def batch(sequence=0, *, epoch=0, count=1, codec=0, producer=PRODUCER, transactional=True):
    return build_batch(
        [Record(b"value" * 10, timestamp=NOW_MS) for _ in range(count)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        codec=codec,
    )


def produce(broker, *batches, version=12, transactional_id="tx", acks=1):
    """One batch for each partition of `orders`; the answers."""
    topic = TopicProduceData(
        name="orders",
        partition_data=[
            PartitionProduceData(index=index, records=one) for index, one in enumerate(batches)
        ],
    )
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[topic]
    )
    return broker.call(request, version).responses[0].partition_responses


def codes(broker, *batches, **options):
    return [one.error_code for one in produce(broker, *batches, **options)]


def end(broker, *, epoch=0, commit=True):
    broker.partition("orders").as_leader.append_marker(
        PRODUCER, epoch, is_commit=commit, coordinator_epoch=0, now_ms=NOW_MS
    )


@pytest.mark.parametrize(("version", "add"), [(3, False), (11, False), (12, True)])
def test_T53_the_first_batch_is_verified_and_the_next_is_not(orders, version, add):
    assert codes(orders, batch(), version=version) == [ErrorCode.NONE]
    assert codes(orders, batch(1), version=version) == [ErrorCode.NONE]
    assert orders.services.verifier.asked == [("tx", PRODUCER, 0, [("orders", 0)], add)]
    assert orders.partition("orders").last_stable_offset() == 0


def test_all_partitions_of_a_request_are_verified_with_one_question(orders):
    found = codes(orders, batch(), batch(), batch())
    assert found == [ErrorCode.NONE] * 3
    (asked,) = orders.services.verifier.asked
    assert asked[3] == [("orders", 0), ("orders", 1), ("orders", 2)]


def test_only_what_the_coordinator_does_not_know_is_refused(orders):
    orders.services.verifier.codes[1] = ErrorCode.TRANSACTION_ABORTABLE
    found = codes(orders, batch(), batch(), batch(transactional=False, producer=6))
    assert found == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE]
    assert orders.partition("orders", 1).log.log_end_offset == 0


@pytest.mark.parametrize("version", range(3, TOPIC_BY_NAME_MAX + 1))
@pytest.mark.parametrize("said", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE])
def test_T53_an_unadded_partition_is_told_in_the_words_of_the_version(orders, version, said):
    orders.services.verifier.codes[0] = said
    is_new = version >= FIRST_WITH_ABORTABLE
    wanted = ErrorCode.TRANSACTION_ABORTABLE if is_new else ErrorCode.INVALID_TXN_STATE
    assert codes(orders, batch(), version=version) == [wanted]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_producers_are_told_codes_that_they_know(orders, said, told):
    orders.services.verifier.codes[0] = said
    assert codes(orders, batch()) == [told]
    assert orders.partition("orders").log.log_end_offset == 0


def test_I1_a_batch_does_not_overtake_one_whose_transaction_could_not_be_verified(orders):
    orders.services.verifier.codes[0] = ErrorCode.NOT_COORDINATOR
    assert codes(orders, batch()) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    orders.services.verifier.codes.clear()
    assert codes(orders, batch(1)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert codes(orders, batch()) == [ErrorCode.NONE]
    assert codes(orders, batch(1)) == [ErrorCode.NONE]


def test_I22_a_marker_that_comes_during_the_question_ends_the_transaction_for_good(orders):
    produce(orders, batch())
    end(orders)
    orders.services.verifier.meanwhile = lambda: end(orders)  # repeats it: nothing is appended
    assert codes(orders, batch(1)) == [ErrorCode.TRANSACTION_ABORTABLE]
    partition = orders.partition("orders")
    assert partition.last_stable_offset() == partition.log.log_end_offset == 2


def test_I19_an_epoch_that_is_fenced_during_the_question_is_refused(orders):
    orders.services.verifier.meanwhile = lambda: end(orders, epoch=1)
    assert codes(orders, batch()) == [ErrorCode.TRANSACTION_ABORTABLE]
    orders.services.verifier.meanwhile = lambda: None
    assert codes(orders, batch()) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_a_leader_epoch_that_changes_during_the_question_refuses_the_batch(orders):
    partition = orders.partition("orders")

    def elect_again():
        partition.leader_epoch += 1

    orders.services.verifier.meanwhile = elect_again
    assert codes(orders, batch()) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_the_broker_asks_again_while_the_markers_of_the_last_transaction_are_written(orders):
    """Each marker makes the verdict from before worthless, so every question begins anew."""
    produce(orders, batch())
    verifier = orders.services.verifier
    verifier.asked.clear()
    verifier.codes[0] = ErrorCode.CONCURRENT_TRANSACTIONS

    def complete():
        if len(verifier.asked) == 2:
            end(orders, epoch=1)
        elif len(verifier.asked) == 3:
            verifier.codes.clear()

    verifier.meanwhile = complete
    assert codes(orders, batch(epoch=1)) == [ErrorCode.NONE]
    assert len(verifier.asked) == 3
    assert orders.services.telemetry.verifications_refused == 2


def test_the_broker_does_not_ask_for_ever(orders):
    orders.services.verifier.codes[0] = ErrorCode.CONCURRENT_TRANSACTIONS
    assert codes(orders, batch()) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert len(orders.services.verifier.asked) == 1 + len(MARKER_PAUSES_S)


def test_a_broker_that_does_not_lead_refuses_and_asks_nobody(orders):
    """Found by the simulation: it asked about no partition at all, again and again."""
    orders.partition("orders").offline = True
    assert codes(orders, batch()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert orders.services.verifier.asked == []


def test_a_broker_that_loses_its_partition_during_the_question_refuses(orders):
    def lose():
        orders.partition("orders").offline = True

    orders.services.verifier.meanwhile = lose
    assert codes(orders, batch()) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_broker_that_loses_its_partition_between_questions_asks_no_more(orders):
    """With nothing to add, the question would begin a transaction without a partition."""
    verifier = orders.services.verifier
    verifier.codes[0] = ErrorCode.CONCURRENT_TRANSACTIONS

    def lose():
        orders.partition("orders").offline = True

    verifier.meanwhile = lose
    assert codes(orders, batch()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert len(verifier.asked) == 1


def test_a_question_that_fails_is_a_refusal(orders):
    def fail():
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    orders.services.verifier.meanwhile = fail
    assert codes(orders, batch()) == [ErrorCode.NOT_ENOUGH_REPLICAS]


def test_a_transactional_batch_needs_a_transactional_id_and_the_right_to_it(orders):
    assert codes(orders, batch(), transactional_id=None) == [ErrorCode.INVALID_REQUEST]
    orders.permissions.deny(Operation.WRITE, "tx")
    assert codes(orders, batch()) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert orders.services.verifier.asked == []


@pytest.mark.parametrize("count", [1, 15_000])
@pytest.mark.parametrize("codec", range(5))
def test_batches_of_all_codecs_and_sizes_are_verified_once(orders, codec, count):
    assert codes(orders, batch(codec=codec, count=count)) == [ErrorCode.NONE]
    assert len(orders.services.verifier.asked) == 1
    assert orders.partition("orders").log.log_end_offset == count


def test_a_batch_that_is_no_batch_is_refused_before_anybody_is_asked(orders):
    assert codes(orders, batch()[:40]) == [ErrorCode.CORRUPT_MESSAGE]
    assert orders.services.verifier.asked == []


def test_nobody_adds_to_an_open_transaction_without_its_id(orders):
    assert codes(orders, batch()) == [ErrorCode.NONE]
    assert codes(orders, batch(1), transactional_id=None) == [ErrorCode.INVALID_REQUEST]
    assert orders.partition("orders").log.log_end_offset == 1


def test_who_may_not_use_the_id_adds_nothing_to_an_open_transaction(orders):
    assert codes(orders, batch()) == [ErrorCode.NONE]
    orders.permissions.deny(Operation.WRITE, "tx")
    refused = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert codes(orders, batch(1), batch()) == refused
    assert orders.partition("orders").log.log_end_offset == 1
