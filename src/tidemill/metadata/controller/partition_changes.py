"""Requests that change partitions: in-sync sets, elections, moves; decided one by one, and written.

There is one answer per partition, in order. A partition whose page cannot be read is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.image_keeper import ImageKeeper
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.metadata.image.metadata_image import BrokerImage, MetadataImage
from tidemill.metadata.rules.decisions import (
    LedLately,
    Told,
    changed_in_sync_set,
    chosen,
    elected,
    live_brokers,
    moved,
)
from tidemill.metadata.rules.election import PartitionChange

__all__ = ["PartitionChanges"]


class WriteChanges(Protocol):
    """Writes changes of partitions as the controller of a term, and publishes them."""

    async def __call__(self, changes: Sequence[PartitionChange], *, term: int) -> None: ...


@final
class PartitionChanges:
    """The changes of partitions that the controller makes; called with the cluster's lock held."""

    def __init__(
        self,
        keeper: ImageKeeper,
        change: WriteChanges,
        *,
        is_writable: Callable[[UUID], bool],
        led_lately: LedLately,
        told: Told,
    ) -> None:
        self._keeper = keeper
        self._change = change
        self._is_writable = is_writable
        self._led_lately = led_lately
        self._told = told

    @property
    def _image(self) -> MetadataImage:
        return self._keeper.image

    async def alter_isr(
        self, sender_id: int, sender_epoch: int, proposals: Sequence[IsrProposal], *, term: int
    ) -> list[IsrAnswer]:
        """Change in-sync sets as their leader proposes; one answer each, in order."""
        sender = self.check_sender(sender_id, sender_epoch)
        outcomes: list[PartitionChange | KafkaError] = []
        seen: set[tuple[UUID, int]] = set()
        pacer = Pacer(PARTITIONS_CHANGED_PER_SLICE)
        for proposal in proposals:
            await pacer.step()
            try:
                if (proposal.topic_id, proposal.partition) in seen:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "names a partition twice")
                seen.add((proposal.topic_id, proposal.partition))
                if not self._is_writable(proposal.topic_id):
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its page cannot be read")
                outcomes.append(changed_in_sync_set(self._image, sender, proposal))
            except KafkaError as refusal:
                outcomes.append(refusal)
        changes = [one for one in outcomes if isinstance(one, PartitionChange)]
        if changes:
            await self._change(changes, term=term)
        return [self._isr_answer(one) for one in outcomes]

    def check_sender(self, sender_id: int, sender_epoch: int) -> BrokerImage:
        """Who proposes; KafkaError if it is not let in, or is an earlier life."""
        sender = self._image.brokers.get(sender_id)
        is_live = sender_id in live_brokers(self._image).brokers
        if sender is None or not is_live or sender.epoch != sender_epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {sender_id} is not let in")
        return sender

    async def elect(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, term: int
    ) -> list[KafkaError | None]:
        """Hold elections that somebody asks for; per partition why there was none."""

        def plan(name: str, index: int) -> PartitionChange:
            return elected(self._image, name, index, unclean=unclean, told=self._told)

        return await self._change_each(partitions, plan, term=term)

    async def choose_leader(
        self, partition: TopicPartition, leader: int, *, in_epoch: int, term: int
    ) -> KafkaError | None:
        """Let the log of one replica win, as a person has decided; why that was refused."""

        def plan(name: str, index: int) -> PartitionChange:
            return chosen(self._image, name, index, leader=leader, in_epoch=in_epoch)

        (refusal,) = await self._change_each([partition], plan, term=term)
        return refusal

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, term: int
    ) -> list[KafkaError | None]:
        """Begin reassignments, or take them back where there is no target; why one was refused."""

        def plan(name: str, index: int) -> PartitionChange:
            target = targets[TopicPartition(name, index)]
            return moved(self._image, name, index, target, self._led_lately)

        return await self._change_each(list(targets), plan, term=term)

    async def _change_each(
        self,
        partitions: Sequence[TopicPartition],
        plan: Callable[[str, int], PartitionChange],
        *,
        term: int,
    ) -> list[KafkaError | None]:
        """Change partitions, each named once, as somebody wishes; per partition why it was not."""
        changes: list[PartitionChange] = []
        refusals: list[KafkaError | None] = []
        pacer = Pacer(PARTITIONS_CHANGED_PER_SLICE)
        for name, index in partitions:
            await pacer.step()
            try:
                change = plan(name, index)
                if not self._is_writable(change.topic_id):
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its page cannot be read")
            except KafkaError as refusal:
                refusals.append(refusal)
            else:
                refusals.append(None)
                if change.after != change.before:
                    changes.append(change)
        if changes:
            await self._change(changes, term=term)
        return refusals

    def _isr_answer(self, outcome: PartitionChange | KafkaError) -> IsrAnswer:
        if isinstance(outcome, KafkaError):
            return IsrAnswer(outcome.code)
        topic = self._image.topic_by_id(outcome.topic_id)
        assert topic is not None
        return IsrAnswer(ErrorCode.NONE, topic.partitions[outcome.partition])
