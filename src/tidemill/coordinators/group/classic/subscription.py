"""The topics that a member of a classic group subscribed to.

The coordinator need not understand subscriptions: the group's leader does. But committed offsets of
a topic that a live member reads must neither expire nor be deleted (T43), so it looks.
"""

from __future__ import annotations

from tidemill.core.errors import ProtocolViolation
from tidemill.wire.generated.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidemill.wire.primitives import Reader

__all__ = ["CONSUMER_PROTOCOL_TYPE", "try_subscribed_topics"]

CONSUMER_PROTOCOL_TYPE = "consumer"
"""Other types (Connect, schema registries) have metadata of their own kind."""


def try_subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None if these bytes are no subscription.

    Bytes after the last field are a later version's, as is a version above the newest known one:
    versions only add fields. What a peer invented costs no more than its own length.
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
