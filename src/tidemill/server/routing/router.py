"""The handlers of the ROUTE listener (F37): a request goes to the brokers that own what it names.

| request                         | what happens                                     |
|---------------------------------|--------------------------------------------------|
| Metadata, FindCoordinator, ...  | answered here: this address is the whole cluster |
| Produce, ListOffsets, ...       | divided by leader, answers joined                |
| Fetch                           | the same, see `routed_fetch.py`                  |
| one group or transactional id   | passed on to its coordinator                     |
| several of them                 | divided by coordinator, answers joined           |
| abort what hangs in a partition | passed on to its leader                          |
| all groups, all transactions    | every broker is asked, answers joined            |
| everything else                 | served here, as on the listener for clients      |

A request that could not be sent is refused, and clients try it again. If it was sent and no answer
came, nobody knows whether it was done: the client's connection is closed, as if the client had been
connected to the owner itself (R14). Of a Produce only that leader's partitions time out: otherwise
the client would send again what other leaders have taken, of this request or of one behind it.
What follows such a batch of an idempotent producer does not overtake it (`producer_order.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, final

from tidemill.client.network.errors import ClientError
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.core.limits import KIB, ROUTED_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.context import Peer, RequestContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.services import Services
from tidemill.server.routing.divided_requests import (
    BY_LEADER,
    BY_NAMES,
    PartitionsShape,
    divided_by_leader,
    divided_by_name,
    joined,
    joined_names,
)
from tidemill.server.routing.owners import Owners
from tidemill.server.routing.producer_order import HELD_BACK, ProducerOrder, batches_of
from tidemill.server.routing.routed_client import ClientMemory, RoutedClient, RoutedResources
from tidemill.server.routing.routed_fetch import WaitingFetches
from tidemill.server.routing.single_address import with_single_address
from tidemill.wire.api_keys import ApiKey, load
from tidemill.wire.generated.fetch import FetchRequest
from tidemill.wire.generated.produce import ProduceRequest
from tidemill.wire.generated.write_txn_markers import WriteTxnMarkersRequest
from tidemill.wire.message import Message

__all__ = ["Router"]

_Context = RequestContext[Services]
_Join = Callable[[list[Message]], Message]

ADDRESSED = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.FIND_COORDINATOR,
    }
)
"""Their answers name brokers."""
OF_GROUP = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
)
OF_TRANSACTION = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})
OF_EVERYBODY = {ApiKey.LIST_GROUPS: "groups", ApiKey.LIST_TRANSACTIONS: "transaction_states"}
FIRST_WITH_LISTS = {ApiKey.OFFSET_FETCH: 8, ApiKey.ADD_PARTITIONS_TO_TXN: 4}
"""Versions before these name one group or transactional id."""
ANSWER_S_MAX = 60.0
"""For an owner's answer, beyond the time that the request itself allows."""
OWN_WAIT_S_MAX = 1_800.0
"""As long as a member of a group may be away."""
THROTTLE_MS_WHEN_FULL = 1_000
DECODED_GROWTH = 16
"""A decoded request takes at most so many times its bytes; records stay bytes."""
TASK_BYTES = 4 * KIB
"""What a request on its way takes beside its bytes. With acks=0 only this bounds their number."""
NO_ACKS = 0
_UNKNOWN = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody knows whether it was appended")


@final
class Router:
    """Routes the requests of all clients of one listener."""

    def __init__(
        self, services: Services, *, advertised: Endpoint | None, connections_max: int
    ) -> None:
        """`advertised`: the address that clients are told; None: the one that they reached.

        `connections_max`: to owners, for all clients together.
        """
        self._services = services
        self._advertised = advertised
        self._own_id = services.config.static.node_id
        self._owners = Owners(
            services.cluster,
            self._own_id,
            group_partition=services.groups.partition_of,
            transaction_partition=services.transactions.partition_of,
        )
        self._resources = RoutedResources(services, connections_max=connections_max)
        self._clients: dict[Peer, RoutedClient] = {}
        """By connection; bounded by the admission of connections."""

    def routed(self, handlers: Iterable[Handler]) -> tuple[Handler, ...]:
        """The handlers of the listener, made from those for clients."""
        return tuple(self._routed(handler) for handler in handlers)

    def end(self, peer: Peer) -> None:
        """A client's connection has ended."""
        client = self._clients.pop(peer, None)
        if client is not None:
            client.close()

    def _routed(self, handler: Handler) -> Handler:
        key = handler.api_key
        if key in ADDRESSED:
            return replace(handler, handle=partial(self._answer_here, handler))
        if key is ApiKey.FETCH:
            return replace(handler, handle=partial(self._fetch, handler), fast=None)
        if key is ApiKey.PRODUCE:
            return replace(handler, handle=partial(self._produce, handler), fast=None)
        if key in BY_LEADER:
            return replace(handler, handle=partial(self._divide_by_leader, handler), fast=None)
        if key in BY_NAMES:
            return replace(handler, handle=partial(self._divide_by_name, handler), fast=None)
        if key in OF_GROUP or key in OF_TRANSACTION:
            return replace(handler, handle=partial(self._pass_on, handler), fast=None)
        if key is ApiKey.WRITE_TXN_MARKERS:
            return replace(handler, handle=partial(self._abort_hanging, handler))
        if key in OF_EVERYBODY:
            return replace(handler, handle=partial(self._ask_everybody, handler), fast=None)
        return handler

    # --- answered here ---------------------------------------------------------------------------

    def _answer_here(self, handler: Handler, context: _Context, request: Message) -> Answer:
        address = self._advertised or context.peer.server_endpoint
        answer = handler.handle(context, request)
        if isinstance(answer, Message):
            return with_single_address(answer, self._own_id, address)
        assert isinstance(answer, Coroutine)
        return self._addressed(answer, address)

    async def _addressed(self, work: Coroutine[Any, Any, Message], address: Endpoint) -> Message:
        return with_single_address(await work, self._own_id, address)

    # --- passed on -------------------------------------------------------------------------------

    def _pass_on(self, handler: Handler, context: _Context, request: Any) -> Answer:  # noqa: ANN401
        if handler.api_key in OF_GROUP:
            owner = self._owners.group(request.group_id)
        elif request.transactional_id is None:
            return handler.handle(context, request)  # a producer id: any broker gives one
        else:
            owner = self._owners.transaction(request.transactional_id)
        return self._send(handler, context, {owner: request}, _only)

    def _abort_hanging(
        self, handler: Handler, context: _Context, request: WriteTxnMarkersRequest
    ) -> Answer:
        named = [
            (topic.name, index)
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]
        if len(named) != 1:
            return handler.handle(context, request)  # refused: an administrator names one
        ((name, index),) = named
        owner = self._owners.leader(name, ZERO_UUID, index)
        return self._send(handler, context, {owner: request}, _only)

    def _divide_by_name(self, handler: Handler, context: _Context, request: Any) -> Answer:  # noqa: ANN401
        shape = BY_NAMES[handler.api_key]
        owner = self._owners.transaction if shape.is_transactional else self._owners.group
        if context.version < FIRST_WITH_LISTS.get(handler.api_key, 0):
            name = (
                request.v3_and_below_transactional_id
                if shape.is_transactional
                else request.group_id
            )
            return self._send(handler, context, {owner(name): request}, _only)
        parts = divided_by_name(request, shape, owner)
        if not parts:
            return handler.handle(context, request)
        join = partial(joined_names, field=shape.answers)
        return self._send(handler, context, parts, join)

    def _ask_everybody(self, handler: Handler, context: _Context, request: Message) -> Answer:
        join = partial(joined_names, field=OF_EVERYBODY[handler.api_key])
        parts = dict.fromkeys(self._owners.everybody(), request)
        return self._send(handler, context, parts, join)

    def _produce(self, handler: Handler, context: _Context, request: ProduceRequest) -> Answer:
        if request.acks != NO_ACKS:
            return self._produce_in_order(handler, context, request)
        try:
            return self._divide_by_leader(handler, context, request)
        except KafkaError:
            closing: Deferred[None] = Deferred()
            closing.resolve(None)  # a client that expects no answer hears of it in no other way
            return closing

    def _produce_in_order(
        self, handler: Handler, context: _Context, request: ProduceRequest
    ) -> Answer:
        shape = BY_LEADER[ApiKey.PRODUCE]
        _check_size(request, shape)
        order, now_ms = self._client(context).order, self._services.clock.wall_ms()
        batches = batches_of(request)
        parts = order.divided(request, batches, self._owners.leader, now_ms=now_ms)
        if not parts:
            return handler.handle(context, request)
        try:
            return self._send(handler, context, parts, partial(joined, shape=shape))
        except KafkaError:
            order.refused(batches, now_ms=now_ms)
            raise

    def _divide_by_leader(self, handler: Handler, context: _Context, request: Message) -> Answer:
        shape = BY_LEADER[handler.api_key]
        if getattr(request, "replica_id", -1) >= 0:
            return handler.handle(context, request)  # refused: brokers have their own listener
        _check_size(request, shape)
        parts = divided_by_leader(request, shape, self._owners.leader)
        if not parts:
            return handler.handle(context, request)
        return self._send(handler, context, parts, partial(joined, shape=shape))

    def _send(
        self,
        handler: Handler,
        context: _Context,
        parts: dict[int, Message],
        join: _Join,
    ) -> Answer:
        """Send the parts, in the order of the client's requests; the joined answer comes later.

        KafkaError if there is no memory for them now; the client is told to wait.
        """
        client = self._client(context)
        size_bytes = _take_memory(client.memory, handler, context)
        _, response_type = load(handler.api_key)
        is_answered = not _wants_no_answer(parts.values())
        for part in parts.values():
            if isinstance(part, ProduceRequest):
                _keep_records(part)
        asked = [
            (
                part,
                _held_back()
                if owner == HELD_BACK
                else client.upstream(owner).ask(
                    part,
                    response_type if is_answered else None,
                    version=context.version,
                    timeout_s=ANSWER_S_MAX + _own_wait_s(part),
                ),
            )
            for owner, part in parts.items()
        ]
        for owner, (part, came) in zip(parts, asked, strict=True):
            if isinstance(part, ProduceRequest) and is_answered and owner != HELD_BACK:
                self._note(client.order, part, owner, came)
        answer: Deferred[Message | None] = Deferred()
        work = partial(self._join, handler, context, asked, join, answer)
        self._services.supervisor.spawn("routed request", _counted(work, client.memory, size_bytes))
        return answer if is_answered else None

    def _note(
        self, order: ProducerOrder, part: ProduceRequest, owner: int, came: asyncio.Future[Any]
    ) -> None:
        """Remember what becomes of the batches of this part."""
        batches = batches_of(part)
        order.sent(batches, owner)

        def note(done: asyncio.Future[Any]) -> None:
            is_answer = not done.cancelled() and done.exception() is None
            answer = done.result() if is_answer else None
            order.answered(batches, answer, now_ms=self._services.clock.wall_ms())

        came.add_done_callback(note)

    async def _join(
        self,
        handler: Handler,
        context: _Context,
        asked: list[tuple[Message, asyncio.Future[Any]]],
        join: _Join,
        answer: Deferred[Message | None],
    ) -> None:
        answers: list[Message] = []
        is_unknown = False
        for part, future in asked:
            try:
                answers.append(await future)
            except KafkaError:
                answers.append(handler.refuse(part, _refusal(handler)))
            except ClientError:
                if handler.api_key is ApiKey.PRODUCE:
                    answers.append(handler.refuse(part, _UNKNOWN))
                else:
                    is_unknown = True
        if _wants_no_answer(part for part, _ in asked):
            return
        if is_unknown:
            answer.resolve(None)
            return
        address = self._advertised or context.peer.server_endpoint
        answer.resolve(with_single_address(join(answers), self._own_id, address))

    # --- fetches ---------------------------------------------------------------------------------

    def _fetch(self, handler: Handler, context: _Context, request: FetchRequest) -> Answer:
        state = request.replica_state
        if (request.replica_id if state is None else state.replica_id) >= 0:
            return handler.handle(context, request)  # refused: brokers have their own listener
        if request.session_id and request.session_epoch > 0:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        _check_size(request, BY_LEADER[ApiKey.FETCH])
        parts = divided_by_leader(request, BY_LEADER[ApiKey.FETCH], self._owners.leader)
        if not parts:
            return handler.handle(context, request)
        client = self._client(context)
        size_bytes = _take_memory(client.fetch_memory, handler, context)
        answer: Deferred[Message] = Deferred()
        work = partial(self._run_fetch, client.fetches, context, request, parts, answer)
        self._services.supervisor.spawn(
            "routed fetch", _counted(work, client.fetch_memory, size_bytes)
        )
        return answer

    async def _run_fetch(
        self,
        fetches: WaitingFetches,
        context: _Context,
        request: FetchRequest,
        parts: dict[int, Any],
        answer: Deferred[Message],
    ) -> None:
        response = await fetches.fetch(request, parts, version=context.version)
        address = self._advertised or context.peer.server_endpoint
        answer.resolve(with_single_address(response, self._own_id, address))

    def _client(self, context: _Context) -> RoutedClient:
        client = self._clients.get(context.peer)
        if client is None:
            client = RoutedClient(self._resources, context.client_id)
            self._clients[context.peer] = client
        return client


def _take_memory(memory: ClientMemory, handler: Handler, context: _Context) -> int:
    """Count a request until it is answered: others of the same client start meanwhile."""
    growth = 1 if handler.api_key is ApiKey.PRODUCE else DECODED_GROWTH
    size_bytes = TASK_BYTES + growth * context.size_bytes
    if not memory.try_take(size_bytes):
        context.throttle_ms = THROTTLE_MS_WHEN_FULL
        raise _refusal(handler)
    return size_bytes


async def _counted(
    work: Callable[[], Coroutine[Any, Any, None]], memory: ClientMemory, size_bytes: int
) -> None:
    try:
        await work()
    finally:
        memory.give(size_bytes)


def _held_back() -> asyncio.Future[Any]:
    """In the place of an answer: nothing was sent."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return future


def _only(answers: list[Message]) -> Message:
    (answer,) = answers
    return answer


def _check_size(request: Message, shape: PartitionsShape) -> None:
    """KafkaError if the request names too many partitions to be divided at once (S11)."""
    topics = getattr(request, shape.topics)
    count = sum(len(getattr(topic, shape.partitions)) for topic in topics)
    if len(topics) + count > ROUTED_PARTITIONS_MAX:
        detail = f"a routed request names at most {ROUTED_PARTITIONS_MAX} partitions"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)


def _keep_records(request: ProduceRequest) -> None:
    """Copy the records: they are valid in this turn only."""
    for topic in request.topic_data:
        for one in topic.partition_data:
            one.records = None if one.records is None else bytes(one.records)


def _wants_no_answer(parts: Iterable[Message]) -> bool:
    return any(isinstance(one, ProduceRequest) and one.acks == NO_ACKS for one in parts)


def _own_wait_s(request: Message) -> float:
    """How long the owner may take by what the request says: it waits for others."""
    waits = ("timeout_ms", "rebalance_timeout_ms", "session_timeout_ms")
    return min(max(getattr(request, name, 0) for name in waits) / 1000, OWN_WAIT_S_MAX)


def _refusal(handler: Handler) -> KafkaError:
    """Nothing was sent: clients look for the owner again."""
    if handler.api_key in BY_LEADER:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its leader cannot be reached")
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its coordinator cannot be reached")
