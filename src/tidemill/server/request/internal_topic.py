"""Creates the topic of a coordinator when the first client asks for that coordinator.

A broker without groups or transactions has no such topic, because it costs fifty logs. The
controller creates it for any broker that is asked, with the settings of
`metadata/special_topics/internal_topics.py`: it is compacted, which keeps the newest state of each
group, partition and transactional id, and its batches may be large, because the state of a big
group is one record.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.server.request.controller_forwarding import OWN
from tidemill.server.request.services import TopicServices
from tidemill.server.request.topic_creation import create_with_defaults

__all__ = ["ensure_internal_topic", "internal_topic_is_usable"]


def internal_topic_is_usable(services: TopicServices, name: str) -> bool:
    """Whether the topic exists and this broker has tried to open its logs."""
    made = name in services.cluster.image.topics
    return made and not services.pending_logs.has_untried(name)


async def ensure_internal_topic(services: TopicServices, name: str) -> None:
    """Create the topic unless it exists, and wait for its logs.

    KafkaError COORDINATOR_NOT_AVAILABLE if that fails.
    """
    if name not in services.cluster.image.topics:
        await _create(services, name)
    await services.pending_logs.wait_tried([name])


async def _create(services: TopicServices, name: str) -> None:
    try:
        (result,) = await create_with_defaults(services, [name], requester=OWN, by_coordinator=True)
    except (KafkaError, StoreUnavailable) as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    if result.code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        detail = f"{name}: {result.detail or result.code}"
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
