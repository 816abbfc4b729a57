"""The common part of AlterConfigs and IncrementalAlterConfigs: change what was configured (T57).

The two APIs differ in which keys a request leaves alone and in their message classes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import ConfigChange
from tidemill.server.handlers.topics.config_resources import (
    ConfigResourceType,
    KeyChange,
    plan_override_change,
    plan_topic_change,
)
from tidemill.server.handlers.topics.topic_changes import change_topics
from tidemill.server.request.context import TopicContext
from tidemill.server.request.controller_forwarding import forward, requester_of
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.message import Message

__all__ = ["alter_resources", "passing_on", "refuse_resources"]


class ConfigResource(Protocol):
    """One resource of a request, by type and name."""

    resource_type: int
    resource_name: str


Wanted = TypeVar("Wanted", bound=ConfigResource)
Row = TypeVar("Row")
PassOn = Callable[[list[Wanted]], Awaitable[list[Row]]]
"""Sends some of the resources of a request to the controller; their rows of its answer."""


async def alter_resources(
    context: TopicContext,
    resources: Sequence[Wanted],
    make_row: Callable[..., Row],
    *,
    changes_of: Callable[[Wanted], Sequence[KeyChange]],
    replace_all: bool,
    validate_only: bool,
    pass_on: PassOn[Wanted, Row],
) -> list[Row]:
    """Alter each resource; returns one row of the answer per resource, in order.

    Only the controller alters them; another broker sends them there with `pass_on`.
    """
    cluster = context.services.cluster

    def topic(wanted: Wanted) -> ConfigChange:
        changes = changes_of(wanted)
        return plan_topic_change(context, wanted.resource_name, changes, replace_all=replace_all)

    def other(wanted: Wanted) -> OverrideChange:
        kind, name = wanted.resource_type, wanted.resource_name
        changes = changes_of(wanted)
        return plan_override_change(context, kind, name, changes, replace_all=replace_all)

    if not cluster.is_controller:
        return await _alter_elsewhere(context, resources, make_row, other, pass_on)
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


def passing_on(
    context: TopicContext, api_key: ApiKey, part_of: Callable[[list[Wanted]], Message]
) -> PassOn[Wanted, Any]:
    """Sends a part of a request to the controller, in the request's own version."""

    async def pass_on(some: list[Wanted]) -> list[Any]:
        response: Any = await forward(
            context.services,
            api_key,
            part_of(some),
            version=context.version,
            requester=requester_of(context),
        )
        rows: list[Any] = response.responses
        return rows

    return pass_on


async def _alter_elsewhere(
    context: TopicContext,
    resources: Sequence[Wanted],
    make_row: Callable[..., Row],
    plan: Callable[[Wanted], OverrideChange],
    pass_on: PassOn[Wanted, Row],
) -> list[Row]:
    """Check what only this broker can check, its own keys; the controller does the rest."""
    rows: dict[int, Row] = {}
    for position, wanted in enumerate(resources):
        if wanted.resource_type == ConfigResourceType.BROKER:
            try:
                (checked,) = await context.services.cluster.check_overrides([plan(wanted)])
            except KafkaError as error:
                rows[position] = _row(make_row, wanted, error.code, error.detail)
            else:
                if checked.code is not ErrorCode.NONE:
                    rows[position] = _row(make_row, wanted, checked.code, checked.detail)
    left = [position for position in range(len(resources)) if position not in rows]
    if left:
        try:
            answered = await pass_on([resources[position] for position in left])
        except KafkaError as error:
            answered = refuse_resources([resources[one] for one in left], make_row, error)
        rows.update(zip(left, answered, strict=True))
    return [rows[position] for position in range(len(resources))]


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
