"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

| id | epoch | meaning (T35)                                             |
|----|-------|-----------------------------------------------------------|
| 0  | -1    | no session                                                |
| 0  | 0     | open a session; the broker may decline with id 0          |
| n  | 0     | forget n, open a new session                              |
| n  | -1    | forget n; this request is without a session               |
| n  | e > 0 | the e-th request of session n: partitions are differences |

In a session the answer holds only partitions with records, an error, or a changed mark. An error is
in every answer until it is gone or the client forgets the partition. Only a new one is answered at
once: the session knows what it told (`told_error_code`), so that a deleted topic that the client
has not forgotten yet does not end every wait. A partition is known by what the client calls it, a
name or an id, because the broker forgets the name of a deleted topic before clients do. The number
of sessions, the size of each and the size of all together are bounded. When there is no room, a
session that was idle for two minutes is dropped for a new one. If there is none the new session is
declined, so no client can push out another's active session (S38).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.rng import Rng
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, PartitionData

__all__ = ["FetchPlan", "FetchSessions", "FetchTarget"]

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 1
IDLE_BEFORE_EVICTION_S: Final = 120.0
PARTITIONS_PER_SESSION_MAX: Final = 20_000
SESSION_PARTITIONS_MAX = 200_000
"""In all sessions together: about 100 MB."""
UNKNOWN: Final = -1
NO_ERROR: Final = 0

_Key = tuple[str, UUID, int]
"""A partition as the client calls it: name or "", id or zero, index."""


@final
class FetchTarget:
    """One partition that a client reads, as it last described it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "key",
        "last_fetched_epoch",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
        "told_error_code",
        "topic",
        "topic_id",
    )

    def __init__(self, key: _Key, wanted: FetchPartition) -> None:
        self.key = key
        self.topic, self.topic_id, self.index = key
        """If the client gave an id, the name is empty until the partition has been found."""
        self.sent_high_watermark = UNKNOWN
        self.sent_log_start_offset = UNKNOWN
        self.update(wanted)

    def update(self, wanted: FetchPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.told_error_code = NO_ERROR

    def is_news(self, data: PartitionData) -> bool:
        """Whether `data` tells the client something new; it is remembered as sent."""
        changed = (
            bool(data.records)
            or data.error_code != 0
            or data.diverging_epoch is not None
            or data.preferred_read_replica >= 0
            or data.high_watermark != self.sent_high_watermark
            or data.log_start_offset != self.sent_log_start_offset
        )
        self.told_error_code = data.error_code
        # An error is sent again until it is gone.
        self.sent_high_watermark = UNKNOWN if data.error_code else data.high_watermark
        self.sent_log_start_offset = data.log_start_offset
        return changed


@final
class _Session:
    __slots__ = ("epoch", "last_used", "session_id", "targets")

    def __init__(self, session_id: int, now: float) -> None:
        self.session_id = session_id
        self.epoch = 1
        """The epoch that the client's next request must carry."""
        self.last_used = now
        self.targets: OrderedDict[_Key, FetchTarget] = OrderedDict()


@final
class FetchPlan:
    """What one request reads, and which session shortens its answer."""

    __slots__ = ("_session", "incremental", "session_id", "targets")

    def __init__(self, targets: list[FetchTarget], session: _Session | None, full: bool) -> None:
        self.targets = targets
        self.session_id = NO_SESSION if session is None else session.session_id
        self.incremental = session is not None and not full
        self._session = session

    def answered_with_data(self, target: FetchTarget) -> None:
        """In a session the next fetch reads this partition last, so that it starves no other."""
        if self._session is not None and target.key in self._session.targets:
            self._session.targets.move_to_end(target.key)


@final
class FetchSessions:
    """All sessions of one broker, the least recently used first."""

    def __init__(self, rng: Rng, sessions_max: int) -> None:
        self._rng = rng
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._partitions = 0
        """In all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, now: float) -> FetchPlan:
        """The partitions that this request reads; KafkaError for an unknown session or epoch."""
        session_id, epoch = request.session_id, request.session_epoch
        if session_id != NO_SESSION and epoch > INITIAL_EPOCH:
            return self._continue(request, now)
        self._drop(session_id)
        targets = list(_targets(request))
        if epoch != INITIAL_EPOCH or len(targets) > PARTITIONS_PER_SESSION_MAX:
            return FetchPlan(targets, None, full=True)
        session = self._try_open(len(targets), now)
        if session is not None:
            session.targets.update((target.key, target) for target in targets)
            self._partitions += len(session.targets)
        return FetchPlan(targets, session, full=True)

    def _try_open(self, partitions: int, now: float) -> _Session | None:
        while not self._has_room(partitions):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.last_used < IDLE_BEFORE_EVICTION_S:
                return None
            self._drop(oldest.session_id)
        session_id = 1 + self._rng.below(EPOCH_MAX)
        while session_id in self._sessions:
            session_id = 1 + self._rng.below(EPOCH_MAX)
        session = self._sessions[session_id] = _Session(session_id, now)
        return session

    def _has_room(self, partitions: int) -> bool:
        return (
            len(self._sessions) < self._sessions_max
            and self._partitions + partitions <= SESSION_PARTITIONS_MAX
        )

    def _continue(self, request: FetchRequest, now: float) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.last_used = now
        self._sessions.move_to_end(session.session_id)
        before = len(session.targets)
        _update(session, request)
        self._partitions += len(session.targets) - before
        too_large = len(session.targets) > PARTITIONS_PER_SESSION_MAX
        if too_large or self._partitions > SESSION_PARTITIONS_MAX:
            self._drop(session.session_id)  # the client continues without a session
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions")
        return FetchPlan(list(session.targets.values()), session, full=False)

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.targets)


def _targets(request: FetchRequest) -> Iterable[FetchTarget]:
    for topic in request.topics:
        for wanted in topic.partitions:
            yield FetchTarget((topic.topic, topic.topic_id, wanted.partition), wanted)


def _update(session: _Session, request: FetchRequest) -> None:
    """Apply the differences: partitions forgotten, changed and added."""
    for gone in request.forgotten_topics_data:
        for index in gone.partitions:
            session.targets.pop((gone.topic, gone.topic_id, index), None)
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.topic, topic.topic_id, wanted.partition)
            known = session.targets.get(key)
            if known is not None:
                known.update(wanted)
            else:
                session.targets[key] = FetchTarget(key, wanted)
