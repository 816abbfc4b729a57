"""AlterConfigs (33), versions 0..2: replace all overrides of a topic by those given (T57).

v1 as v0; v2 flexible. Deprecated in Kafka, since two admins who each change one key undo each
other's work; IncrementalAlterConfigs does not have the problem.

Topics only; what else can be named is in config_resources.py.
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
    results = await change_topics(
        context,
        request.resources,
        name_of=lambda wanted: (wanted.resource_type, wanted.resource_name),
        plan=partial(_plan, context),
        apply=partial(
            context.services.cluster.alter_topic_configs, validate_only=request.validate_only
        ),
    )
    return AlterConfigsResponse(
        responses=[
            _answer(wanted, result.code, result.detail)
            for wanted, result in zip(request.resources, results, strict=True)
        ]
    )


def _plan(context: TopicContext, wanted: AlterConfigsResource) -> ConfigChange:
    changes = [(one.name, AlterOp.SET, one.value) for one in wanted.configs]
    return plan_alteration(
        context, wanted.resource_type, wanted.resource_name, changes, replace_all=True
    )


def _answer(
    wanted: AlterConfigsResource, code: ErrorCode, detail: str
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=int(code),
        error_message=detail or None,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )


def _refuse(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[_answer(wanted, error.code, error.detail) for wanted in request.resources]
    )


HANDLER = Handler(api_key=ApiKey.ALTER_CONFIGS, versions=(0, 2), handle=handle, refuse=_refuse)
