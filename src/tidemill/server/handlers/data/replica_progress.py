"""ReplicaProgress (10001), version 0: a follower has flushed; it has no answer.

A follower fetches on while it flushes, and says by this when a flush has ended. If it gets lost,
the follower's next fetch says the same. It counts only on the connection of the follower's session,
behind the fetches that came before it: by another way it could overtake the cut of a log, and speak
of records that are gone.
"""

from __future__ import annotations

from tidemill.core.errors import KafkaError, ProtocolViolation
from tidemill.replication.serving.replica_session import ReplicaSlot
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.replica_progress import (
    ProgressPartition,
    ReplicaProgressRequest,
    ReplicaProgressResponse,
)

__all__ = ["HANDLER"]


def handle(context: DataContext, request: ReplicaProgressRequest) -> None:
    try:
        context.require_broker()
    except KafkaError as error:
        raise ProtocolViolation("ReplicaProgress is for brokers") from error
    session = context.services.replica_sessions.try_find(context.peer)
    if (
        session is None
        or session.broker_id != request.broker_id
        or session.broker_epoch != request.broker_epoch
    ):
        return
    for topic in request.topics:
        for told in topic.partitions:
            slot = session.slots.get((topic.topic_id, told.partition_index))
            if slot is not None and _counts(slot, told):
                slot.partition.follower_flushed(session.broker_id, told.flushed_offset)


def _counts(slot: ReplicaSlot, told: ProgressPartition) -> bool:
    """Only in the epoch in which the follower has fetched: the next one may make it cut its log."""
    return slot.leader_epoch == told.leader_epoch == slot.partition.leader_epoch


HANDLER = Handler(
    api_key=ApiKey.REPLICA_PROGRESS,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(ReplicaProgressResponse),
    is_internal=True,
)
