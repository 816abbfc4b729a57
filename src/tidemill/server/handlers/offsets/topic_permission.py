"""Whether a client may access the topic that an offset request names, by name or by id."""

from __future__ import annotations

from uuid import UUID

from tidemill.core.ids import ZERO_UUID
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import GroupContext

__all__ = ["allows_topic"]


def allows_topic(context: GroupContext, operation: Operation, *, name: str, topic_id: UUID) -> bool:
    """Also true for an id that no topic has: there is nothing to forbid."""
    if topic_id is not ZERO_UUID:
        name = context.image.names.get(topic_id, "")
    return not name or context.allows(operation, topic(name))
