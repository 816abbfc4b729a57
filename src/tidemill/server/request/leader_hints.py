"""Names the current leader, which spares a Metadata round after NOT_LEADER_OR_FOLLOWER (T28).

Produce and Fetch have classes of their own for the same fields, so the caller passes its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from tidemill.core.errors import ErrorCode
from tidemill.core.ids import NO_LEADER
from tidemill.server.request.context import AnyContext

__all__ = ["LeaderHint", "leader_endpoints", "try_leader_hint"]

T = TypeVar("T")

_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class LeaderHint(Protocol):
    """A generated `LeaderIdAndEpoch`."""

    leader_id: int
    leader_epoch: int


def try_leader_hint(
    context: AnyContext, topic: str, index: int, hint: Callable[..., T], *, code: int
) -> T | None:
    """The leader and its epoch, as a `hint`; None if there is no such partition.

    A broker that refuses because it may not lead never names itself, whatever its image says.
    """
    partition = context.image.partition(topic, index)
    if partition is None:
        return None
    leader = partition.leader
    if code == _NOT_LEADER and leader == context.services.config.static.node_id:
        leader = NO_LEADER
    return hint(leader_id=leader, leader_epoch=partition.leader_epoch)


def leader_endpoints(
    context: AnyContext, hints: Iterable[LeaderHint | None], endpoint: Callable[..., T]
) -> list[T]:
    """The address of each leader that `hints` name and that is alive, once each."""
    leaders = sorted({hint.leader_id for hint in hints if hint is not None})
    brokers = [context.image.brokers[one] for one in leaders if one in context.image.brokers]
    return [
        endpoint(
            node_id=broker.broker_id,
            host=context.endpoint_of(broker).host,
            port=context.endpoint_of(broker).port,
            rack=broker.rack or None,
        )
        for broker in brokers
    ]
