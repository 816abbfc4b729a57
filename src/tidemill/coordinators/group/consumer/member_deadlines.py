"""The deadlines of the members of one consumer group: soft state.

Handlers only set deadlines, and replay drops them: a handler's append may fail, and that must not
leave a member without a session. Members that come with the group, which was a classic group until
now, have no sessions when their records are replayed. So replay sets a deadline that is due at
once, and its handler, which knows the time, gives them sessions.
"""

from __future__ import annotations

from typing import final

from tidemill.coordinators.group.base.group import DeadlineKey, DeadlineKind, ShardContext
from tidemill.coordinators.group.consumer.members import ConsumerMember, ConsumerMembers
from tidemill.coordinators.group.consumer.reconciliation import MemberState
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.limits import QUICK_HEARTBEAT_MS, QUICK_HEARTBEAT_MS_PER_MEMBER

__all__ = ["MemberDeadlines"]

CLASSIC_DEADLINES = (DeadlineKind.PENDING_JOIN, DeadlineKind.SYNC)
"""A member that uses the classic protocol must join again, or ask for its assignment."""
DUE_AT_ONCE_MS = 0


@final
class MemberDeadlines:
    """Sessions, and what members must do in time."""

    def __init__(self, group_id: str, context: ShardContext, members: ConsumerMembers) -> None:
        self._group_id = group_id
        self._context = context
        self._members = members

    def key(self, kind: DeadlineKind, member_id: str = "") -> DeadlineKey:
        return DeadlineKey(self._group_id, kind, member_id)

    # --- handlers --------------------------------------------------------------------------------

    def extend_session(self, member_id: str, now: Now) -> None:
        """A sign of life; members that use the classic protocol chose their own timeout."""
        member = self._members.get(member_id)
        timeout_ms = self._context.consumer_timeouts(self._group_id).session_ms
        if member is not None and member.metadata.classic is not None:
            timeout_ms = member.metadata.classic.session_timeout_ms
        self.set(DeadlineKind.SESSION, member_id, timeout_ms, now)

    def heartbeat_interval_ms(self, now: Now, *, is_changing: bool, planned_ms: int) -> int:
        """When a member sends its next heartbeat: sooner for a while after a new target.

        Only heartbeats tell a member to give up a partition, and another one that it is free.
        `planned_ms`: the wall time of the last target.
        """
        usual_ms = self._context.consumer_timeouts(self._group_id).heartbeat_ms
        if not is_changing and now.wall_ms - planned_ms >= usual_ms:
            return usual_ms
        quick_ms = max(QUICK_HEARTBEAT_MS, len(self._members) * QUICK_HEARTBEAT_MS_PER_MEMBER)
        return min(usual_ms, quick_ms)

    def set(self, kind: DeadlineKind, member_id: str, timeout_ms: int, now: Now) -> None:
        self._context.deadlines.set(self.key(kind, member_id), now.monotonic_ms + timeout_ms)

    def expect(self, kind: DeadlineKind, member_id: str, timeout_ms: int, now: Now) -> None:
        """Set the deadline unless it is set already."""
        if self.key(kind, member_id) not in self._context.deadlines:
            self.set(kind, member_id, timeout_ms, now)

    def met(self, kind: DeadlineKind, member_id: str = "") -> None:
        """The member has done what it had to."""
        self._context.deadlines.drop(self.key(kind, member_id))

    def loaded(self, now: Now) -> None:
        """Every member gets a new session, and new time to give up partitions."""
        self.met(DeadlineKind.TAKEOVER)
        for member in self._members:
            self.extend_session(member.member_id, now)
            if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                timeout_ms = member.metadata.rebalance_timeout_ms
                self.set(DeadlineKind.REBALANCE, member.member_id, timeout_ms, now)

    def try_late(self, key: DeadlineKey, now: Now) -> ConsumerMember | None:
        """The member that the deadline fences; None if it no longer matters."""
        if key.kind is DeadlineKind.TAKEOVER:
            self._watch_all(now)
        member = self._members.get(key.member_id)
        if member is None or key.kind is DeadlineKind.SESSION:
            return member
        if key.kind is DeadlineKind.REBALANCE:
            is_late = member.current.state is MemberState.UNREVOKED_PARTITIONS
        else:
            is_late = member.is_classic and key.kind in CLASSIC_DEADLINES
        return member if is_late else None

    def _watch_all(self, now: Now) -> None:
        for member in self._members:
            if self.key(DeadlineKind.SESSION, member.member_id) not in self._context.deadlines:
                self.extend_session(member.member_id, now)

    # --- replay ----------------------------------------------------------------------------------

    def member_put(self, member_id: str) -> None:
        """Who joins by a request has a session already; others came with the group."""
        if self.key(DeadlineKind.SESSION, member_id) not in self._context.deadlines:
            self._context.deadlines.set(self.key(DeadlineKind.TAKEOVER), DUE_AT_ONCE_MS)

    def member_dropped(self, member_id: str) -> None:
        for kind in (DeadlineKind.SESSION, DeadlineKind.REBALANCE, *CLASSIC_DEADLINES):
            self.met(kind, member_id)
        if not self._members:
            self.met(DeadlineKind.TAKEOVER)
