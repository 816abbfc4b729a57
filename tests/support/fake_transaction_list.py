"""Transactions for the brokers in memory: `FakeTransactionList(cluster)` adds their APIs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.fake_cluster import HOST, FakeBroker, FakeCluster
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated import (
    describe_producers,
    describe_transactions,
    find_coordinator,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)
from tidemill.wire.message import Message


@dataclass
class FakeTransaction:
    """What a coordinator knows of one transactional id."""

    producer_id: int
    state: str = "Ongoing"
    coordinator: int = 1
    partitions: list[TopicPartition] = field(default_factory=list)


class FakeTransactionList:
    """All transactional ids of a cluster, and what the logs of its partitions have open."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.known: dict[str, FakeTransaction] = {}
        self.open: list[dict[TopicPartition, list[int]]] = [{}]
        """Producers with an open transaction, by partition; the last answer is repeated."""
        self.refusals: list[ErrorCode] = []
        """The error codes that answer the next requests of producers."""
        self.fenced: list[str] = []
        self.aborted: list[tuple[int, str, int]] = []
        """Producer, topic and partition of markers that were asked for."""
        for broker in cluster.brokers.values():
            broker.handlers |= _Handlers(self, broker).table()
        self.brokers = cluster.brokers

    def add(self, name: str, producer_id: int, **fields: object) -> FakeTransaction:
        self.known[name] = FakeTransaction(producer_id, **fields)  # type: ignore[arg-type]
        return self.known[name]


class _Handlers:
    def __init__(self, transactions: FakeTransactionList, broker: FakeBroker) -> None:
        self._all = transactions
        self._broker = broker

    def table(self):
        return {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.LIST_TRANSACTIONS: self.list_transactions,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe_transactions,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.WRITE_TXN_MARKERS: self.write_txn_markers,
        }

    def find_coordinator(
        self, request: find_coordinator.FindCoordinatorRequest, version: int
    ) -> Message:
        assert request.key_type == 1
        known = self._all.known.get(request.coordinator_keys[0])
        broker = self._all.brokers[1 if known is None else known.coordinator]
        found = find_coordinator.Coordinator(
            key=request.coordinator_keys[0], node_id=broker.node_id, host=HOST, port=broker.port
        )
        return find_coordinator.FindCoordinatorResponse(coordinators=[found])

    def list_transactions(
        self, request: list_transactions.ListTransactionsRequest, version: int
    ) -> Message:
        return list_transactions.ListTransactionsResponse(
            transaction_states=[
                list_transactions.TransactionState(
                    transactional_id=name,
                    producer_id=known.producer_id,
                    transaction_state=known.state,
                )
                for name, known in self._all.known.items()
                if known.coordinator == self._broker.node_id
                and (not request.state_filters or known.state in request.state_filters)
            ]
        )

    def describe_transactions(
        self, request: describe_transactions.DescribeTransactionsRequest, version: int
    ) -> Message:
        (name,) = request.transactional_ids
        known = self._all.known.get(name)
        state = describe_transactions.TransactionState(transactional_id=name)
        if known is None:
            state.error_code = int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        else:
            state.transaction_state = known.state
            state.producer_id = known.producer_id
            state.transaction_timeout_ms = 60_000
            state.transaction_start_time_ms = 1_700_000_000_000
            state.topics = [
                describe_transactions.TopicData(topic=topic, partitions=[index])
                for topic, index in known.partitions
            ]
        return describe_transactions.DescribeTransactionsResponse(transaction_states=[state])

    def describe_producers(
        self, request: describe_producers.DescribeProducersRequest, version: int
    ) -> Message:
        answers = self._all.open
        opened = answers.pop(0) if len(answers) > 1 else answers[0]
        return describe_producers.DescribeProducersResponse(
            topics=[
                describe_producers.TopicResponse(
                    name=topic.name,
                    partitions=[
                        describe_producers.PartitionResponse(
                            partition_index=index,
                            active_producers=[
                                describe_producers.ProducerState(
                                    producer_id=producer_id, current_txn_start_offset=5
                                )
                                for producer_id in opened.get(TopicPartition(topic.name, index), [])
                            ],
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def init_producer_id(
        self, request: init_producer_id.InitProducerIdRequest, version: int
    ) -> Message:
        name = request.transactional_id or ""
        if self._all.refusals:
            return init_producer_id.InitProducerIdResponse(error_code=self._all.refusals.pop(0))
        self._all.fenced.append(name)
        self._all.known[name].state = "Empty"
        return init_producer_id.InitProducerIdResponse(producer_id=1)

    def write_txn_markers(
        self, request: write_txn_markers.WriteTxnMarkersRequest, version: int
    ) -> Message:
        (marker,) = request.markers
        (topic,) = marker.topics
        (index,) = topic.partition_indexes
        assert not marker.transaction_result
        code = self._all.refusals.pop(0) if self._all.refusals else ErrorCode.NONE
        if code is ErrorCode.NONE:
            self._all.aborted.append((marker.producer_id, topic.name, index))
        result = write_txn_markers.WritableTxnMarkerPartitionResult(
            partition_index=index, error_code=int(code)
        )
        answered = write_txn_markers.WritableTxnMarkerTopicResult(
            name=topic.name, partitions=[result]
        )
        return write_txn_markers.WriteTxnMarkersResponse(
            markers=[
                write_txn_markers.WritableTxnMarkerResult(
                    producer_id=marker.producer_id, topics=[answered]
                )
            ]
        )
