"""Answers that name brokers, as a client sees them that reaches one address only. Pure.

This broker leads and coordinates everything, and nobody else is there. Leader epochs stay as they
are: clients send them back, and owners compare them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.core.config.endpoint import Endpoint
from tidemill.wire.generated.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from tidemill.wire.generated.describe_topic_partitions import DescribeTopicPartitionsResponse
from tidemill.wire.generated.fetch import FetchResponse
from tidemill.wire.generated.find_coordinator import Coordinator, FindCoordinatorResponse
from tidemill.wire.generated.metadata import MetadataResponse, MetadataResponseBroker
from tidemill.wire.generated.produce import ProduceResponse
from tidemill.wire.message import Message

__all__ = ["with_single_address"]


def with_single_address(answer: Message, own_id: int, address: Endpoint) -> Message:
    """The answer, changed in place: broker `own_id` at `address` is the whole cluster."""
    host, port = address
    match answer:
        case MetadataResponse():
            answer.brokers = [MetadataResponseBroker(node_id=own_id, host=host, port=port)]
            answer.controller_id = own_id
            _lead_all(answer.topics, own_id)
        case DescribeClusterResponse():
            answer.brokers = [DescribeClusterBroker(broker_id=own_id, host=host, port=port)]
            answer.controller_id = own_id
        case DescribeTopicPartitionsResponse():
            _lead_all(answer.topics, own_id)
        case FindCoordinatorResponse():
            _coordinate_all(answer, own_id, address)
        case FetchResponse():
            answer.node_endpoints = []
            _drop_hints(topic.partitions for topic in answer.responses)
        case ProduceResponse():
            answer.node_endpoints = []
            _drop_hints(topic.partition_responses for topic in answer.responses)
        case _:
            pass
    return answer


def _lead_all(topics: Any, own_id: int) -> None:  # noqa: ANN401 - two APIs have the same fields
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                partition.leader_id = own_id
            partition.replica_nodes = partition.isr_nodes = [own_id]
            partition.offline_replicas = []


def _coordinate_all(answer: FindCoordinatorResponse, own_id: int, address: Endpoint) -> None:
    # Versions that name several keys have no place for the fields of a single one.
    single = [] if answer.coordinators else [answer]
    named: list[FindCoordinatorResponse | Coordinator] = [*single, *answer.coordinators]
    for found in named:
        if not found.error_code and found.node_id >= 0:
            found.node_id, found.host, found.port = own_id, address.host, address.port


def _drop_hints(partitions: Iterable[Any]) -> None:
    """Leader hints name brokers that the client cannot reach."""
    for some in partitions:
        for one in some:
            one.current_leader = None
