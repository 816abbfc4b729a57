"""Sends a leader's proposals to the controller, wherever it is, as AlterPartition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import final

from tidemill.client.network.controller_link import ControllerLink
from tidemill.client.network.errors import ClientError, check, error_code
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.replication.proposing.controller_contact import HEARD, ControllerContact
from tidemill.wire.generated.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)

__all__ = ["IsrSender"]

log = logging.getLogger(__name__)

VERSION = 3
TIMEOUT_S = 3.0
"""After that a proposal is in doubt, and is sent again to whoever is controller then."""
CONTACT_INTERVAL_S = 2.5
"""So often the controller is asked by a broker that wants nothing of it."""


@final
class IsrSender:
    """One broker's proposals; at most one call at a time."""

    def __init__(
        self, cluster: Cluster, link: ControllerLink, *, clock: Clock, lag_s: Callable[[], float]
    ) -> None:
        """`lag_s`: after how long behind a follower leaves the in-sync set."""
        self._cluster = cluster
        self._link = link
        self._clock = clock
        self._lag_s = lag_s
        self._contact = ControllerContact()
        self._asked_at = clock.monotonic()
        self._has_proposed = False
        """Whether the last request had proposals, which wait for other work of the controller."""

    @property
    def is_contact_due(self) -> bool:
        """Whether to ask the controller now, also without a proposal."""
        if not self._contact.is_heard:
            return True
        waited_s = self._clock.monotonic() - self._asked_at
        return waited_s >= CONTACT_INTERVAL_S and not self._cluster.is_controller

    async def send(self, proposals: Sequence[IsrProposal]) -> list[IsrAnswer]:
        """One answer each, in order.

        KafkaError or StoreUnavailable: each of them may be made or not, unless NOT_CONTROLLER says
        that nothing was sent.
        """
        self._asked_at = self._clock.monotonic()
        self._has_proposed = bool(proposals)
        broker_id, epoch = self._cluster.broker_id, self._cluster.broker_epoch
        if self._cluster.is_controller:
            self._contact.answered()
            return await self._cluster.alter_isr(broker_id, epoch, proposals)
        response = await self._request(_request(broker_id, epoch, proposals))
        check(response.error_code, "the controller refuses all proposals")
        return _answers(proposals, response)

    async def _request(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        asked = self._cluster.image
        try:
            response = await self._link.request(
                request, AlterPartitionResponse, version=VERSION, timeout_s=TIMEOUT_S
            )
        except (ClientError, KafkaError) as error:
            if asked.controller_broker_id != NO_LEADER:
                self._contact.unanswered(asked.controller_epoch, self._clock.monotonic())
            if isinstance(error, KafkaError):
                raise
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        self._contact.answered()
        return response

    async def attend(self, *, stands_still: bool) -> None:
        """Tell all brokers of a controller that is silent; let others lead what stands still."""
        now, lag_s = self._clock.monotonic(), self._lag_s()
        unheard = self._contact.unheard_controller(now, lag_s)
        if unheard != HEARD and self._has_proposed and await self._answers_a_question():
            unheard = HEARD  # it is only busy, and could let in nobody who steps aside
        self._cluster.report_unheard(unheard)
        image = self._cluster.image
        controller = image.controller_broker_id
        # Without a controller nobody else would lead, and nobody would let this broker in again.
        if not stands_still or controller in (NO_LEADER, self._cluster.broker_id):
            return
        if unheard == image.controller_epoch and self._contact.try_step_aside(now, lag_s):
            log.error(
                "the controller, broker %d, does not answer, and partitions stand still here: this "
                "broker steps aside for a moment, so that others lead them",
                controller,
            )
            await self._cluster.step_aside()

    async def _answers_a_question(self) -> bool:
        """Whether the controller answers what waits for no other work."""
        with suppress(KafkaError, StoreUnavailable):  # a refusal is an answer, too
            await self.send(())
        return self._contact.is_heard


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
