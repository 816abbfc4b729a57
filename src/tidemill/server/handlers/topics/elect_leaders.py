"""ElectLeaders (43), versions 0..2: elect the preferred or an unclean leader; by the controller.

v1 unclean elections and an error for the whole request; v2 flexible.

Without a list, all partitions are looked at, and those that need no election are left out of the
answer, as in Kafka. An unclean election takes a replica that may lack acknowledged records: nothing
else does that, unless the topic allows it.

Fields of our own name one partition's leader, as a person has chosen it (`tidemill cluster
repair`): that log wins over the others, whatever was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.cluster import Cluster
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

__all__ = ["HANDLER"]

PREFERRED, UNCLEAN = 0, 1
NOBODY = -1
PARTITIONS_PER_SLICE = 1_000
"""Partitions named or answered in one slice of the loop: about a millisecond (S11)."""


def handle(context: TopicContext, request: ElectLeadersRequest) -> Answer:
    context.require(Operation.ALTER, cluster())
    if request.election_type not in (PREFERRED, UNCLEAN):
        detail = f"there is no election of type {request.election_type}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    if request.chosen_leader != NOBODY:
        named = [len(one.partitions) for one in request.topic_partitions or ()]
        if named != [1] or request.election_type != UNCLEAN:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a leader is chosen for one partition")
    return _elect(context, request)


async def _elect(context: TopicContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    pacer = Pacer(PARTITIONS_PER_SLICE)
    found: dict[TopicPartition, None] = {}
    for one in _partitions(context, request):
        await pacer.step()
        found[one] = None
    wanted = list(found)
    try:
        refusals = await _hold(context.services.cluster, request, wanted)
    except KafkaError as error:
        return ElectLeadersResponse(error_code=int(error.code))
    except StoreUnavailable:
        return ElectLeadersResponse(error_code=int(ErrorCode.REQUEST_TIMED_OUT))
    topics: dict[str, ReplicaElectionResult] = {}
    for (name, index), refusal in zip(wanted, refusals, strict=True):
        await pacer.step()
        code = ErrorCode.NONE if refusal is None else refusal.code
        if request.topic_partitions is None and code is ErrorCode.ELECTION_NOT_NEEDED:
            continue
        topic = topics.setdefault(name, ReplicaElectionResult(topic=name))
        detail = None if refusal is None else refusal.detail or None
        topic.partition_result.append(
            PartitionResult(partition_id=index, error_code=int(code), error_message=detail)
        )
    return ElectLeadersResponse(replica_election_results=list(topics.values()))


async def _hold(
    metadata: Cluster, request: ElectLeadersRequest, wanted: list[TopicPartition]
) -> list[KafkaError | None]:
    if request.chosen_leader == NOBODY:
        is_unclean = request.election_type == UNCLEAN
        return await metadata.elect_leaders(wanted, unclean=is_unclean)
    leader, in_epoch = request.chosen_leader, request.chosen_in_epoch
    return [await metadata.choose_leader(wanted[0], leader, in_epoch=in_epoch)]


def _partitions(context: TopicContext, request: ElectLeadersRequest) -> Iterator[TopicPartition]:
    if request.topic_partitions is None:
        for name, topic in context.image.topics.items():  # of one image, although it may change
            for index in range(len(topic.own_partitions)):
                yield TopicPartition(name, index)
        return
    for one in request.topic_partitions:
        for index in one.partitions:
            yield TopicPartition(one.topic, index)


HANDLER = Handler(
    api_key=ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    handle=handle,
    refuse=refuse_with_error_code(ElectLeadersResponse),
    by_controller=True,
)
