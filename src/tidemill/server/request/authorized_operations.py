"""The bit set of operations that a client is allowed, for requests that want it (KIP-430, T20)."""

from __future__ import annotations

from tidemill.server.request.authorizer import Operation, Resource, ResourceType
from tidemill.server.request.context import AnyContext

__all__ = ["NOT_REQUESTED", "authorized_operations"]

NOT_REQUESTED = -(2**31)

_OF_TOPIC = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_CLUSTER = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_OF_GROUP = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_POSSIBLE = {
    ResourceType.TOPIC: _OF_TOPIC,
    ResourceType.GROUP: _OF_GROUP,
    ResourceType.CLUSTER: _OF_CLUSTER,
}


def authorized_operations(context: AnyContext, resource: Resource, wanted: bool) -> int:
    """One bit per allowed operation; the int32 minimum if the request does not want them."""
    if not wanted:
        return NOT_REQUESTED
    return sum(
        1 << operation.value
        for operation in _POSSIBLE[resource.type]
        if context.allows(operation, resource)
    )
