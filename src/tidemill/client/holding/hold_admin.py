"""Held records, for an administrator: list, find, cancel and move them.

What is held is read through a view of it, a topic with `tidemill.view.held`. Commands are records
with headers, produced to the partition of what they mean; the answer to the produce is the result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import final

from tidemill.client.admin.view_admin import ViewAdmin
from tidemill.client.consuming.consumer import READ_COMMITTED, Consumer
from tidemill.client.holding.delay_headers import Cancel, DelayHeaders, Move
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    list_offsets,
)
from tidemill.client.producing.producer import Producer
from tidemill.core.clock import Clock
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.wire import header_names
from tidemill.wire.records import Record

__all__ = ["HeldTopic", "HoldAdmin", "HoldTarget", "ListedHold"]

_POLL_S = 1.0
_WAIT_MS = 50
"""A fetch that finds nothing held is answered after that time, with the position behind it."""


@final
@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A topic, and the view that shows what it holds."""

    name: str
    view: str


@final
@dataclass(frozen=True, slots=True)
class HoldTarget:
    """What a command means: a message id or a ticket, and its partition if that is known."""

    name: str | int
    partition: int | None


@final
class ListedHold:
    """A record of a view of what is held."""

    def __init__(self, partition: int, record: Record) -> None:
        headers = dict(record.headers)
        self.partition = partition
        self.record = record
        self.ticket = _number(headers.get(header_names.TICKET), record.offset)
        self.due_ms = _number(headers.get(header_names.DUE), -1)
        self.message_id = _text(headers.get(header_names.MESSAGE_ID))
        self.schedule = _text(headers.get(header_names.SCHEDULE))

    @property
    def size_bytes(self) -> int:
        """Of key and value."""
        return len(self.record.key or b"") + len(self.record.value or b"")

    def is_meant_by(self, target: HoldTarget) -> bool:
        return target.name == (self.message_id if isinstance(target.name, str) else self.ticket)


@final
class HoldAdmin:
    """Administers the held records of one cluster."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def held_topic(self, name: str) -> HeldTopic:
        """The topic of this name with its view, or the one that the view of this name is of."""
        views = [view for view in await ViewAdmin(self._cluster).list_views() if view.held]
        for view in views:
            if name in (view.name, view.of):
                return HeldTopic(view.of, view.name)
        await self._cluster.topic(name)
        raise UserError(
            f"{name} has no view of what is held; make one with "
            f"`tidemill view create {name}.held --of {name} --held`"
        )

    async def holds(
        self, topic: HeldTopic, *, partition: int | None = None, from_ticket: int = 0
    ) -> AsyncIterator[ListedHold]:
        """What is held now, of each partition in the order of its log."""
        info = await self._cluster.topic(topic.view)
        wanted = sorted(info.partitions) if partition is None else [partition]
        names = [TopicPartition(topic.view, index) for index in wanted]
        starts = await list_offsets(self._cluster, dict.fromkeys(names, EARLIEST_TIMESTAMP))
        # The view ends before the oldest open transaction, as for a reader of committed records.
        ends = await list_offsets(
            self._cluster, dict.fromkeys(names, LATEST_TIMESTAMP), isolation_level=READ_COMMITTED
        )
        consumer = Consumer(self._cluster, max_wait_ms=_WAIT_MS, isolation_level=READ_COMMITTED)
        consumer.read_between(
            {one: (max(starts[one].offset, from_ticket), ends[one].offset) for one in names}
        )
        while consumer.positions:
            for fetched in await consumer.poll(_POLL_S):
                for record in fetched.records:
                    if record.offset < ends[TopicPartition(topic.view, fetched.partition)].offset:
                        yield ListedHold(fetched.partition, record)

    async def find(self, topic: HeldTopic, target: HoldTarget) -> ListedHold:
        """The held record that is meant; UserError if there is none, or one in two partitions."""
        first = target.name if isinstance(target.name, int) else 0
        found: dict[int, ListedHold] = {}
        async for held in self.holds(topic, partition=target.partition, from_ticket=first):
            if held.is_meant_by(target):
                found[held.partition] = held
        if not found:
            raise UserError(f"{topic.name} holds nothing under {target.name}")
        if len(found) > 1:
            where = " and ".join(map(str, sorted(found)))
            raise UserError(
                f"{target.name} is held in partitions {where}; choose one with --partition"
            )
        return found.popitem()[1]

    async def cancel(self, topic: str, target: HoldTarget) -> None:
        """Never deliver it. Raises KafkaError, also if it was delivered already."""
        await self._command(topic, target, Cancel(target.name))

    async def move(self, topic: str, target: HoldTarget, to: datetime | str) -> None:
        """Deliver it at another time, or after `10m`. Raises KafkaError, like `cancel`."""
        await self._command(topic, target, Move(target.name, to))

    async def _command(self, topic: str, target: HoldTarget, headers: DelayHeaders) -> None:
        async with Producer(self._cluster, self._clock) as producer:
            sent = await producer.send(
                topic, None, headers=headers, partition=await self._partition(topic, target)
            )
            await sent.offset()

    async def _partition(self, topic: str, target: HoldTarget) -> int:
        """Where a command goes: an id may be in any partition, so it is looked for."""
        if target.partition is not None:
            return target.partition
        if len((await self._cluster.topic(topic)).partitions) == 1:
            return 0
        return (await self.find(await self.held_topic(topic), target)).partition


def _number(value: bytes | None, default: int) -> int:
    return int(value) if value is not None and value.isdigit() else default


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
