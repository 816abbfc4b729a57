"""The seam for access control. Every handler names the operation and the resource that it needs.

So far everything is allowed; access lists will be another implementation of `Authorizer`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol, final

__all__ = [
    "AllowAll",
    "Authorizer",
    "Operation",
    "Resource",
    "ResourceType",
    "cluster",
    "group",
    "topic",
    "transactional_id",
]


class Operation(Enum):
    """Kafka's operations, with their numbers on the wire."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(Enum):
    """Kafka's resource types, with their numbers on the wire."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    """The object of an operation that is allowed or denied."""

    type: ResourceType
    name: str


CLUSTER_RESOURCE: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, name)


def cluster() -> Resource:
    return CLUSTER_RESOURCE


class Authorizer(Protocol):
    """Decides by principal, operation and resource; knows nothing about requests."""

    def allows(self, principal: str, operation: Operation, resource: Resource) -> bool: ...


@final
class AllowAll:
    """No access control: every client may do everything."""

    def allows(self, principal: str, operation: Operation, resource: Resource) -> bool:
        return True
