"""Metadata (3), versions 0..13: brokers, topics and the leaders of partitions.

v1 null means all topics, empty means none (v0: empty means all, T14); v4 the client may forbid
auto-creation; v8-v10 authorized operations of the cluster; v10 topic ids; v12 lookup by id; v13 an
error for the whole request.

Who asks may have just lost a leader that has died. What the kernel knows of that reaches the loop
with other events and takes some turns, so an answer that names other brokers waits for those.

A topic that is requested by name and does not exist is created, within the quota of the client
(S39), and the answer shows it as ready (T15). Internal topics are not: a coordinator makes its own.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import ZERO_UUID, is_legal_topic_name
from tidemill.core.loop.pacing import Pacer, next_turn, run_steps
from tidemill.core.loop.steps import Steps, finished
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS, TopicImage
from tidemill.server.handlers.cluster.partition_description import describe_partition
from tidemill.server.handlers.topics.topic_changes import wait_usable
from tidemill.server.request.authorized_operations import authorized_operations
from tidemill.server.request.authorizer import Operation, cluster, topic
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.controller_forwarding import requester_of
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.topic_creation import create_with_defaults
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

__all__ = ["HANDLER"]

FIRST_BY_ID = 12
"""Earlier versions carry topic ids that a client may not ask by; names are not null in them."""
TOPICS_PER_SLICE = 100
"""Topics described in one slice of the loop (S11); a large topic counts for several."""
PARTITIONS_PER_TOPIC = 10
"""So many partitions cost as much as the topic itself."""
LOSS_TURNS = 6
"""From the end of a connection to a leader until its lane has noted that, and some to spare."""


def handle(context: ClusterContext, request: MetadataRequest) -> Answer:
    if _lacks_any(context, request) and context.services.cluster.try_take_look():
        return _handle_newest(context, request)
    if len(context.image.brokers) > 1:
        return _handle_after_losses(context, request)
    return _handle(context, request)


def _handle(context: ClusterContext, request: MetadataRequest) -> Answer:
    names = _names_to_create(context, request)
    wanted = [] if names else list(_wanted(context, request))
    if names or sum(_cost(context, one) for one in wanted) > TOPICS_PER_SLICE:
        return _handle_in_slices(context, request, names)
    response = _without_topics(context, request)
    response.topics = [finished(_describe(context, request, one)) for one in wanted]
    return response


def _lacks_any(context: ClusterContext, request: MetadataRequest) -> bool:
    """Whether a topic is asked for that this broker has not heard of."""
    image = context.image
    return any(
        one.name not in image.topics if one.name else one.topic_id not in image.names
        for one in request.topics or ()
    )


async def _handle_newest(context: ClusterContext, request: MetadataRequest) -> MetadataResponse:
    """Another broker may have made the topic a moment ago (T22)."""
    with suppress(StoreUnavailable):
        await context.services.cluster.read_newest()
    return await _handle_after_losses(context, request)


async def _handle_after_losses(
    context: ClusterContext, request: MetadataRequest
) -> MetadataResponse:
    for _ in range(LOSS_TURNS):
        await next_turn()
    answer = _handle(context, request)
    if isinstance(answer, Coroutine):
        answer = await answer
    assert isinstance(answer, MetadataResponse)
    return answer


def _cost(context: ClusterContext, wanted: MetadataRequestTopic) -> int:
    """The cost of describing a topic, in small topics."""
    found = context.image.topics.get(wanted.name or "")
    return 1 if found is None else 1 + len(found.partitions) // PARTITIONS_PER_TOPIC


async def _handle_in_slices(
    context: ClusterContext, request: MetadataRequest, names: list[str]
) -> MetadataResponse:
    refused = await _create(context, names)
    response = _without_topics(context, request)
    pacer = Pacer(TOPICS_PER_SLICE)
    for wanted in list(_wanted(context, request)):
        await pacer.step(_cost(context, wanted))
        described = await run_steps(_describe(context, request, wanted))
        code = refused.get(wanted.name or "")
        if code is not None and described.error_code:
            described.error_code = int(code)
        response.topics.append(described)
    return response


def _wanted(context: ClusterContext, request: MetadataRequest) -> Iterable[MetadataRequestTopic]:
    """The topics of the answer, each once; "all" means those that the client may describe (T61)."""
    everything = request.topics is None or (context.version == 0 and not request.topics)
    if not everything:
        # A short request that repeats a large topic must not get a huge answer.
        return {(one.name, one.topic_id): one for one in request.topics or ()}.values()
    return [
        MetadataRequestTopic(name=name)
        for name in sorted(context.image.topics)
        if context.allows(Operation.DESCRIBE, topic(name))
    ]


def _names_to_create(context: ClusterContext, request: MetadataRequest) -> list[str]:
    services = context.services
    enabled = services.config.current.auto_create_topics_enable
    if not enabled or not request.allow_auto_topic_creation:
        return []
    topics = context.image.topics
    missing = dict.fromkeys(
        wanted.name
        for wanted in request.topics or ()
        if wanted.name
        and wanted.name not in topics
        and wanted.name not in INTERNAL_TOPICS
        and is_legal_topic_name(wanted.name)
    )
    if not missing:
        return []
    allowed = [name for name in missing if context.allows(Operation.CREATE, topic(name))]
    granted = services.quotas.take_auto_create(
        context.peer.client_address, len(allowed), services.clock.monotonic()
    )
    return allowed[:granted]


async def _create(context: ClusterContext, names: list[str]) -> dict[str, ErrorCode]:
    """Create the topics; returns the errors, except that another client was faster."""
    if not names:
        return {}
    try:
        results = await create_with_defaults(
            context.services, names, requester=requester_of(context)
        )
    except (KafkaError, StoreUnavailable):
        # Also if the store has the topics and only its answer was lost: the client asks again.
        return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
    await wait_usable(context.services.pending_logs, results)
    harmless = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    return {result.name: result.code for result in results if result.code not in harmless}


def _without_topics(context: ClusterContext, request: MetadataRequest) -> MetadataResponse:
    image = context.image
    brokers = []
    for broker in image.brokers.values():
        endpoint = context.endpoint_of(broker)
        brokers.append(
            MetadataResponseBroker(
                node_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack or None,
            )
        )
    return MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        cluster_authorized_operations=authorized_operations(
            context, cluster(), request.include_cluster_authorized_operations
        ),
    )


def _describe(
    context: ClusterContext, request: MetadataRequest, wanted: MetadataRequestTopic
) -> Steps[MetadataResponseTopic]:
    by_id = wanted.topic_id != ZERO_UUID
    if by_id and context.version < FIRST_BY_ID:
        return _refusal(context, wanted, ErrorCode.INVALID_REQUEST)
    image = context.image
    found = image.topic_by_id(wanted.topic_id) if by_id else image.topic(wanted.name or "")
    name = found.name if found is not None else wanted.name
    if name is not None and not context.allows(Operation.DESCRIBE, topic(name)):
        return _refusal(context, wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if found is None:
        return _refusal(context, wanted, _why_missing(wanted, by_id))
    return MetadataResponseTopic(
        name=found.name,
        topic_id=found.topic_id,
        is_internal=found.internal,
        partitions=(yield from _partitions(context, found)),
        topic_authorized_operations=authorized_operations(
            context, topic(found.name), request.include_topic_authorized_operations
        ),
    )


def _why_missing(wanted: MetadataRequestTopic, by_id: bool) -> ErrorCode:
    if by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not is_legal_topic_name(wanted.name or ""):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refusal(
    context: ClusterContext, wanted: MetadataRequestTopic, code: ErrorCode
) -> MetadataResponseTopic:
    # The name as it was asked for: a client that asks by id must not learn it from a refusal.
    name = wanted.name if context.version >= FIRST_BY_ID else wanted.name or ""
    return MetadataResponseTopic(error_code=int(code), name=name, topic_id=wanted.topic_id)


def _partitions(
    context: ClusterContext, found: TopicImage
) -> Steps[list[MetadataResponsePartition]]:
    rows: list[MetadataResponsePartition] = []
    count, per_slice = len(found.partitions), TOPICS_PER_SLICE * PARTITIONS_PER_TOPIC
    for first in range(0, count, per_slice):
        if first:
            yield
        rows += [
            describe_partition(context, MetadataResponsePartition, found, index)
            for index in range(first, min(first + per_slice, count))
        ]
    return rows


def _refuse(_request: MetadataRequest, error: KafkaError) -> MetadataResponse:
    return MetadataResponse(error_code=int(error.code))


HANDLER = Handler(
    api_key=ApiKey.METADATA,
    versions=(0, 13),
    handle=handle,
    refuse=_refuse,
    # librdkafka up to 2.16 requests all topics, in flexible versions, with a count of four bytes.
    tail_bytes_max=3,
)
