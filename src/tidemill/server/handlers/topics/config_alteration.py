"""The common part of AlterConfigs and IncrementalAlterConfigs: change overrides of topics (T57).

The two APIs differ in which keys a request leaves alone and in their message classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.controller.controller import ConfigChange
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.server.handlers.topics.config_resources import plan_alteration
from tidemill.server.handlers.topics.topic_changes import change_topics
from tidemill.server.request.context import TopicContext

__all__ = ["KeyChange", "alter_resources", "refuse_resources"]

KeyChange = tuple[str, AlterOp, str | None]
"""Key, operation, value."""


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

    def plan(wanted: Wanted) -> ConfigChange:
        kind, name = wanted.resource_type, wanted.resource_name
        return plan_alteration(context, kind, name, changes_of(wanted), replace_all=replace_all)

    results = await change_topics(
        context,
        resources,
        name_of=lambda wanted: (wanted.resource_type, wanted.resource_name),
        plan=plan,
        apply=partial(context.services.cluster.alter_topic_configs, validate_only=validate_only),
    )
    return [
        _row(make_row, wanted, result.code, result.detail)
        for wanted, result in zip(resources, results, strict=True)
    ]


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
