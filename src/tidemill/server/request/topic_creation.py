"""Creates topics with default settings: by this broker if it is the controller, else through it.

Metadata makes topics that clients use for the first time, the group coordinator its offsets topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.client.network.errors import error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.rules.topic_planner import TopicResult, TopicSpec
from tidemill.server.request.controller_forwarding import Requester, forward
from tidemill.server.request.services import TopicServices
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

__all__ = ["create_with_defaults"]

VERSION = 7
TIMEOUT_MS = 5_000


async def create_with_defaults(
    services: TopicServices,
    names: Sequence[str],
    *,
    requester: Requester,
    by_coordinator: bool = False,
) -> list[TopicResult]:
    """One result each; KafkaError or StoreUnavailable if they may not exist."""
    if services.cluster.is_controller:
        specs = [TopicSpec(name=name, by_coordinator=by_coordinator) for name in names]
        return await services.cluster.create_topics(specs)
    # Without settings: an internal topic is accepted only with its coordinator's own ones.
    wanted = [CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in names]
    request = CreateTopicsRequest(topics=wanted, timeout_ms=TIMEOUT_MS)
    response = await forward(
        services, ApiKey.CREATE_TOPICS, request, version=VERSION, requester=requester
    )
    assert isinstance(response, CreateTopicsResponse)
    return [_result(one.name, one.error_code, one.error_message) for one in response.topics]


def _result(name: str, code: int, detail: str | None) -> TopicResult:
    result = TopicResult(name)
    if code != ErrorCode.NONE:
        result.refuse(KafkaError(error_code(code), detail or ""))
    return result
