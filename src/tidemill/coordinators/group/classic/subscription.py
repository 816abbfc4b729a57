"""The topics that a member of a classic group subscribes to.

Only the group's leader needs subscriptions to make the plan. The coordinator reads them for another
reason: committed offsets of a topic that a live member reads must neither expire nor be deleted
(T43).
"""

from __future__ import annotations

from tidemill.coordinators.group.base.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    try_subscription,
)

__all__ = ["CONSUMER_PROTOCOL_TYPE", "try_subscribed_topics"]


def try_subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None if these bytes are not a subscription."""
    subscription = try_subscription(metadata)
    return None if subscription is None else frozenset(subscription.content.topics)
