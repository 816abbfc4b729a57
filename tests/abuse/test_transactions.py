"""Transactions under attack: strangers, long names, long lists (S11, S38, S42)."""

from __future__ import annotations

from itertools import count

import pytest

from tests.abuse.requests import PRODUCE, batch, code_of, produce
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tidemill.wire.generated.end_txn import EndTxnRequest
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

INIT, ADD, COMMIT_OFFSETS, END, MARK, FIND = 4, 3, 3, 3, 1, 4
TRANSACTION = 1
TOPICS = 10_000
LONG_NAMES = 200
NAMES = count()


@pytest.fixture(autouse=True)
def _coordinated(one_victim):
    """The first transactional id creates fifty logs, which must not look like a leak."""
    with one_victim.connect() as stranger:
        stranger.call(FindCoordinatorRequest(key="any", key_type=TRANSACTION), 3)


class Producer:
    """A producer with an open transaction in the canary's topic."""

    def __init__(self, stranger) -> None:
        self.stranger = stranger
        self.name = f"tx-{next(NAMES)}"
        made = stranger.call(
            InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000), INIT
        )
        assert made.error_code == ErrorCode.NONE
        self.identity = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        topics = [AddPartitionsToTxnTopic(name="canary", partitions=[0])]
        added = stranger.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=made.producer_id,
                v3_and_below_producer_epoch=made.producer_epoch,
                v3_and_below_topics=topics,
            ),
            ADD,
        )
        (result,) = added.results_by_topic_v3_and_below[0].results_by_partition
        assert result.partition_error_code == ErrorCode.NONE

    def produce(self, sequence=0, *, name=None):
        request = produce("canary", batch(b"v", base_sequence=sequence, **self._marks()), acks=-1)
        request.transactional_id = name
        return ErrorCode(code_of(self.stranger.call(request, PRODUCE)))

    def _marks(self):
        return {**self.identity, "transactional": True}

    def abort(self):
        request = EndTxnRequest(transactional_id=self.name, committed=False, **self.identity)
        assert self.stranger.call(request, END).error_code == ErrorCode.NONE


def mark(producer, *, commit=False, times=1, epoch_ahead=0):
    topics = [WritableTxnMarkerTopic(name="canary", partition_indexes=[0])]
    marker = WritableTxnMarker(
        producer_id=producer.identity["producer_id"],
        producer_epoch=producer.identity["producer_epoch"] + epoch_ahead,
        transaction_result=commit,
        coordinator_epoch=2**31 - 1,
        topics=topics,
    )
    return WriteTxnMarkersRequest(markers=[marker] * times)


def marked(stranger, request):
    answer = stranger.call(request, MARK)
    return {one.error_code for each in answer.markers for one in each.topics[0].partitions}


def test_S42_markers_of_strangers_end_no_transaction(victim):
    with victim.connect() as stranger:
        producer = Producer(stranger)
        assert producer.produce(name=producer.name) is ErrorCode.NONE
        forged = mark(producer, commit=True)
        assert marked(stranger, forged) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert marked(stranger, mark(producer, times=2)) == {ErrorCode.INVALID_REQUEST}
        for request in (mark(producer), mark(producer, epoch_ahead=1)):
            assert marked(stranger, request) == {ErrorCode.INVALID_TXN_STATE}
        assert producer.produce(1, name=producer.name) is ErrorCode.NONE
        producer.abort()


def test_S42_nobody_adds_to_a_transaction_without_its_id(victim):
    with victim.connect() as stranger:
        producer = Producer(stranger)
        assert producer.produce(name=producer.name) is ErrorCode.NONE
        end = victim.end_offset("canary")
        assert producer.produce(1) is ErrorCode.INVALID_REQUEST
        assert victim.end_offset("canary") == end
        producer.abort()


def test_S11_offsets_of_very_many_topics_hold_up_nobody(victim):
    topics = [TxnOffsetCommitRequestTopic(name=f"t{number}") for number in range(TOPICS)]
    with victim.connect() as stranger:
        producer = Producer(stranger)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.name, group_id="g", topics=topics, **producer.identity
        )
        stranger.send(stranger.frame(request, COMMIT_OFFSETS))
        victim.check_canary()
        stranger.read_frame()
        producer.abort()


def test_S38_very_many_long_names_hold_up_nobody_and_are_not_kept(victim):
    keys = [f"{number}-" + "x" * 32_000 for number in range(LONG_NAMES)]
    with victim.connect() as stranger:
        for key_type in (0, TRANSACTION):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
            stranger.send(stranger.frame(request, FIND))
            victim.check_canary()
            stranger.read_frame()
        refused = stranger.call(
            InitProducerIdRequest(transactional_id=keys[0], transaction_timeout_ms=60_000), INIT
        )
        assert refused.error_code == ErrorCode.INVALID_REQUEST
