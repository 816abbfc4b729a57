"""Creates `__consumer_offsets` for the first group.

A broker without groups has no such topic, because it costs fifty logs. The controller creates it
for any broker that is asked, with the settings of `metadata/controller/internal_topics.py`: it is
compacted, which keeps the newest state of each group and partition, and its batches may be large,
because the state of a big group is one record.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.server.request.controller_forwarding import OWN
from tidemill.server.request.services import GroupServices
from tidemill.server.request.topic_creation import create_with_defaults

__all__ = ["ensure_offsets_topic", "offsets_topic_is_usable"]


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
        (result,) = await create_with_defaults(
            services, [OFFSETS_TOPIC], requester=OWN, by_coordinator=True
        )
    except (KafkaError, StoreUnavailable) as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    if result.code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        detail = f"{OFFSETS_TOPIC}: {result.detail or result.code}"
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
