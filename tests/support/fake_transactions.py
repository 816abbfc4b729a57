"""A transaction coordinator in memory, for a `FakeCluster`: epochs, fencing, offsets of a group.

It knows one transactional id. The markers of a transaction are written at once.
"""

from __future__ import annotations

from tests.support.fake_cluster import FakeCluster
from tidemill.core.errors import ErrorCode
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import read_header
from tidemill.wire.generated import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    offset_fetch,
    txn_offset_commit,
)
from tidemill.wire.message import Message

PRODUCER_ID = 77


class FakeTransactions:
    """`coordinator` is the broker that answers; the others say NOT_COORDINATOR."""

    def __init__(self, cluster: FakeCluster, coordinator: int = 1) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.epoch = -1
        self.partitions: set[tuple[str, int]] = set()
        self.pending: dict[tuple[str, int], tuple[int, str]] = {}
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        """Committed offsets of the one group, with their texts."""
        self.ends: list[tuple[int, bool]] = []
        """Epoch and decision of each transaction that was ended."""
        for node, broker in cluster.brokers.items():
            broker.handlers |= {
                ApiKey.FIND_COORDINATOR: self.find,
                ApiKey.INIT_PRODUCER_ID: self._checked(node, self.init),
                ApiKey.ADD_PARTITIONS_TO_TXN: self._checked(node, self.add_partitions),
                ApiKey.ADD_OFFSETS_TO_TXN: self._checked(node, self.add_offsets),
                ApiKey.TXN_OFFSET_COMMIT: self._checked(node, self.commit_offsets),
                ApiKey.END_TXN: self._checked(node, self.end),
                ApiKey.OFFSET_FETCH: self._checked(node, self.fetch_offsets),
                ApiKey.DESCRIBE_PRODUCERS: self.describe,
                ApiKey.DESCRIBE_TRANSACTIONS: self._checked(node, self.describe_transactions),
            }

    def _checked(self, node: int, handler):
        def answer(request, version: int) -> Message:
            code = ErrorCode.NONE if node == self.coordinator else ErrorCode.NOT_COORDINATOR
            return handler(request, code)

        return answer

    def _fence(self, epoch: int, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.NONE and epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        return code

    def find(self, request, version: int) -> Message:
        found = find_coordinator.Coordinator(
            key=request.coordinator_keys[0], node_id=self.coordinator, host="broker.test", port=9092
        )
        return find_coordinator.FindCoordinatorResponse(coordinators=[found])

    def init(self, request, code: ErrorCode) -> Message:
        if code is ErrorCode.NONE:
            self.epoch += 1
            self._forget()
        return init_producer_id.InitProducerIdResponse(
            error_code=code, producer_id=PRODUCER_ID, producer_epoch=self.epoch
        )

    def add_partitions(self, request, code: ErrorCode) -> Message:
        code = self._fence(request.v3_and_below_producer_epoch, code)
        topics = []
        for topic in request.v3_and_below_topics:
            results = []
            for index in topic.partitions:
                if code is ErrorCode.NONE:
                    self.partitions.add((topic.name, index))
                results.append(
                    add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code
                    )
                )
            topics.append(
                add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                    name=topic.name, results_by_partition=results
                )
            )
        return add_partitions_to_txn.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=topics
        )

    def add_offsets(self, request, code: ErrorCode) -> Message:
        return add_offsets_to_txn.AddOffsetsToTxnResponse(
            error_code=self._fence(request.producer_epoch, code)
        )

    def commit_offsets(self, request, code: ErrorCode) -> Message:
        code = self._fence(request.producer_epoch, code)
        response = txn_offset_commit.TxnOffsetCommitResponse()
        for topic in request.topics:
            answer = txn_offset_commit.TxnOffsetCommitResponseTopic(name=topic.name)
            for wanted in topic.partitions:
                if code is ErrorCode.NONE:
                    place = (topic.name, wanted.partition_index)
                    self.pending[place] = (wanted.committed_offset, wanted.committed_metadata)
                answer.partitions.append(
                    txn_offset_commit.TxnOffsetCommitResponsePartition(
                        partition_index=wanted.partition_index, error_code=code
                    )
                )
            response.topics.append(answer)
        return response

    def end(self, request, code: ErrorCode) -> Message:
        code = self._fence(request.producer_epoch, code)
        if code is ErrorCode.NONE and (request.producer_epoch, request.committed) not in self.ends:
            if request.committed:
                self.offsets |= self.pending
            self.ends.append((request.producer_epoch, request.committed))
            self._forget()
        return end_txn.EndTxnResponse(error_code=code)

    def fetch_offsets(self, request, code: ErrorCode) -> Message:
        group = offset_fetch.OffsetFetchResponseGroup(
            group_id=request.groups[0].group_id, error_code=code
        )
        for (name, index), (offset, metadata) in self.offsets.items():
            partition = offset_fetch.OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=offset, metadata=metadata
            )
            group.topics.append(
                offset_fetch.OffsetFetchResponseTopics(name=name, partitions=[partition])
            )
        return offset_fetch.OffsetFetchResponse(groups=[group])

    def describe_transactions(self, request, code: ErrorCode) -> Message:
        topics: dict[str, list[int]] = {}
        for name, index in sorted(self.partitions):
            topics.setdefault(name, []).append(index)
        state = describe_transactions.TransactionState(
            error_code=code,
            transactional_id=request.transactional_ids[0],
            transaction_state="Ongoing" if topics else "Empty",
            producer_id=PRODUCER_ID,
            producer_epoch=self.epoch,
            topics=[
                describe_transactions.TopicData(topic=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        return describe_transactions.DescribeTransactionsResponse(transaction_states=[state])

    def describe(self, request, version: int) -> Message:
        response = describe_producers.DescribeProducersResponse()
        for topic in request.topics:
            answer = describe_producers.TopicResponse(name=topic.name)
            for index in topic.partition_indexes:
                stored = self.cluster.partition(topic.name, index)
                headers = [read_header(batch) for batch in stored.batches]
                last = {header.producer_id: header for header in headers}
                states = [
                    describe_producers.ProducerState(
                        producer_id=header.producer_id,
                        producer_epoch=header.producer_epoch,
                        last_sequence=header.base_sequence + header.record_count - 1,
                    )
                    for header in last.values()
                ]
                answer.partitions.append(
                    describe_producers.PartitionResponse(
                        partition_index=index, active_producers=states
                    )
                )
            response.topics.append(answer)
        return response

    def _forget(self) -> None:
        self.partitions.clear()
        self.pending.clear()
