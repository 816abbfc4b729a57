"""The rebalances of one classic group, round after round.

Theory of operation. A round has two phases. In the *joining phase* JoinGroup requests are parked.
It ends when every member has sent one, or when the slowest member's rebalance timeout has passed;
members that are missing then are dropped. A new generation begins: all parked requests are
answered, and the leader's answer lists the members. In the *sync phase* SyncGroup requests are
parked until the leader's arrives, which carries the plan. The plan goes to the log, and that record
ends the round.

The log holds the last plan with the members it was made for, or that the group is empty. Everything
in between is soft state. A coordinator that fails in the middle of a round is succeeded by one that
knows the previous plan. Members still work in that plan's generation, because none of them was
given a later plan; requests of the lost generation are refused, and their members join again. So a
generation number may be used twice, but never for two plans (I26).

Three events write a record: the leader's plan, the return of a static member under a new id, and
the departure of the last member. None of them changes the group before the record is replayed. If a
deadline leads to the last of these, it is set again first, in case the append fails.

Failure cases:

- A member that falls silent loses its session, unless its request is parked here: then it waits for
  the coordinator. A new member that waits too long for its first answer is dropped all the same,
  because its client may be gone and sends no heartbeats yet.
- A static member that does not join again keeps its place until its session ends. If only such
  members are left, the joining phase continues until one returns or all sessions end, because no
  client is there to answer.
- A group that rebalances too often joins slowly: the phase is held open, and later changes share it
  (S41).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from tidemill.coordinators.group.base.group import DeadlineKey, DeadlineKind, ShardContext
from tidemill.coordinators.group.base.rebalance_pace import RebalancePace
from tidemill.coordinators.group.base.records import group_metadata_record
from tidemill.coordinators.group.classic.members import ClassicMember, ClassicMembers
from tidemill.coordinators.group.classic.messages import listed_members, recorded_members
from tidemill.coordinators.group.classic.states import ClassicState, may_follow
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Reply, Result
from tidemill.core.errors import ErrorCode, KafkaError, invariant
from tidemill.core.limits import (
    APPEND_RETRY_MS,
    GROUP_RECORD_BYTES_MAX,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PENDING_MEMBER_IDS_MAX,
)
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.generated.group_metadata_record import GroupMetadataValue, MemberMetadata
from tidemill.wire.generated.join_group import JoinGroupResponse

__all__ = ["Rounds"]

DUE_AT_ONCE_MS = 0


@final
class Rounds:
    """A group's state, members and deadlines; `ClassicGroup` handles the requests."""

    def __init__(self, group_id: str, context: ShardContext) -> None:
        self.group_id = group_id
        self.members = ClassicMembers()
        self.state = ClassicState.EMPTY
        """EMPTY if and only if there are no members."""
        self.generation = 0
        self.protocol_type = ""
        """The members' kind of client; kept when the group becomes empty."""
        self.protocol_name: str | None = None
        """The generation's protocol; None before the first generation and in an empty group."""
        self.recorded_ms = -1
        """Wall time of the newest record, -1 if there is none."""
        self._context = context
        self._deadlines = context.deadlines
        self._rebalance_key = DeadlineKey(group_id, DeadlineKind.REBALANCE)
        self._sync_key = DeadlineKey(group_id, DeadlineKind.SYNC)
        self._takeover_key = DeadlineKey(group_id, DeadlineKind.TAKEOVER)
        self._extension_ms: int | None = None
        """How long newcomers can still delay the first round; None in later rounds."""
        self._has_newcomers = False
        """Whether a new member joined since the first round's delay was last set."""
        self._pace = RebalancePace()
        self._held_until_ms = 0
        """Until then the joining phase stays open, even if all members have joined."""
        self._join_deadline_ms = 0
        """From then on the joining phase does not wait for missing members."""
        self._returning: ClassicMember | None = None
        """A returning static member; the record about to be replayed puts it into its old place."""

    # --- signs of life ---------------------------------------------------------------------------

    def extend_session(self, member: ClassicMember, now: Now) -> None:
        """Start the member's session timeout again."""
        self._deadlines.set(member.session_key, now.monotonic_ms + member.session_timeout_ms)

    def session_expired(self, member: ClassicMember, now: Now) -> Result[None]:
        """The member's session ended, or its wait for a first answer took too long."""
        if member.is_parked and not (member.is_new and member.join is not None):
            self.extend_session(member, now)
            return Result(None)
        self._deadlines.set(member.session_key, now.monotonic_ms + APPEND_RETRY_MS)
        return self.remove([member], now)

    def give_out_id(self, member_id: str, timeout_ms: int, now: Now) -> None:
        """Give out a member id; the client must join with it before the timeout (T40)."""
        pending = self.members.pending
        while len(pending) >= PENDING_MEMBER_IDS_MAX:
            self.withdraw_id(next(iter(pending)))
        pending[member_id] = None
        self._deadlines.set(self._pending_key(member_id), now.monotonic_ms + timeout_ms)

    def withdraw_id(self, member_id: str) -> None:
        del self.members.pending[member_id]
        self._deadlines.drop(self._pending_key(member_id))

    def _pending_key(self, member_id: str) -> DeadlineKey:
        return DeadlineKey(self.group_id, DeadlineKind.PENDING_JOIN, member_id)

    # --- the joining phase -----------------------------------------------------------------------

    def park_join(
        self, member: ClassicMember, parked: Deferred[JoinGroupResponse], now: Now
    ) -> list[Reply]:
        """A member joins and takes part in a round; its earlier parked JoinGroup is refused."""
        replies = self.refuse([member], ErrorCode.REBALANCE_IN_PROGRESS)
        self.members.park_join(member, parked)
        if member.is_new:
            self._has_newcomers = True
            self._deadlines.set(member.session_key, now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        else:
            self.extend_session(member, now)
        return replies + self.advance(now)

    def advance(self, now: Now) -> list[Reply]:
        """The members changed: begin a round, or end the joining phase if all have joined."""
        if self.state is ClassicState.PREPARING_REBALANCE:
            return self.maybe_end_joining(now)
        return self._begin(now)

    def _begin(self, now: Now) -> list[Reply]:
        first = self.state is ClassicState.EMPTY
        replies: list[Reply] = []
        for member in self.members:
            if member.sync is not None:
                self.extend_session(member, now)  # it was waiting for the coordinator
                replies += self._refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines.drop(self._sync_key)
        self.members.unsynced.clear()
        self._enter(ClassicState.PREPARING_REBALANCE)
        timeout_ms = self.members.rebalance_timeout_ms()
        hold_ms = self._pace.wait_ms(now.monotonic_ms)
        self._extension_ms = None
        if first:
            delay_ms = self._context.config.group_initial_rebalance_delay_ms
            self._extension_ms = max(timeout_ms - delay_ms, 0) if delay_ms else None
            self._has_newcomers = False
            hold_ms = timeout_ms = max(delay_ms, hold_ms)
        self._join_deadline_ms = now.monotonic_ms + timeout_ms
        self._held_until_ms = now.monotonic_ms + hold_ms
        self._deadlines.set(self._rebalance_key, now.monotonic_ms + (hold_ms or timeout_ms))
        return replies + self.maybe_end_joining(now)

    def maybe_end_joining(self, now: Now) -> list[Reply]:
        """End the phase early if all have joined; the first round waits for its delay."""
        joining = self.state is ClassicState.PREPARING_REBALANCE
        waits = self._extension_ms is not None or now.monotonic_ms < self._held_until_ms
        if joining and not waits and self.members.all_joined:
            return self._begin_generation(now)
        return []

    def joining_timed_out(self, now: Now) -> Result[None]:
        """The joining phase, the first round's delay or the hold has timed out."""
        if self.state is not ClassicState.PREPARING_REBALANCE or self._extend(now):
            return Result(None)
        if now.monotonic_ms < self._join_deadline_ms and not self.members.all_joined:
            self._deadlines.set(self._rebalance_key, self._join_deadline_ms)
            return Result(None)
        self._extension_ms = None
        missing = [member for member in self.members if member.join is None]
        dropped = [member for member in missing if member.instance_id is None]
        if len(dropped) == len(self.members):
            self._deadlines.set(self._rebalance_key, now.monotonic_ms + APPEND_RETRY_MS)
            return self.remove(dropped, now)
        for member in dropped:
            self._forget(member)
        if self.members.joined == 0:
            timeout_ms = self.members.rebalance_timeout_ms()
            self._deadlines.set(self._rebalance_key, now.monotonic_ms + timeout_ms)
            return Result(None)
        return Result(None, replies=self._begin_generation(now))

    def _extend(self, now: Now) -> bool:
        """Delay the first round again if new members joined since the last delay (T40)."""
        if not self._extension_ms or not self._has_newcomers:
            return False
        config = self._context.config
        delay_ms = min(config.group_initial_rebalance_delay_ms, self._extension_ms)
        self._extension_ms -= delay_ms
        self._has_newcomers = False
        self._deadlines.set(self._rebalance_key, now.monotonic_ms + delay_ms)
        return True

    def _begin_generation(self, now: Now) -> list[Reply]:
        members = self.members
        self._deadlines.drop(self._rebalance_key)
        self._elect_leader()
        self.protocol_name = members.support.elect(member.protocols for member in members)
        self.generation += 1
        self._pace.count(now.monotonic_ms)
        self._context.rebalances += 1
        self._enter(ClassicState.COMPLETING_REBALANCE)
        self._deadlines.set(self._sync_key, now.monotonic_ms + members.rebalance_timeout_ms())
        replies: list[Reply] = []
        for member in members:
            parked = members.try_take_join(member)
            if parked is not None:
                member.is_new = False
                members.unsynced[member.member_id] = None
                self.extend_session(member, now)
                replies.append((parked, self.joined_response(member)))
        return replies

    def _elect_leader(self) -> None:
        """Keep the leader if it has joined; else take the longest member that has (T41)."""
        members = self.members
        leader = members.get(members.leader_id or "")
        if leader is None or leader.join is None:
            members.leader_id = next(
                member.member_id for member in members if member.join is not None
            )

    def joined_response(self, member: ClassicMember) -> JoinGroupResponse:
        """The answer to a member's JoinGroup: its generation."""
        leads = member.member_id == self.members.leader_id
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            member_id=member.member_id,
            members=listed_members(self.members, self._protocol) if leads else [],
        )

    # --- the sync phase --------------------------------------------------------------------------

    def synced(self, member: ClassicMember) -> None:
        """The member has asked for its assignment."""
        self.members.unsynced.pop(member.member_id, None)
        if not self.members.unsynced:
            self._deadlines.drop(self._sync_key)

    def sync_timed_out(self, now: Now) -> Result[None]:
        """Drop the members that know the generation and did not ask for their assignment (T47)."""
        gone = [member for member in self.members if member.member_id in self.members.unsynced]
        if not gone:
            return Result(None)
        self._deadlines.set(self._sync_key, now.monotonic_ms + APPEND_RETRY_MS)
        return self.remove(gone, now)

    def plan_record(
        self,
        now: Now,
        *,
        members: Iterable[ClassicMember],
        leader_id: str,
        plan: Mapping[str, bytes],
    ) -> CoordinatorRecord:
        """The record of this generation and plan. KafkaError: it is too large for the log (S41)."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self._protocol,
            leader=leader_id,
            current_state_timestamp=now.wall_ms,
            members=recorded_members(members, self._protocol, plan),
        )
        record = group_metadata_record(self.group_id, value)
        if len(record.value or b"") > GROUP_RECORD_BYTES_MAX:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"members and plan take more than {GROUP_RECORD_BYTES_MAX} bytes",
            )
        return record

    @property
    def _protocol(self) -> str:
        assert self.protocol_name is not None
        return self.protocol_name

    # --- members that leave and return -----------------------------------------------------------

    def remove(self, gone: Sequence[ClassicMember], now: Now) -> Result[None]:
        """Remove members. If these are all, return a record: its replay empties the group."""
        replies = self.refuse(gone, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(gone) == len(self.members):
            return Result(None, [self._empty_record(now)], replies)
        for member in gone:
            self._forget(member)
        return Result(None, replies=replies + self.advance(now))

    def refuse(self, members: Iterable[ClassicMember], code: ErrorCode) -> list[Reply]:
        """Refuse all parked requests of these members."""
        replies: list[Reply] = []
        for member in members:
            parked = self.members.try_take_join(member)
            if parked is not None:
                replies.append((parked, parked.refusal(code)))
            replies += self._refuse_sync(member, code)
        return replies

    def _refuse_sync(self, member: ClassicMember, code: ErrorCode) -> list[Reply]:
        parked, member.sync = member.sync, None
        return [] if parked is None else [(parked, parked.refusal(code))]

    def _forget(self, member: ClassicMember) -> None:
        self.members.remove(member)
        self._deadlines.drop(member.session_key)

    def replace(self, former: ClassicMember, member: ClassicMember) -> list[Reply]:
        """A static member returned: the round continues with its new id (T42).

        The old id is fenced. The new one inherits its assignment and, if it led, the leadership.
        """
        replies = self.refuse([former], ErrorCode.FENCED_INSTANCE_ID)
        led = former.member_id == self.members.leader_id
        self._forget(former)
        self.members.add(member)
        member.assignment = former.assignment
        member.is_new = False
        if led:
            self.members.leader_id = member.member_id
        return replies

    def expect_returning(self, member: ClassicMember, now: Now) -> None:
        """The next replayed record puts this returning static member into its old place."""
        self._returning = member
        self.extend_session(member, now)

    def _empty_record(self, now: Now) -> CoordinatorRecord:
        value = GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation + 1,
            protocol=None,
            leader=None,
            current_state_timestamp=now.wall_ms,
        )
        return group_metadata_record(self.group_id, value)

    def _enter(self, state: ClassicState) -> None:
        invariant(
            may_follow(self.state, state),
            f"{self.group_id}: {state.value} after {self.state.value}",
        )
        self.state = state

    # --- replay ----------------------------------------------------------------------------------

    def replay(self, value: GroupMetadataValue) -> None:
        """Apply the record; members that stay keep the soft state that is not in it."""
        before, self.members = self.members, ClassicMembers()
        self.members.pending = before.pending
        for recorded in value.members:
            self.members.add(self._recorded_member(recorded, before, value.protocol or ""))
        self._carry_over(before, value.leader)
        self.generation = value.generation
        self.protocol_type = value.protocol_type
        self.protocol_name = (value.protocol or "") if value.members else None
        self.recorded_ms = value.current_state_timestamp
        self.state = ClassicState.STABLE if value.members else ClassicState.EMPTY
        self._returning = None
        self._deadlines.drop(self._rebalance_key)
        self._deadlines.drop(self._takeover_key)
        if value.members and not value.leader:
            self._deadlines.set(self._takeover_key, DUE_AT_ONCE_MS)

    def _recorded_member(
        self, recorded: MemberMetadata, before: ClassicMembers, protocol: str
    ) -> ClassicMember:
        member = before.get(recorded.member_id)
        if self._returning is not None and recorded.member_id == self._returning.member_id:
            member = self._returning
        if member is None:
            member = ClassicMember(
                recorded.member_id,
                group_id=self.group_id,
                instance_id=recorded.group_instance_id,
                client_id=recorded.client_id,
                client_host=recorded.client_host,
                session_timeout_ms=recorded.session_timeout,
                rebalance_timeout_ms=recorded.rebalance_timeout,
                protocols={protocol: recorded.subscription},
            )
        member.is_new = False
        member.apply_record(recorded, protocol)
        return member

    def _carry_over(self, before: ClassicMembers, leader_id: str | None) -> None:
        """Carry over the soft state of members that are still there; drop that of the others."""
        for member in before:
            invariant(
                not member.is_parked,
                "a group record was replayed while a member has a parked request",
            )
            if self.members.get(member.member_id) is None:
                self._deadlines.drop(member.session_key)
            elif member.member_id in before.unsynced and member.member_id != leader_id:
                self.members.unsynced[member.member_id] = None
        if self.members.get(leader_id or "") is not None:
            self.members.leader_id = leader_id
        if not self.members.unsynced:
            self._deadlines.drop(self._sync_key)

    def taken_over(self, now: Now) -> list[Reply]:
        """The plan has no leader: the group was a consumer group until now (`migration/`).

        Its members get sessions, and a round begins that shares out what nobody has.
        """
        for member in self.members:
            self.extend_session(member, now)
        return self.advance(now) if self.state is ClassicState.STABLE else []

    def loaded(self, now: Now) -> None:
        """The coordinator is new: every member gets a full session timeout to find it."""
        for member in self.members:
            self.extend_session(member, now)

    def forget_everything(self) -> None:
        """The group was deleted."""
        for member_id in list(self.members.pending):
            self.withdraw_id(member_id)
        self.replay(GroupMetadataValue())
