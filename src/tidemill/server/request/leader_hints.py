"""Where the leader is now: spares a Metadata round after NOT_LEADER_OR_FOLLOWER (T28).

Produce and Fetch have hints of the same form in classes of their own; the caller says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from tidemill.server.request.context import AnyContext

__all__ = ["LeaderHint", "leader_endpoints", "leader_hint"]

T = TypeVar("T")


class LeaderHint(Protocol):
    """A generated `LeaderIdAndEpoch`."""

    leader_id: int
    leader_epoch: int


def leader_hint(context: AnyContext, topic: str, index: int, made: Callable[..., T]) -> T | None:
    """Who leads, in which epoch; None if there is no such partition."""
    partition = context.image.partition(topic, index)
    if partition is None:
        return None
    return made(leader_id=partition.leader, leader_epoch=partition.leader_epoch)


def leader_endpoints(
    context: AnyContext, hints: Iterable[LeaderHint | None], made: Callable[..., T]
) -> list[T]:
    """Where the leaders that an answer names are reached, each once; those alive only."""
    leaders = sorted({hint.leader_id for hint in hints if hint is not None})
    brokers = [context.image.brokers[one] for one in leaders if one in context.image.brokers]
    return [
        made(
            node_id=broker.broker_id,
            host=context.endpoint_of(broker).host,
            port=context.endpoint_of(broker).port,
            rack=broker.rack or None,
        )
        for broker in brokers
    ]
