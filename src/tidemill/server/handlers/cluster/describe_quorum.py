"""DescribeQuorum (55), versions 0..2: who decides about the metadata.

v1 times of the last fetch; v2 error messages, directory ids and the nodes' addresses.

Kafka's controllers vote over a log, `__cluster_metadata`. Here the coordination store decides, and
the broker that it elected is the controller: it is the leader and the only voter, in the epoch of
its term, and the other brokers observe. Offsets are numbers of writes to the metadata, as far as
the broker that is asked knows: its own, and the same for the controller. Others are unknown.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)

__all__ = ["HANDLER"]

METADATA_TOPIC = "__cluster_metadata"
LISTENER = "PLAINTEXT"
FIRST_WITH_NODES = 2
UNKNOWN_OFFSET = -1


def handle(context: ClusterContext, request: DescribeQuorumRequest) -> Answer:
    context.require(Operation.DESCRIBE, cluster())
    if [len(wanted.partitions) for wanted in request.topics] != [1]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "there is one quorum: ask for one partition")
    ((name, asked),) = ((wanted.topic_name, wanted.partitions[0]) for wanted in request.topics)
    described = _partition(context, name, asked.partition_index)
    response = DescribeQuorumResponse(
        error_message=None,
        topics=[ResponseTopicData(topic_name=name, partitions=[described])],
    )
    if context.version >= FIRST_WITH_NODES:
        brokers = context.image.brokers
        response.nodes = [_node(context, brokers[one]) for one in sorted(brokers)]
    return response


def _partition(context: ClusterContext, name: str, index: int) -> ResponsePartitionData:
    image = context.image
    leader = image.controller_id
    if (name, index) != (METADATA_TOPIC, 0):
        return _refusal(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if leader < 0:
        return _refusal(index, ErrorCode.LEADER_NOT_AVAILABLE)
    cluster = context.services.cluster
    known = {cluster.broker_id: cluster.metadata_seq, leader: cluster.metadata_seq}
    states = {
        one: ReplicaState(replica_id=one, log_end_offset=known.get(one, UNKNOWN_OFFSET))
        for one in sorted({*image.brokers, leader})
    }
    return ResponsePartitionData(
        partition_index=index,
        error_message=None,
        leader_id=leader,
        leader_epoch=image.controller_epoch,
        high_watermark=cluster.metadata_seq,
        current_voters=[states[leader]],
        observers=[state for one, state in states.items() if one != leader],
    )


def _refusal(index: int, code: ErrorCode) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=index, error_code=int(code), error_message=None, leader_id=-1
    )


def _node(context: ClusterContext, broker: BrokerImage) -> Node:
    endpoint = context.endpoint_of(broker)
    listener = Listener(name=LISTENER, host=endpoint.host, port=endpoint.port)
    return Node(node_id=broker.broker_id, listeners=[listener])


HANDLER = Handler(
    api_key=ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    handle=handle,
    refuse=refuse_with_error_code(DescribeQuorumResponse),
)
