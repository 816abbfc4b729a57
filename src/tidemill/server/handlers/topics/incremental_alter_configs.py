"""IncrementalAlterConfigs (44), versions 0..1: set, delete, append to or subtract from keys (T57).

v1 flexible. Keys that the request does not name keep their values. Of one resource, either all
changes happen or none.

config_resources.py lists the types of resource.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
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
from tidemill.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["HANDLER"]

_OPERATIONS: dict[int, AlterOp] = {int(operation): operation for operation in AlterOp}


def handle(context: TopicContext, request: IncrementalAlterConfigsRequest) -> Answer:
    return _alter(context, request)


async def _alter(
    context: TopicContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    def part_of(some: list[AlterConfigsResource]) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(resources=some, validate_only=request.validate_only)

    rows = await alter_resources(
        context,
        request.resources,
        AlterConfigsResourceResponse,
        changes_of=_changes,
        replace_all=False,
        validate_only=request.validate_only,
        pass_on=passing_on(context, ApiKey.INCREMENTAL_ALTER_CONFIGS, part_of),
    )
    return IncrementalAlterConfigsResponse(responses=rows)


def _changes(wanted: AlterConfigsResource) -> list[KeyChange]:
    return [_change(one) for one in wanted.configs]


def _change(wanted: AlterableConfig) -> KeyChange:
    operation = _OPERATIONS.get(wanted.config_operation)
    if operation is None:
        detail = f"there is no operation {wanted.config_operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return wanted.name, operation, wanted.value


def _refuse(
    request: IncrementalAlterConfigsRequest, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    rows = refuse_resources(request.resources, AlterConfigsResourceResponse, error)
    return IncrementalAlterConfigsResponse(responses=rows)


HANDLER = Handler(
    api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), handle=handle, refuse=_refuse
)
