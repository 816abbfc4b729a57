"""AlterConfigs (33), versions 0..2: replace all overrides of a resource by those given (T57).

v1 as v0; v2 flexible. Deprecated in Kafka, because two administrators who each change one key undo
each other's change; IncrementalAlterConfigs does not have this problem.

config_resources.py lists the types of resource.
"""

from __future__ import annotations

from tidemill.core.errors import KafkaError
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.server.handlers.topics.config_alteration import (
    alter_resources,
    passing_on,
    refuse_resources,
)
from tidemill.server.handlers.topics.config_resources import KeyChange
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

__all__ = ["HANDLER"]


def handle(context: TopicContext, request: AlterConfigsRequest) -> Answer:
    return _alter(context, request)


async def _alter(context: TopicContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    def part_of(some: list[AlterConfigsResource]) -> AlterConfigsRequest:
        return AlterConfigsRequest(resources=some, validate_only=request.validate_only)

    rows = await alter_resources(
        context,
        request.resources,
        AlterConfigsResourceResponse,
        changes_of=_changes,
        replace_all=True,
        validate_only=request.validate_only,
        pass_on=passing_on(context, ApiKey.ALTER_CONFIGS, part_of),
    )
    return AlterConfigsResponse(responses=rows)


def _changes(wanted: AlterConfigsResource) -> list[KeyChange]:
    return [(one.name, AlterOp.SET, one.value) for one in wanted.configs]


def _refuse(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    rows = refuse_resources(request.resources, AlterConfigsResourceResponse, error)
    return AlterConfigsResponse(responses=rows)


HANDLER = Handler(api_key=ApiKey.ALTER_CONFIGS, versions=(0, 2), handle=handle, refuse=_refuse)
