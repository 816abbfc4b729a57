"""What a leader has to tell one follower, found in O(changed) (ADR 0012). Pure.

HOT PATH: `ReplicaSlot.grew` runs once per append and follower.

A session belongs to one connection of a follower. It has a slot for each partition that the
follower names on it. A slot is registered at its partition once; from then on the partition says
what has changed, and nobody looks at all slots again:

| slot   | meaning                                        | what ends it                         |
|--------|------------------------------------------------|--------------------------------------|
| IDLE   | the follower knows all that there is           | an append, a mark, another role      |
| MARKED | a mark or the log start has moved              | it is told; an append makes it READY |
| READY  | there are records, or another role             | it is told                           |
| TOLD   | records are on their way to the follower       | the follower names the slot again    |

READY slots are told at once. MARKED ones wait a few milliseconds for records to ride on: each
answer brings another fetch. While records are on their way the follower does not need to hear of
more; when it names the slot again, its offsets are compared.

An answer that gets lost would leave the follower without what it said. So a session ends with its
connection, and the next one begins with all slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.vouching.vouch import NO_VOUCH, Vouch
from tidemill.replication.waiting.waiters import Watcher

__all__ = ["ReplicaSession", "ReplicaSlot", "SlotKey"]

SlotKey = tuple[UUID, int]
"""Topic id and partition."""

SLOTS_MAX: Final = 20_000
"""In one session."""
UNKNOWN: Final = -1

IDLE: Final = 0
MARKED: Final = 1
READY: Final = 2
TOLD: Final = 3


@final
class ReplicaSlot:
    """One partition in one session; the partition knows it as its follower's watch."""

    __slots__ = (
        "_sent_high_watermark",
        "_sent_log_start",
        "_state",
        "_told_in",
        "fetch_offset",
        "key",
        "leader_epoch",
        "max_bytes",
        "partition",
        "session",
    )

    def __init__(self, session: ReplicaSession, key: SlotKey, partition: Partition) -> None:
        self.session = session
        self.key = key
        self.partition = partition
        self.leader_epoch = UNKNOWN
        self.fetch_offset = UNKNOWN
        self.max_bytes = 0
        self._state = IDLE
        self._sent_high_watermark = UNKNOWN
        self._sent_log_start = UNKNOWN
        self._told_in = 0
        """The number of the answer that brings the records."""

    # --- what the follower says ------------------------------------------------------------------

    def named(self, *, leader_epoch: int, fetch_offset: int, max_bytes: int, seen: int) -> None:
        """The follower is in this epoch and goes on at this offset.

        It had taken in `seen` answers when it said so. If records were on their way to it then, it
        will name the slot again when it has them.
        """
        session, partition = self.session, self.partition
        if self._state == TOLD and seen < self._told_in and leader_epoch == self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        session.unlist(self)
        self._state = IDLE
        if fetch_offset < partition.log.log_end_offset:
            self._make_ready()
        elif (
            partition.high_watermark != self._sent_high_watermark
            or partition.log.log_start_offset != self._sent_log_start
        ):
            self.mark_moved()

    # --- what the partition says -----------------------------------------------------------------

    def grew(self) -> None:
        """There are records after `fetch_offset`."""
        if self._state == IDLE or self._state == MARKED:
            self._make_ready()
            self.session.wake()

    def mark_moved(self) -> None:
        """The high watermark or the log start is another one."""
        if self._state == IDLE:
            self._state = MARKED
            self.session.list_marked(self)

    def role_changed(self) -> None:
        """This broker leads no longer, or in another epoch: the follower must hear of it."""
        self._make_ready()
        self.session.wake()

    def detach(self) -> None:
        """The follower has the partition in another session now."""
        self.session.drop(self)

    @property
    def vouched_until(self) -> float:
        """The follower says in its next fetch if it leaves: until then each one vouches for all."""
        is_same = self.leader_epoch == self.partition.leader_epoch
        return self.session.vouch.until if is_same else NO_VOUCH

    def _make_ready(self) -> None:
        self.session.unlist(self)
        self._state = READY
        self.session.ready[self] = None

    # --- what it is told -------------------------------------------------------------------------

    def told(self, *, has_records: bool) -> None:
        """An answer has these marks, and perhaps records."""
        partition = self.partition
        self._sent_high_watermark = partition.high_watermark
        self._sent_log_start = partition.log.log_start_offset
        self._state = TOLD if has_records else IDLE
        self._told_in = self.session.fetches  # only the newest fetch is told anything


@final
class ReplicaSession:
    """One follower's slots on one of its connections."""

    __slots__ = (
        "_marked",
        "_slots_max",
        "broker_epoch",
        "broker_id",
        "fetches",
        "lane",
        "marks_are_due",
        "marks_came",
        "newest_fetch",
        "ready",
        "session_id",
        "slots",
        "vouch",
        "watchers",
    )

    def __init__(
        self,
        session_id: int,
        *,
        broker_id: int,
        broker_epoch: int,
        lane: int,
        slots_max: int = SLOTS_MAX,
    ) -> None:
        self.session_id = session_id
        self._slots_max = slots_max
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.lane = lane
        self.fetches = 0
        """How many came; they are answered in this order, whenever their answers were made. A fetch
        says how many answers the follower has seen."""
        self.vouch = Vouch()
        self.slots: dict[SlotKey, ReplicaSlot] = {}
        self.ready: dict[ReplicaSlot, None] = {}
        """Slots to be told of at once, the oldest first."""
        self._marked: dict[ReplicaSlot, None] = {}
        self.marks_are_due = False
        """Marks have waited long enough for records to ride on."""
        self.newest_fetch: object = None
        """The last fetch that came: one that still waits before it has nothing to wait for."""
        self.watchers: dict[Watcher, None] = {}
        """The fetch that waits for news, if one does."""
        self.marks_came: Callable[[], None] | None = None
        """Called when a mark has moved and nothing else is to be told; while a fetch waits."""

    @property
    def has_news(self) -> bool:
        return bool(self.ready) or (self.marks_are_due and bool(self._marked))

    @property
    def has_marks(self) -> bool:
        return bool(self._marked)

    def slot(self, key: SlotKey, partition: Partition) -> ReplicaSlot:
        """The slot of a partition, made and registered if there is none; KafkaError if full."""
        slot = self.slots.get(key)
        if slot is not None and slot.partition is partition:
            return slot
        if slot is not None:
            self.drop(slot)
        if len(self.slots) >= self._slots_max:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions")
        slot = ReplicaSlot(self, key, partition)
        partition.follower_watches.add(self.broker_id, slot)
        self.slots[key] = slot
        return slot

    def is_overtaken(self, partition: Partition, leader_epoch: int, fetch_offset: int) -> bool:
        """Whether the follower has gone on with this partition in its other lane since.

        It moves a partition when records have come; a fetch that left before can arrive later.
        """
        other = partition.follower_watches.find(self.broker_id)
        if not isinstance(other, ReplicaSlot) or other.session is self:
            return False
        is_same_life = other.session.broker_epoch == self.broker_epoch
        is_ahead = other.leader_epoch == leader_epoch and other.fetch_offset > fetch_offset
        return is_same_life and is_ahead

    def forget(self, key: SlotKey) -> None:
        """The follower wants to hear no more of this partition on this session."""
        slot = self.slots.get(key)
        if slot is not None:
            self.drop(slot)

    def drop(self, slot: ReplicaSlot) -> None:
        self.unlist(slot)
        self.slots.pop(slot.key, None)
        slot.partition.follower_watches.remove(self.broker_id, slot)

    def close(self) -> None:
        """The connection has ended, or a newer one has taken its place."""
        for slot in list(self.slots.values()):
            self.drop(slot)
        self.marks_came = None

    def take_next(self) -> ReplicaSlot | None:
        """The next slot to tell of; once there is something to tell, marks ride along."""
        for waiting in (self.ready, self._marked):
            for slot in waiting:
                del waiting[slot]
                if not self._marked:
                    self.marks_are_due = False
                return slot
        return None

    # --- for slots -------------------------------------------------------------------------------

    def wake(self) -> None:
        for watcher in self.watchers:
            watcher.wake()

    def list_marked(self, slot: ReplicaSlot) -> None:
        self._marked[slot] = None
        if self.marks_came is not None:
            self.marks_came()

    def unlist(self, slot: ReplicaSlot) -> None:
        self.ready.pop(slot, None)
        self._marked.pop(slot, None)
