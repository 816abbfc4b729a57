"""Creates `__consumer_offsets` for the first group.

A broker without groups has no such topic, because it costs fifty logs. The controller creates it
for any broker that is asked, with the settings of `metadata/controller/internal_topics.py`: it is
compacted, which keeps the newest state of each group and partition, and its batches may be large,
because the state of a big group is one record.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.metadata.controller.controller import TopicSpec
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.server.request.controller_forwarding import ask_controller
from tidemill.server.request.services import GroupServices
from tidemill.wire.generated.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

__all__ = ["ensure_offsets_topic", "offsets_topic_is_usable"]

TIMEOUT_MS = 5_000


def offsets_topic_is_usable(services: GroupServices) -> bool:
    """Whether the topic exists and this broker has tried to open its logs."""
    made = OFFSETS_TOPIC in services.cluster.image.topics
    return made and not services.pending_logs.has_untried(OFFSETS_TOPIC)


async def ensure_offsets_topic(services: GroupServices) -> None:
    """Create the topic unless it exists, and wait for its logs.

    KafkaError COORDINATOR_NOT_AVAILABLE if that fails.
    """
    if OFFSETS_TOPIC not in services.cluster.image.topics:
        await _create(services)
    await services.pending_logs.wait_tried([OFFSETS_TOPIC])


async def _create(services: GroupServices) -> None:
    try:
        if services.cluster.is_controller:
            spec = TopicSpec(name=OFFSETS_TOPIC, by_coordinator=True)
            (result,) = await services.cluster.create_topics([spec])
            code, detail = result.code, result.detail
        else:
            code, detail = await _create_at_controller(services)
    except (KafkaError, StoreUnavailable) as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}: {detail or code}")


async def _create_at_controller(services: GroupServices) -> tuple[ErrorCode, str]:
    # Without settings: only the controller's own ones are accepted for this topic.
    wanted = CreatableTopic(name=OFFSETS_TOPIC, num_partitions=-1, replication_factor=-1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
    response = await ask_controller(
        services.net, services.cluster.image, request, CreateTopicsResponse
    )
    (answered,) = response.topics
    return ErrorCode(answered.error_code), answered.error_message or ""
