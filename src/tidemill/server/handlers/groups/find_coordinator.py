"""FindCoordinator (10), versions 0..6: which broker coordinates a group.

v1 key type and error message; v3 flexible; v4 several keys at once; v6 share groups.

A group's coordinator leads the partition of `__consumer_offsets` that the group's name hashes to
(F54). The first request for a group creates that topic.

Left out: transactions and share groups. librdkafka concludes from this API that the broker supports
lz4, so all its versions are offered.

A transactional id is refused here, where the answer has room for a text. UNSUPPORTED_VERSION says
what it is: the Java client and kafka-python end the attempt and show it, Java with our text.
librdkafka would repeat the request for ever; the one code that ends its attempt is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which it shows with our text. It asks with version 2 at most,
Java and kafka-python with 3 or later, so the version decides.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC, BrokerImage
from tidemill.server.handlers.groups.offsets_topic import (
    ensure_offsets_topic,
    offsets_topic_is_usable,
)
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

__all__ = ["HANDLER"]

VERSIONS = (0, 6)
FIRST_FLEXIBLE = 3
FIRST_WITH_SEVERAL_KEYS = 4
GROUP = 0
TRANSACTION = 1
SHARE = 2
NO_BROKER = -1
NO_TRANSACTIONS = "this broker does not serve transactions yet: leave transactional.id unset"


def handle(context: GroupContext, request: FindCoordinatorRequest) -> Answer:
    if request.key_type == GROUP and not offsets_topic_is_usable(context.services):
        return _create_topic_and_find(context, request)
    return _find_all(context, request)


async def _create_topic_and_find(
    context: GroupContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    try:
        await ensure_offsets_topic(context.services)
    except KafkaError as error:
        context.services.telemetry.count_error(error.code)
        return _response(context, [_refusal(key, error) for key in _keys(context, request)])
    return _find_all(context, request)


def _find_all(context: GroupContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    found = []
    for key in _keys(context, request):
        try:
            if request.key_type != GROUP:
                raise _not_served(request.key_type, context.version)
            found.append(_coordinator(context, key, _find(context, key)))
        except KafkaError as error:
            context.services.telemetry.count_error(error.code)
            found.append(_refusal(key, error))
    return _response(context, found)


def _keys(context: GroupContext, request: FindCoordinatorRequest) -> list[str]:
    if context.version < FIRST_WITH_SEVERAL_KEYS:
        return [request.key]
    return request.coordinator_keys


def _not_served(key_type: int, version: int) -> KafkaError:
    if key_type == TRANSACTION:
        code = ErrorCode.UNSUPPORTED_VERSION
        if version < FIRST_FLEXIBLE:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return KafkaError(code, NO_TRANSACTIONS)
    if key_type == SHARE:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups are not served yet")
    return KafkaError(ErrorCode.INVALID_REQUEST, f"no key type {key_type}")


def _find(context: GroupContext, key: str) -> BrokerImage:
    context.require(Operation.DESCRIBE, group(key))
    image = context.image
    partition = image.partition(OFFSETS_TOPIC, context.services.groups.partition_of(key))
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its partition has no leader now")
    return broker


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
