"""The types of resource that DescribeConfigs and AlterConfigs name (T56, T57).

Topics can be described and changed. A broker describes only itself, and none of its keys changes
while it runs: the allow-list of dynamic keys is empty (S35). Groups have no keys of their own yet;
describing them is not an error. Every other type is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from operator import attrgetter

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import Option, options_of
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import is_legal_topic_name
from tidemill.metadata.controller.controller import ConfigChange
from tidemill.metadata.image.topic_config import AlterOp, ConfigSource, DescribedKey, describe_topic
from tidemill.server.request.authorizer import Operation, Resource, ResourceType, cluster, topic
from tidemill.server.request.context import TopicContext

__all__ = ["ConfigResourceType", "describe_resource", "plan_alteration"]


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
            return []
        case _:
            raise _unsupported(kind)


def plan_alteration(
    context: TopicContext,
    kind: int,
    name: str,
    changes: Sequence[tuple[str, AlterOp, str | None]],
    *,
    replace_all: bool,
) -> ConfigChange:
    """The change for the cluster to make; KafkaError if the resource cannot be changed."""
    _check_allowed(context, Operation.ALTER_CONFIGS, kind, name)
    match kind:
        case ConfigResourceType.TOPIC:
            _check_topic_name(name)
            return ConfigChange(name=name, changes=changes, replace_all=replace_all)
        case ConfigResourceType.BROKER:
            detail = "no key of a broker can be changed while it runs"
            raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
        case ConfigResourceType.GROUP:
            raise KafkaError(ErrorCode.INVALID_CONFIG, "groups have no keys of their own yet")
        case _:
            raise _unsupported(kind)


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
    return describe_topic(found.overrides, context.services.config, keys)


def _describe_broker(
    context: TopicContext, name: str, keys: Collection[str] | None
) -> list[DescribedKey]:
    if not name:
        return []  # defaults for all brokers, set at run time: there are none
    config = context.services.config
    if name != str(config.node_id):
        detail = f"ask broker {config.node_id} only for its own configuration"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return [
        _described(option, attrgetter(field)(config))
        for field, option in options_of(BrokerConfig).items()
        if keys is None or option.key in keys
    ]


def _described(option: Option, value: object) -> DescribedKey:
    default = (option.key, option.render(option.default), ConfigSource.DEFAULT)
    synonyms = [default]
    if value != option.parse(option.default):
        synonyms.insert(0, (option.key, option.render(value), ConfigSource.STATIC_BROKER))
    _, shown, source = synonyms[0]
    return DescribedKey(option, shown, source, synonyms, option.doc)
