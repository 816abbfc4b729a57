"""Keeps a routed producer's batches in order while the owners of partitions change. Pure.

An idempotent producer has several batches in flight. If it is connected to a leader that has just
lost its leadership, that one refuses all of them. A router learns of the new leader between two of
them: the first is refused, the next is sent to the new leader and appended, and the first comes
back out of order (`replication/refused_batches.py` says what that does). The same happens if one
batch cannot be sent, or gets no answer, and the next one is sent over another connection.

| a batch before this one, of the partition       | what becomes of this one                  |
|-------------------------------------------------|-------------------------------------------|
| is at an owner that has not answered            | it goes to the same owner                 |
| was refused for now, was not sent, or got lost  | it is refused, until that one comes again |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, final
from uuid import UUID

from tidemill.client.network.errors import error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import is_legal_topic_name
from tidemill.replication.refused_batches import RefusedBatches, RefusedTotal
from tidemill.server.routing.divided_requests import BY_LEADER, divided_by_leader
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import BatchHeader, read_header
from tidemill.wire.generated.produce import ProduceRequest, ProduceResponse
from tidemill.wire.message import Message

__all__ = ["HELD_BACK", "PARTITIONS_MAX", "Batches", "ProducerOrder", "batches_of"]

HELD_BACK: Final = -2
"""In the place of an owner: the batch is not sent."""
PARTITIONS_MAX: Final = 1_000
"""Of one connection: about a megabyte, whatever it asks for."""
_PRODUCERS_MAX: Final = 1
"""A connection is that of one producer."""
_Key = tuple[str, UUID, int]
Batches = dict[_Key, BatchHeader]
"""The batches of a request that have a producer, by partition."""


@final
class _UnderWay(NamedTuple):
    """Batches of one partition without an answer."""

    owner: int
    requests: int


@final
class ProducerOrder:
    """What became of the batches of one client's connection."""

    def __init__(self, total: RefusedTotal) -> None:
        """Counted in `total`, with the partitions of other clients."""
        self._total = total
        self._has_ended = False
        self._under_way: dict[_Key, _UnderWay] = {}
        """Bounded by the client's requests that are on their way."""
        self._refused: OrderedDict[_Key, RefusedBatches] = OrderedDict()
        """Bounded: the partition that has been in it for longest is forgotten."""

    def __len__(self) -> int:
        """Partitions that wait for a refused batch."""
        return len(self._refused)

    def clear(self) -> None:
        """Wait for nothing."""
        self._refused.clear()
        self._total.changed(self)

    def end(self) -> None:
        """The client has gone: what is answered later is not noted any more."""
        self._has_ended = True
        self.clear()

    def divided(
        self,
        request: ProduceRequest,
        batches: Batches,
        leader: Callable[[str, UUID, int], int],
        *,
        now_ms: int,
    ) -> dict[int, Message]:
        """What each owner is asked; what is held back is in the part of `HELD_BACK`."""
        fixed = self._fixed_owners(batches, now_ms)

        def owner(topic: str, topic_id: UUID, index: int) -> int:
            found = fixed.get((topic, topic_id, index))
            return leader(topic, topic_id, index) if found is None else found

        return divided_by_leader(request, BY_LEADER[ApiKey.PRODUCE], owner)

    def _fixed_owners(self, batches: Batches, now_ms: int) -> dict[_Key, int]:
        fixed: dict[_Key, int] = {}
        for key, header in batches.items():
            if self._is_behind(key, header, now_ms):
                fixed[key] = HELD_BACK
            elif key in self._under_way:
                fixed[key] = self._under_way[key].owner
        return fixed

    def _is_behind(self, key: _Key, header: BatchHeader, now_ms: int) -> bool:
        refused = self._refused.get(key)
        if refused is not None:
            try:
                refused.check(header, now_ms)
            except KafkaError:
                return True
        return False

    def sent(self, batches: Batches, owner: int) -> None:
        """They are on their way to this owner."""
        for key, header in batches.items():
            before = self._under_way.get(key)
            self._under_way[key] = _UnderWay(owner, 1 if before is None else before.requests + 1)
            refused = self._refused.get(key)
            if refused is not None:
                refused.appended(header)
                if not refused:
                    del self._refused[key]
                    self._total.changed(self)

    def answered(self, batches: Batches, answer: ProduceResponse | None, *, now_ms: int) -> None:
        """The owner's answer to what was sent; None: there is none, or it could not be sent."""
        codes = {} if answer is None else _codes(answer)
        for key, header in batches.items():
            before = self._under_way.pop(key)
            if before.requests > 1:
                self._under_way[key] = before._replace(requests=before.requests - 1)
            if codes.get(key, ErrorCode.REQUEST_TIMED_OUT).retriable:
                self._refuse(key, header, now_ms)

    def refused(self, batches: Batches, *, now_ms: int) -> None:
        """Nobody was asked."""
        for key, header in batches.items():
            self._refuse(key, header, now_ms)

    def _refuse(self, key: _Key, header: BatchHeader, now_ms: int) -> None:
        if self._has_ended:
            return
        refused = self._refused.get(key)
        if refused is None:
            refused = self._refused[key] = RefusedBatches(_PRODUCERS_MAX)
        refused.add(header, ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms)
        if len(self._refused) > PARTITIONS_MAX:
            self._refused.popitem(last=False)
        self._total.changed(self)


def batches_of(request: ProduceRequest) -> Batches:
    """Those of idempotent producers; what is no batch or names no topic its owner refuses."""
    found: Batches = {}
    for topic in request.topic_data:
        if topic.name and not is_legal_topic_name(topic.name):
            continue  # it may be long
        for one in topic.partition_data:
            with suppress(KafkaError):
                header = read_header(one.records or b"")
                if header.producer_id >= 0 and header.base_sequence >= 0:
                    found[topic.name, topic.topic_id, one.index] = header
    return found


def _codes(answer: ProduceResponse) -> dict[_Key, ErrorCode]:
    return {
        (topic.name, topic.topic_id, one.index): error_code(one.error_code)
        for topic in answer.responses
        for one in topic.partition_responses
    }
