"""Sends a leader's proposals to the controller, wherever it is, as AlterPartition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tidemill.client.network.controller_link import ControllerLink
from tidemill.client.network.errors import ClientError, check, error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.wire.generated.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)

__all__ = ["IsrSender"]

VERSION = 3
TIMEOUT_S = 3.0
"""After that a proposal is in doubt, and is sent again to whoever is controller then."""


@final
class IsrSender:
    """One broker's proposals; at most one call at a time."""

    def __init__(self, cluster: Cluster, link: ControllerLink) -> None:
        self._cluster = cluster
        self._link = link

    async def send(self, proposals: Sequence[IsrProposal]) -> list[IsrAnswer]:
        """One answer each, in order.

        KafkaError or StoreUnavailable: each of them may be made or not, unless NOT_CONTROLLER says
        that nothing was sent.
        """
        broker_id, epoch = self._cluster.broker_id, self._cluster.broker_epoch
        if self._cluster.is_controller:
            return await self._cluster.alter_isr(broker_id, epoch, proposals)
        request = _request(broker_id, epoch, proposals)
        try:
            response = await self._link.request(
                request, AlterPartitionResponse, version=VERSION, timeout_s=TIMEOUT_S
            )
        except ClientError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        check(response.error_code, "the controller refuses all proposals")
        return _answers(proposals, response)


def _request(
    broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
) -> AlterPartitionRequest:
    topics: dict[TopicId, RequestTopicData] = {}
    for one in proposals:
        topic = topics.setdefault(one.topic_id, RequestTopicData(topic_id=one.topic_id))
        topic.partitions.append(
            RequestPartitionData(
                partition_index=one.partition,
                leader_epoch=one.leader_epoch,
                partition_epoch=one.partition_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member, broker_epoch=epoch) for member, epoch in one.isr
                ],
            )
        )
    return AlterPartitionRequest(
        broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values())
    )


def _answers(proposals: Sequence[IsrProposal], response: AlterPartitionResponse) -> list[IsrAnswer]:
    found = {
        (topic.topic_id, one.partition_index): _answer(one)
        for topic in response.topics
        for one in topic.partitions
    }
    # A proposal without an answer may have been made.
    unanswered = IsrAnswer(ErrorCode.REQUEST_TIMED_OUT)
    return [found.get((one.topic_id, one.partition), unanswered) for one in proposals]


def _answer(data: ResponsePartitionData) -> IsrAnswer:
    code = error_code(data.error_code)
    if code is not ErrorCode.NONE:
        return IsrAnswer(code)
    isr = tuple(data.isr)
    return IsrAnswer(
        code,
        PartitionImage(
            leader=data.leader_id,
            leader_epoch=data.leader_epoch,
            replicas=isr,
            isr=isr,
            last_known_leader=data.leader_id,
            partition_epoch=data.partition_epoch,
        ),
    )
