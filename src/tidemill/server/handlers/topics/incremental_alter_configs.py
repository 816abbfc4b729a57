"""IncrementalAlterConfigs (44), versions 0..1: set, delete, append to or subtract from keys (T57).

v1 flexible. Keys that the request does not name stay as they are; all changes of one resource
happen or none. Topics only; what else can be named is in config_resources.py.
"""

from __future__ import annotations

from functools import partial

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.controller.controller import ConfigChange
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.server.handlers.topics.config_resources import plan_alteration
from tidemill.server.handlers.topics.topic_changes import change_topics
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

_OPS: dict[int, AlterOp] = {int(op): op for op in AlterOp}


def handle(context: TopicContext, request: IncrementalAlterConfigsRequest) -> Answer:
    return _alter(context, request)


async def _alter(
    context: TopicContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    results = await change_topics(
        context,
        request.resources,
        name_of=lambda wanted: (wanted.resource_type, wanted.resource_name),
        plan=partial(_plan, context),
        apply=partial(
            context.services.cluster.alter_topic_configs, validate_only=request.validate_only
        ),
    )
    return IncrementalAlterConfigsResponse(
        responses=[
            _answer(wanted, result.code, result.detail)
            for wanted, result in zip(request.resources, results, strict=True)
        ]
    )


def _plan(context: TopicContext, wanted: AlterConfigsResource) -> ConfigChange:
    changes = [_change(one) for one in wanted.configs]
    return plan_alteration(
        context, wanted.resource_type, wanted.resource_name, changes, replace_all=False
    )


def _change(wanted: AlterableConfig) -> tuple[str, AlterOp, str | None]:
    op = _OPS.get(wanted.config_operation)
    if op is None:
        detail = f"there is no operation {wanted.config_operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return wanted.name, op, wanted.value


def _answer(
    wanted: AlterConfigsResource, code: ErrorCode, detail: str
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=int(code),
        error_message=detail or None,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )


def _refuse(
    request: IncrementalAlterConfigsRequest, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_answer(wanted, error.code, error.detail) for wanted in request.resources]
    )


HANDLER = Handler(
    api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), handle=handle, refuse=_refuse
)
