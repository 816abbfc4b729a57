"""FindCoordinator (10), versions 0..6: which broker coordinates a group or a transactional id.

v1 key type and error message; v3 flexible; v4 several keys at once; v6 share groups.

A group's coordinator leads the partition of `__consumer_offsets` that the group's name hashes to
(F54), that of a transactional id its partition of `__transaction_state`. The first request for a
kind of coordinator creates its topic.

Left out: share groups. librdkafka concludes from this API that the broker supports lz4, so all its
versions are offered.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    BrokerImage,
)
from tidemill.server.request.authorizer import Operation, group, transactional_id
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.internal_topic import (
    ensure_internal_topic,
    internal_topic_is_usable,
)
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

__all__ = ["HANDLER"]

VERSIONS = (0, 6)
FIRST_WITH_SEVERAL_KEYS = 4
GROUP = 0
TRANSACTION = 1
SHARE = 2
NO_BROKER = -1
KEYS_PER_SLICE = 100
"""Keys that are looked up in one turn of the loop (S11): about a millisecond."""
CHARS_PER_STEP = 32
"""A longer key counts as several: it is hashed."""
TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC}
"""The topics of the coordinators that are served, by key type."""


def handle(context: GroupContext, request: FindCoordinatorRequest) -> Answer:
    topic = TOPICS.get(request.key_type)
    if topic is not None and not internal_topic_is_usable(context.services, topic):
        return _create_topic_and_find(context, request, topic)
    keys = _keys(context, request)
    if len(keys) > KEYS_PER_SLICE:
        return _find_many(context, request.key_type, keys)
    return _response(context, [_found(context, request.key_type, key) for key in keys])


async def _create_topic_and_find(
    context: GroupContext, request: FindCoordinatorRequest, topic: str
) -> FindCoordinatorResponse:
    try:
        await ensure_internal_topic(context.services, topic)
    except KafkaError as error:
        context.services.telemetry.count_error(error.code)
        return _response(context, [_refusal(key, error) for key in _keys(context, request)])
    return await _find_many(context, request.key_type, _keys(context, request))


async def _find_many(
    context: GroupContext, key_type: int, keys: Sequence[str]
) -> FindCoordinatorResponse:
    pacer = Pacer(KEYS_PER_SLICE)
    found = []
    for key in keys:
        await pacer.step(1 + len(key) // CHARS_PER_STEP)
        found.append(_found(context, key_type, key))
    return _response(context, found)


def _found(context: GroupContext, key_type: int, key: str) -> Coordinator:
    try:
        return _coordinator(context, key, _find(context, key_type, key))
    except KafkaError as error:
        context.services.telemetry.count_error(error.code)
        return _refusal(key, error)


def _keys(context: GroupContext, request: FindCoordinatorRequest) -> list[str]:
    if context.version < FIRST_WITH_SEVERAL_KEYS:
        return [request.key]
    return request.coordinator_keys


def _find(context: GroupContext, key_type: int, key: str) -> BrokerImage:
    image, services = context.image, context.services
    if key_type == GROUP:
        context.require(Operation.DESCRIBE, group(key))
        partition = image.partition(OFFSETS_TOPIC, services.groups.partition_of(key))
    elif key_type == TRANSACTION:
        context.require(Operation.DESCRIBE, transactional_id(key))
        index = services.transactions.partition_of(key)
        partition = image.partition(TRANSACTION_STATE_TOPIC, index)
    else:
        raise _not_served(key_type)
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its partition has no leader now")
    return broker


def _not_served(key_type: int) -> KafkaError:
    if key_type == SHARE:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups are not served yet")
    return KafkaError(ErrorCode.INVALID_REQUEST, f"no key type {key_type}")


def _coordinator(context: GroupContext, key: str, broker: BrokerImage) -> Coordinator:
    endpoint = context.endpoint_of(broker)
    return Coordinator(key=key, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port)


def _refusal(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=NO_BROKER,
        port=NO_BROKER,
        error_code=int(error.code),
        error_message=error.detail or None,
    )


def _response(context: GroupContext, found: list[Coordinator]) -> FindCoordinatorResponse:
    if context.version >= FIRST_WITH_SEVERAL_KEYS:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _refuse(request: FindCoordinatorRequest, error: KafkaError) -> FindCoordinatorResponse:
    """The whole request failed; other errors belong to one key each."""
    return FindCoordinatorResponse(
        error_code=int(error.code),
        coordinators=[_refusal(key, error) for key in request.coordinator_keys],
    )


HANDLER = Handler(api_key=ApiKey.FIND_COORDINATOR, versions=VERSIONS, handle=handle, refuse=_refuse)
