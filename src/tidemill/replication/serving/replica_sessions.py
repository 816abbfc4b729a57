"""All sessions in which followers fetch from this broker: one per follower, lane and connection.

A follower fetches in two lanes, a connection each. Of each lane only the newest connection counts:
a request that still comes by an older one was overtaken. Pure.
"""

from __future__ import annotations

from typing import Final, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.serving.replica_session import ReplicaSession
from tidemill.replication.serving.shared_reads import SharedReads

__all__ = ["CATCH_UP_LANE", "HOT_LANE", "ReplicaSessions"]

HOT_LANE: Final = 0
"""For partitions that keep up: every append is told at once."""
CATCH_UP_LANE: Final = 1
"""For partitions that are far behind: in large pieces, with pauses."""
SESSION_ID_MAX: Final = 2**31 - 1


@final
class ReplicaSessions:
    """The sessions by connection; not more than two for each registered broker."""

    def __init__(self) -> None:
        self._by_peer: dict[object, ReplicaSession] = {}
        self._peers: dict[tuple[int, int], object] = {}
        """The connection of each broker and lane."""
        self._last_id = 0
        self.reads = SharedReads()

    def __len__(self) -> int:
        return len(self._by_peer)

    def open(self, peer: object, *, broker_id: int, broker_epoch: int, lane: int) -> ReplicaSession:
        """A new session, in place of that of the same broker and lane."""
        if lane not in (HOT_LANE, CATCH_UP_LANE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no lane {lane}")
        self.end(peer)
        key = (broker_id, lane)
        if key in self._peers:
            self.end(self._peers[key])
        self._last_id = 1 if self._last_id == SESSION_ID_MAX else self._last_id + 1
        session = ReplicaSession(
            self._last_id, broker_id=broker_id, broker_epoch=broker_epoch, lane=lane
        )
        self._by_peer[peer] = session
        self._peers[key] = peer
        return session

    def find(
        self, peer: object, session_id: int, *, broker_id: int, broker_epoch: int
    ) -> ReplicaSession:
        """The session that this connection has opened; KafkaError if it has ended."""
        session = self._by_peer.get(peer)
        if (
            session is None
            or session.session_id != session_id
            or session.broker_id != broker_id
            or session.broker_epoch != broker_epoch
        ):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return session

    def try_find(self, peer: object) -> ReplicaSession | None:
        return self._by_peer.get(peer)

    def end(self, peer: object) -> None:
        """The connection is gone; no effect if it has no session."""
        session = self._by_peer.pop(peer, None)
        if session is not None:
            del self._peers[(session.broker_id, session.lane)]
            session.close()
