"""A transactional producer that sends its requests to one broker, and what readers see."""

from __future__ import annotations

import asyncio

from tests.unit.server.one_broker import NOW_MS
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidemill.wire.generated.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.generated.end_txn import EndTxnRequest
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.records import Record, build_batch

ID = "pay"
GROUP = "workers"
TURNS = 20
NOBODY = ProducerName(-1, -1)
TV1_END = 4
TV2_END = 5


def coordinate_transactions(broker):
    """Create both internal topics."""
    broker.call(FindCoordinatorRequest(key=GROUP, key_type=0), 3)
    broker.call(FindCoordinatorRequest(key=ID, key_type=1), 3)


def let_markers_be_written(broker):
    async def turns():
        for _ in range(TURNS):
            await asyncio.sleep(0)

    broker.run(turns())


class Producer:
    """One instance of a transactional producer."""

    def __init__(self, broker, transactional_id=ID):
        self.broker = broker
        self.transactional_id = transactional_id
        self.name = NOBODY
        self._sequences = {}

    def init(self, version=5, timeout_ms=60_000, resumed=NOBODY):
        answer = self.broker.call(
            InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=resumed.producer_id,
                producer_epoch=resumed.epoch,
            ),
            version,
        )
        if answer.error_code == ErrorCode.NONE:
            self.name = ProducerName(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
        return ErrorCode(answer.error_code)

    def add(self, topic, *partitions, version=3):
        answer = self.broker.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.name.producer_id,
                v3_and_below_producer_epoch=self.name.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
                ],
            ),
            version,
        )
        (result,) = answer.results_by_topic_v3_and_below
        return [ErrorCode(one.partition_error_code) for one in result.results_by_partition]

    def verify(self, topic, *partitions, add=False):
        """As a broker does for a produce request."""
        answer = self.broker.call(
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=self.transactional_id,
                        producer_id=self.name.producer_id,
                        producer_epoch=self.name.epoch,
                        verify_only=not add,
                        topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
                    )
                ]
            ),
            5,
        )
        (result,) = answer.results_by_transaction
        (of_topic,) = result.topic_results
        return [ErrorCode(one.partition_error_code) for one in of_topic.results_by_partition]

    def append(self, topic, index=0):
        """Append a batch to the log, as Produce does after it has asked."""
        sequence = self._sequences.get((topic, index), 0)
        self._sequences[topic, index] = sequence + 1
        batch = build_batch(
            [Record(b"value", timestamp=NOW_MS)],
            producer_id=self.name.producer_id,
            producer_epoch=self.name.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = self.broker.partition(topic, index)
        return partition.as_leader.append(memoryview(batch), acks=-1, now_ms=NOW_MS)

    def add_offsets(self, group=GROUP, version=3):
        answer = self.broker.call(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.name.producer_id,
                producer_epoch=self.name.epoch,
                group_id=group,
            ),
            version,
        )
        return ErrorCode(answer.error_code)

    def commit_offset(self, topic, offset, *, version=3, index=0, **member):
        wanted = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        answer = self.broker.call(
            TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=GROUP,
                producer_id=self.name.producer_id,
                producer_epoch=self.name.epoch,
                topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[wanted])],
                **member,
            ),
            version,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, *, is_commit=True, version=TV1_END):
        answer = self.broker.call(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.name.producer_id,
                producer_epoch=self.name.epoch,
                committed=is_commit,
            ),
            version,
        )
        if version >= TV2_END and answer.error_code == ErrorCode.NONE:
            self.name = ProducerName(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
        return ErrorCode(answer.error_code)


def state_of(broker, transactional_id=ID):
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (state,) = broker.call(request, 0).transaction_states
    return state


def is_open(broker, topic, index=0):
    """Whether a reader of committed records is held up."""
    partition = broker.partition(topic, index)
    return partition.last_stable_offset() < partition.log.log_end_offset


def fetched_offset(broker, topic, *, require_stable=False, version=7, index=0):
    """The group's offset, or the code that it is refused with."""
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[index])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])],
        require_stable=require_stable,
    )
    (group,) = broker.call(request, 8).groups
    (entry,) = group.topics[0].partitions
    return ErrorCode(entry.error_code) if entry.error_code else entry.committed_offset


def offsets_partition(broker, group=GROUP):
    return TopicPartition("__consumer_offsets", broker.groups.partition_of(group))
