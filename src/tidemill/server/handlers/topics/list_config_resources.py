"""ListConfigResources (74), versions 0..1: the resources that have a configuration.

v0 only subscriptions of client metrics, of which there are none; v1 the types that the request
names, or all of them.

Listed are the resources whose keys DescribeConfigs shows: topics, live brokers, and groups that
have a key of their own, as in Kafka. Loggers cannot be configured.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.overrides import OwnerKind
from tidemill.server.handlers.topics.config_resources import ConfigResourceType
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

__all__ = ["HANDLER"]

RESOURCES_PER_SLICE = 1_000
"""Resources listed in one slice of the loop (S11)."""

_TYPES_OF_VERSION = {
    0: frozenset({ConfigResourceType.CLIENT_METRICS}),
    1: frozenset(ConfigResourceType),
}


def handle(context: TopicContext, request: ListConfigResourcesRequest) -> Answer:
    context.require(Operation.DESCRIBE_CONFIGS, cluster())
    return _list(context, _wanted(context.version, request))


def _wanted(version: int, request: ListConfigResourcesRequest) -> set[int]:
    possible = _TYPES_OF_VERSION[version]
    wanted = set(request.resource_types) or set(possible)
    unknown = sorted(wanted - possible)
    if unknown:
        detail = f"there are no resources of type {unknown[0]}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
    return wanted


async def _list(context: TopicContext, wanted: set[int]) -> ListConfigResourcesResponse:
    response = ListConfigResourcesResponse()
    pacer = Pacer(RESOURCES_PER_SLICE)
    for kind in sorted(wanted):
        for name in _names(context, kind):
            await pacer.step()
            response.config_resources.append(ConfigResource(resource_name=name, resource_type=kind))
    return response


def _names(context: TopicContext, kind: int) -> Iterable[str]:
    match kind:
        case ConfigResourceType.TOPIC:
            return sorted(context.image.topics)
        case ConfigResourceType.BROKER:
            return [str(broker_id) for broker_id in sorted(context.image.brokers)]
        case ConfigResourceType.GROUP:
            owners = sorted(context.image.overrides)
            return [owner.name for owner in owners if owner.kind is OwnerKind.GROUP]
        case _:
            return ()


HANDLER = Handler(
    api_key=ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    handle=handle,
    refuse=refuse_with_error_code(ListConfigResourcesResponse),
)
