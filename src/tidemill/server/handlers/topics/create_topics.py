"""CreateTopics (19), versions 2..7: create topics; served by the controller.

v4 -1 for the broker's default partitions and replicas; v5 flexible, and the answer has the topic's
configuration; v6 as v5; v7 topic ids.

Results are in the order of the request. Each topic succeeds or fails by itself; a name that occurs
twice is refused. An internal topic is made with its coordinator's settings; a request
that names other ones for it is refused. The answer leaves when the topic is in this broker's image
and its logs here are created (T21, T22). `validate_only` checks everything and creates nothing.

Left out: the timeout; a request ends when the coordination store has the change.
"""

from __future__ import annotations

from functools import partial

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.described_keys import describe_topic
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.metadata.rules.topic_planner import TopicResult, TopicSpec
from tidemill.metadata.special_topics.views import VIEW_OF
from tidemill.server.handlers.topics.topic_changes import (
    answered_once,
    change_topics,
    wait_usable,
)
from tidemill.server.request.authorizer import Operation, cluster, topic
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

__all__ = ["HANDLER"]

FIRST_WITH_CONFIGS = 5
TOPICS_PER_SLICE = 10
"""Topics described in one slice of the loop; each has about thirty keys (S11)."""


def handle(context: TopicContext, request: CreateTopicsRequest) -> Answer:
    return _create(context, request)


async def _create(context: TopicContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    results = await change_topics(
        context,
        request.topics,
        name_of=lambda wanted: wanted.name,
        plan=partial(_plan, context),
        apply=partial(context.services.cluster.create_topics, validate_only=request.validate_only),
    )
    await wait_usable(context.services.pending_logs, results)
    response = CreateTopicsResponse()
    names = [wanted.name for wanted in request.topics]
    pacer = Pacer(TOPICS_PER_SLICE)
    for wanted, result in answered_once(names, request.topics, results):
        await pacer.step()
        answered = _answer(context, wanted.name, result)
        if request.validate_only:
            answered.topic_id = ZERO_UUID  # the id in the plan was never given to a topic
        response.topics.append(answered)
    return response


def _plan(context: TopicContext, wanted: CreatableTopic) -> TopicSpec:
    allowed = context.allows(Operation.CREATE, cluster()) or context.allows(
        Operation.CREATE, topic(wanted.name)
    )
    if not allowed:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    overrides = {one.name: one.value for one in wanted.configs}
    base = overrides.get(VIEW_OF)
    if base and not context.allows(Operation.READ, topic(base)):
        # Who may read the view reads what its maker may read.
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{base} may not be read")
    assignments = {one.partition_index: one.broker_ids for one in wanted.assignments}
    if len(assignments) != len(wanted.assignments):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    return TopicSpec(
        name=wanted.name,
        partitions=wanted.num_partitions,
        replication_factor=wanted.replication_factor,
        assignments=assignments,
        overrides=overrides,
        by_coordinator=_without_settings(wanted),
    )


def _without_settings(wanted: CreatableTopic) -> bool:
    """Whether the request leaves all settings to the broker, as a broker asks the controller."""
    defaults = wanted.num_partitions == wanted.replication_factor == -1
    return defaults and not wanted.assignments and not wanted.configs


def _answer(context: TopicContext, name: str, result: TopicResult) -> CreatableTopicResult:
    answered = CreatableTopicResult(
        name=name, error_code=int(result.code), error_message=result.detail or None
    )
    if result.topic is not None:
        answered.topic_id = result.topic.topic_id
        if context.version >= FIRST_WITH_CONFIGS:
            _describe(context, result.topic, answered)
    return answered


def _describe(context: TopicContext, made: TopicImage, answered: CreatableTopicResult) -> None:
    """Add the effective configuration, unless the client may not describe it (T21)."""
    if not context.allows(Operation.DESCRIBE_CONFIGS, topic(made.name)):
        answered.topic_config_error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        answered.configs = None
        return
    answered.num_partitions = len(made.partitions)
    answered.replication_factor = made.replication_factor
    answered.configs = [
        CreatableTopicConfigs(name=key.option.key, value=key.value, config_source=int(key.source))
        for key in describe_topic(made, context.services.config)
    ]


def _refuse(request: CreateTopicsRequest, error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name=wanted.name,
                error_code=int(error.code),
                error_message=error.detail or None,
            )
            for wanted in request.topics
        ]
    )


HANDLER = Handler(
    api_key=ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    handle=handle,
    refuse=_refuse,
    by_controller=True,
)
