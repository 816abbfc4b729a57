"""CreatePartitions (37), versions 0..3: add partitions to topics; served by the controller.

v1 as v0; v2 flexible; v3 as v2.

Results are in the order of the request; a name that occurs twice is refused. The answer leaves
when the new partitions are in this broker's image and their logs here are created (T22).
`validate_only` checks everything and changes nothing.

Left out: the timeout; a request ends when the coordination store has the change.
"""

from __future__ import annotations

from functools import partial

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.rules.topic_planner import PartitionsSpec
from tidemill.server.handlers.topics.topic_changes import (
    answered_once,
    change_topics,
    wait_usable,
)
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

__all__ = ["HANDLER"]


def handle(context: TopicContext, request: CreatePartitionsRequest) -> Answer:
    return _create(context, request)


async def _create(
    context: TopicContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    results = await change_topics(
        context,
        request.topics,
        name_of=lambda wanted: wanted.name,
        plan=partial(_plan, context),
        apply=partial(
            context.services.cluster.create_partitions, validate_only=request.validate_only
        ),
    )
    await wait_usable(context.services.pending_logs, results)
    names = [wanted.name for wanted in request.topics]
    return CreatePartitionsResponse(
        results=[
            _answer(wanted, result.code, result.detail)
            for wanted, result in answered_once(names, request.topics, results)
        ]
    )


def _plan(context: TopicContext, wanted: CreatePartitionsTopic) -> PartitionsSpec:
    if not context.allows(Operation.ALTER, topic(wanted.name)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    chosen = wanted.assignments
    return PartitionsSpec(
        name=wanted.name,
        count=wanted.count,
        assignments=None if chosen is None else [one.broker_ids for one in chosen],
    )


def _answer(
    wanted: CreatePartitionsTopic, code: ErrorCode, detail: str
) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(
        name=wanted.name, error_code=int(code), error_message=detail or None
    )


def _refuse(request: CreatePartitionsRequest, error: KafkaError) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[_answer(wanted, error.code, error.detail) for wanted in request.topics]
    )


HANDLER = Handler(
    api_key=ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    handle=handle,
    refuse=_refuse,
    by_controller=True,
)
