"""The topics that a member of a classic group subscribes to.

Only the group's leader needs subscriptions to make the plan. The coordinator reads them for another
reason: committed offsets of a topic that a live member reads must neither expire nor be deleted
(T43).
"""

from __future__ import annotations

from tidemill.core.errors import ProtocolViolation
from tidemill.wire.generated.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidemill.wire.primitives import Reader

__all__ = ["CONSUMER_PROTOCOL_TYPE", "try_subscribed_topics"]

CONSUMER_PROTOCOL_TYPE = "consumer"
"""Other types (Connect, schema registries) have metadata in their own formats."""


def try_subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None if these bytes are not a subscription.

    Later versions only add fields, so a newer version and bytes after the last known field are
    accepted. The cost of hostile input is bounded by its length.
    """
    reader = Reader(metadata)
    try:
        version = reader.int16()
        if version < 0:
            return None
        known = min(version, ConsumerProtocolSubscription.version_max)
        return frozenset(ConsumerProtocolSubscription.read(reader, known).topics)
    except ProtocolViolation:
        return None
