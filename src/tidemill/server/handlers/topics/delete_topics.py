"""DeleteTopics (20), versions 1..6: delete topics; served by the controller.

v4 flexible; v5 error messages; v6 by name or by id.

Results are in the order of the request; a topic that occurs twice is refused. The answer leaves
when the topics are gone from this broker's image (T22); their logs are deleted in the background.

Left out: the timeout; a request ends when the coordination store has the change.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.metadata.rules.topic_planner import TopicResult
from tidemill.server.handlers.topics.topic_changes import (
    answered_once,
    change_topics,
)
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

__all__ = ["HANDLER"]

FIRST_WITH_IDS = 6


def handle(context: TopicContext, request: DeleteTopicsRequest) -> Answer:
    return _delete(context, request)


async def _delete(context: TopicContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    wanted = _wanted(context.version, request)
    # All of this is read before the deletion, which removes it from the image.
    names = [_try_name(context, one) for one in wanted]
    keys = [_identity(context, one) for one in wanted]
    results = await change_topics(
        context,
        wanted,
        name_of=partial(_identity, context),
        plan=partial(_plan, context),
        apply=context.services.cluster.delete_topics,
    )
    answers = [
        _answer(context, one, name, result)
        for one, name, result in zip(wanted, names, results, strict=True)
    ]
    _repeat_questions(answers, keys, wanted)
    return DeleteTopicsResponse(
        responses=[answer for answer, _ in answered_once(keys, answers, results)]
    )


def _repeat_questions(
    answers: list[DeletableTopicResult],
    keys: list[str | UUID],
    wanted: list[DeleteTopicState],
) -> None:
    """Call a topic that was asked for several times as the client did: by name, id, or both."""
    times = Counter(keys)
    asked = list(zip(keys, wanted, strict=True))
    names = {key: one.name for key, one in asked if one.name is not None}
    ids = {key: one.topic_id for key, one in asked if one.name is None}
    for answer, key in zip(answers, keys, strict=True):
        if times[key] > 1:
            answer.name, answer.topic_id = names.get(key), ids.get(key, ZERO_UUID)


def _wanted(version: int, request: DeleteTopicsRequest) -> list[DeleteTopicState]:
    if version >= FIRST_WITH_IDS:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]


def _try_name(context: TopicContext, wanted: DeleteTopicState) -> str | None:
    """The topic's name; None for an id that no topic has."""
    return context.image.names.get(wanted.topic_id) if wanted.name is None else wanted.name


def _identity(context: TopicContext, wanted: DeleteTopicState) -> str | UUID:
    """What tells topics apart; the id alone if the client may not know whose it is."""
    name = _try_name(context, wanted)
    if name is None or (wanted.name is None and _is_hidden(context, name)):
        return wanted.topic_id
    return name


def _is_hidden(context: TopicContext, name: str) -> bool:
    return not context.allows(Operation.DESCRIBE, topic(name))


def _plan(context: TopicContext, wanted: DeleteTopicState) -> str | UUID:
    if (wanted.name is None) == (wanted.topic_id == ZERO_UUID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
    name = _try_name(context, wanted)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    if not context.allows(Operation.DELETE, topic(name)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return wanted.topic_id if wanted.name is None else wanted.name


def _answer(
    context: TopicContext, wanted: DeleteTopicState, name: str | None, result: TopicResult
) -> DeletableTopicResult:
    # A client that asks by id and may not describe the topic must not learn its name from this.
    hidden = wanted.name is None and name is not None and _is_hidden(context, name)
    return DeletableTopicResult(
        name=None if hidden else name,
        topic_id=wanted.topic_id if result.topic is None else result.topic.topic_id,
        error_code=int(result.code),
        error_message=result.detail or None,
    )


def _refuse(request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=one.name, topic_id=one.topic_id, error_code=int(error.code))
            for one in wanted
        ]
    )


HANDLER = Handler(
    api_key=ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    handle=handle,
    refuse=_refuse,
    by_controller=True,
)
