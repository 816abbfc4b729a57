"""The common part of AlterConfigs and IncrementalAlterConfigs: change what was configured (T57).

The two APIs differ in which keys a request leaves alone and in their message classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.controller.controller import ConfigChange
from tidemill.metadata.override_writer import OverrideChange
from tidemill.server.handlers.topics.config_resources import (
    ConfigResourceType,
    KeyChange,
    plan_override_change,
    plan_topic_change,
)
from tidemill.server.handlers.topics.topic_changes import change_topics
from tidemill.server.request.context import TopicContext

__all__ = ["alter_resources", "refuse_resources"]


class ConfigResource(Protocol):
    """One resource of a request, by type and name."""

    resource_type: int
    resource_name: str


Wanted = TypeVar("Wanted", bound=ConfigResource)
Row = TypeVar("Row")


async def alter_resources(
    context: TopicContext,
    resources: Sequence[Wanted],
    make_row: Callable[..., Row],
    *,
    changes_of: Callable[[Wanted], Sequence[KeyChange]],
    replace_all: bool,
    validate_only: bool,
) -> list[Row]:
    """Alter each resource; returns one row of the answer per resource, in order."""
    cluster = context.services.cluster

    def topic(wanted: Wanted) -> ConfigChange:
        changes = changes_of(wanted)
        return plan_topic_change(context, wanted.resource_name, changes, replace_all=replace_all)

    def other(wanted: Wanted) -> OverrideChange:
        kind, name = wanted.resource_type, wanted.resource_name
        changes = changes_of(wanted)
        return plan_override_change(context, kind, name, changes, replace_all=replace_all)

    # Only the controller changes topics, any broker the rest: one may fail without the other.
    topics, others = _by_owner(resources)
    of_topics = await change_topics(
        context,
        topics,
        name_of=attrgetter("resource_name"),
        plan=topic,
        apply=partial(cluster.alter_topic_configs, validate_only=validate_only),
    )
    of_others = await change_topics(
        context,
        others,
        name_of=attrgetter("resource_type", "resource_name"),
        plan=other,
        apply=partial(cluster.alter_overrides, validate_only=validate_only),
    )
    left = {True: iter(of_topics), False: iter(of_others)}
    results = [next(left[_is_topic(wanted)]) for wanted in resources]
    return [
        _row(make_row, wanted, result.code, result.detail)
        for wanted, result in zip(resources, results, strict=True)
    ]


def _by_owner(resources: Sequence[Wanted]) -> tuple[list[Wanted], list[Wanted]]:
    """Topics, and all other resources."""
    topics = [one for one in resources if _is_topic(one)]
    return topics, [one for one in resources if not _is_topic(one)]


def _is_topic(wanted: ConfigResource) -> bool:
    return wanted.resource_type == ConfigResourceType.TOPIC


def refuse_resources(
    resources: Sequence[ConfigResource], make_row: Callable[..., Row], error: KafkaError
) -> list[Row]:
    """The rows of the answer when the whole request is refused."""
    return [_row(make_row, wanted, error.code, error.detail) for wanted in resources]


def _row(make_row: Callable[..., Row], wanted: ConfigResource, code: ErrorCode, detail: str) -> Row:
    return make_row(
        error_code=int(code),
        error_message=detail or None,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )
