"""The types of resource that DescribeConfigs and AlterConfigs name (T56, T57).

Topics, brokers and groups can be described and changed. A broker answers only for itself and, under
the empty name, for what was set for all brokers. A group need not exist. Every other type of
resource is refused. What can be changed, and why the rest cannot, is decided in `metadata/image`
(S35).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import is_legal_topic_name
from tidemill.metadata.image.described_keys import (
    DescribedKey,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
)
from tidemill.metadata.image.overrides import (
    ALL_BROKERS,
    DRAINING,
    ConfigOwner,
    OwnerKind,
    group_owner,
)
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import ConfigChange
from tidemill.server.request.authorizer import Operation, Resource, ResourceType, cluster, topic
from tidemill.server.request.context import TopicContext

__all__ = [
    "ConfigResourceType",
    "KeyChange",
    "describe_resource",
    "plan_override_change",
    "plan_topic_change",
]

KeyChange = tuple[str, AlterOp, str | None]
"""Key, operation, value."""


class ConfigResourceType(IntEnum):
    """Kafka's numbers for the types of resource with a configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def describe_resource(
    context: TopicContext, kind: int, name: str, keys: Collection[str] | None
) -> list[DescribedKey]:
    """The keys of a resource, limited to `keys` if given; KafkaError if it has none here."""
    _check_allowed(context, Operation.DESCRIBE_CONFIGS, kind, name)
    match kind:
        case ConfigResourceType.TOPIC:
            return _describe_topic(context, name, keys)
        case ConfigResourceType.BROKER:
            return _describe_broker(context, name, keys)
        case ConfigResourceType.GROUP:
            _check_group_name(name)
            overrides = context.image.overrides_of(group_owner(name))
            return describe_group(overrides, context.services.config, keys)
        case _:
            raise _unsupported(kind)


def plan_topic_change(
    context: TopicContext, name: str, changes: Sequence[KeyChange], *, replace_all: bool
) -> ConfigChange:
    """The change of a topic for the cluster to make; KafkaError if it is refused."""
    _check_allowed(context, Operation.ALTER_CONFIGS, ConfigResourceType.TOPIC, name)
    _check_topic_name(name)
    found = context.image.topic(name)
    if (
        found is not None
        and found.is_view
        and not context.allows(Operation.READ, topic(found.view_of))
    ):
        # As when a view is made: its readers see what its maker may read.
        detail = f"{found.view_of} may not be read"
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, detail)
    return ConfigChange(name=name, changes=changes, replace_all=replace_all)


def plan_override_change(
    context: TopicContext,
    kind: int,
    name: str,
    changes: Sequence[KeyChange],
    *,
    replace_all: bool,
) -> OverrideChange:
    """The change of a broker or a group for the cluster to make; KafkaError if it is refused."""
    _check_allowed(context, Operation.ALTER_CONFIGS, kind, name)
    match kind:
        case ConfigResourceType.BROKER:
            if name and not _is_about_draining(context, name, changes):
                _check_own_id(context, name)
            owner = ConfigOwner(OwnerKind.BROKER, name)
        case ConfigResourceType.GROUP:
            _check_group_name(name)
            owner = group_owner(name)
        case _:
            raise _unsupported(kind)
    return OverrideChange(owner=owner, changes=changes, replace_all=replace_all)


def _check_allowed(context: TopicContext, operation: Operation, kind: int, name: str) -> None:
    match kind:
        case ConfigResourceType.TOPIC:
            resource, code = topic(name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ConfigResourceType.GROUP:
            resource = Resource(ResourceType.GROUP, name)
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        case _:
            resource, code = cluster(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not context.allows(operation, resource):
        raise KafkaError(code)


def _check_topic_name(name: str) -> None:
    if not is_legal_topic_name(name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "no legal name of a topic")


def _unsupported(kind: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no configuration")


def _describe_topic(
    context: TopicContext, name: str, keys: Collection[str] | None
) -> list[DescribedKey]:
    _check_topic_name(name)
    found = context.image.topic(name)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")
    return describe_topic(found, context.services.config, keys)


def _describe_broker(
    context: TopicContext, name: str, keys: Collection[str] | None
) -> list[DescribedKey]:
    if not name:
        return describe_all_brokers(context.image.overrides_of(ALL_BROKERS), keys)
    _check_own_id(context, name)
    return describe_broker(context.services.config, keys)


def _is_about_draining(context: TopicContext, name: str, changes: Sequence[KeyChange]) -> bool:
    """Whether any broker may take the change: a broker that does not run is drained, too."""
    members = map(str, context.image.members)
    return name in members and {key for key, _, _ in changes} == {DRAINING}


def _check_own_id(context: TopicContext, name: str) -> None:
    if context.peer.is_passed_on:
        return  # the broker that it is about has checked it
    own_id = context.services.config.static.node_id
    if name != str(own_id):
        detail = f"broker {own_id} answers only for its own configuration"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)


def _check_group_name(name: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a group has a name")
