"""AlterPartition (56), version 3: a leader proposes in-sync sets; served by the controller.

Each partition is answered by itself: with its next state, or with why nothing has changed. After
REQUEST_TIMED_OUT each of them may have been made.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import TopicId
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)

__all__ = ["HANDLER"]


def handle(context: ClusterContext, request: AlterPartitionRequest) -> Answer:
    context.require(Operation.CLUSTER_ACTION, cluster())
    return _alter(context, request)


async def _alter(context: ClusterContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    proposals = list(_proposals(request))
    try:
        answers = await context.services.cluster.alter_isr(
            request.broker_id, request.broker_epoch, proposals
        )
    except KafkaError as error:
        return AlterPartitionResponse(error_code=int(error.code))
    except StoreUnavailable:
        return AlterPartitionResponse(error_code=int(ErrorCode.REQUEST_TIMED_OUT))
    return _response(proposals, answers)


def _proposals(request: AlterPartitionRequest) -> list[IsrProposal]:
    return [
        IsrProposal(
            topic_id=TopicId(topic.topic_id),
            partition=one.partition_index,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            isr=tuple(
                (member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs
            ),
        )
        for topic in request.topics
        for one in topic.partitions
    ]


def _response(proposals: list[IsrProposal], answers: list[IsrAnswer]) -> AlterPartitionResponse:
    topics: dict[TopicId, ResponseTopicData] = {}
    for proposal, answer in zip(proposals, answers, strict=True):
        entry = ResponsePartitionData(
            partition_index=proposal.partition, error_code=int(answer.code)
        )
        if answer.state is not None:
            entry.leader_id = answer.state.leader
            entry.leader_epoch = answer.state.leader_epoch
            entry.isr = list(answer.state.isr)
            entry.partition_epoch = answer.state.partition_epoch
        topic = topics.setdefault(proposal.topic_id, ResponseTopicData(topic_id=proposal.topic_id))
        topic.partitions.append(entry)
    return AlterPartitionResponse(topics=list(topics.values()))


HANDLER = Handler(
    api_key=ApiKey.ALTER_PARTITION,
    versions=(3, 3),
    handle=handle,
    refuse=refuse_with_error_code(AlterPartitionResponse),
    is_internal=True,
)
