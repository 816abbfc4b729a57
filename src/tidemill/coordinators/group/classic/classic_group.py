"""The classic consumer group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

This module decides what each request may do in each state. `joins.py` handles JoinGroup,
`rounds.py` runs the rebalances and says which state is kept where. A refusal is a KafkaError,
raised before anything changes except the session of a valid member.

One place checks who sends a request (`ClassicMembers.identify`), one checks its generation
(`_current_member`, R13). A static member's old id gets FENCED_INSTANCE_ID: that client must stop.
Any other unknown id gets UNKNOWN_MEMBER_ID: that client may join again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from tidemill.coordinators.group.base.group import (
    Caller,
    CommitIdentity,
    DeadlineKey,
    DeadlineKind,
    GroupType,
    ShardContext,
)
from tidemill.coordinators.group.base.records import group_metadata_tombstone
from tidemill.coordinators.group.classic.joins import Join, Joins
from tidemill.coordinators.group.classic.members import ClassicMember, ClassicMembers
from tidemill.coordinators.group.classic.messages import (
    described_members,
    leave_response,
    sync_refusal,
)
from tidemill.coordinators.group.classic.rounds import Rounds
from tidemill.coordinators.group.classic.states import ClassicState
from tidemill.coordinators.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Reply, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta
from tidemill.wire.generated.describe_groups import DescribedGroup
from tidemill.wire.generated.group_metadata_record import GroupMetadataValue
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from tidemill.wire.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidemill.wire.generated.offset_commit import OffsetCommitRequestTopic
from tidemill.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["ClassicGroup"]


@final
class ClassicGroup:
    """One group, whose leader makes the plan."""

    def __init__(self, group_id: str, context: ShardContext) -> None:
        self._rounds = Rounds(group_id, context)
        self._joins = Joins(self._rounds, context)
        self._deadlines = context.deadlines

    # --- for the shard ---------------------------------------------------------------------------

    @property
    def group_id(self) -> str:
        return self._rounds.group_id

    @property
    def group_type(self) -> GroupType:
        return GroupType.CLASSIC

    @property
    def protocol_type(self) -> str:
        return self._rounds.protocol_type

    @property
    def state_name(self) -> str:
        return self._rounds.state.value

    @property
    def generation(self) -> int:
        return self._rounds.generation

    @property
    def protocol_name(self) -> str | None:
        """The protocol of the generation, if there is one."""
        return self._rounds.protocol_name

    @property
    def members(self) -> ClassicMembers:
        return self._rounds.members

    def refuse_parked(self, code: ErrorCode) -> list[Reply]:
        """Refuse all parked requests: the group is about to become of another kind."""
        return self._rounds.refuse(self._rounds.members, code)

    @property
    def is_empty(self) -> bool:
        return self._rounds.state is ClassicState.EMPTY

    @property
    def expects_members(self) -> bool:
        return bool(self._rounds.members.pending)

    @property
    def empty_since_ms(self) -> int:
        """Valid in an empty group only; -1 if it never had a member."""
        return self._rounds.recorded_ms

    def subscribes_to(self, topic: str) -> bool:
        """True for every topic if a subscription cannot be read."""
        rounds = self._rounds
        if self.is_empty:
            return False
        if rounds.protocol_type != CONSUMER_PROTOCOL_TYPE or rounds.protocol_name is None:
            return True
        topics = rounds.members.try_topics(rounds.protocol_name)
        return topics is None or topic in topics

    def describe(self) -> DescribedGroup:
        """For DescribeGroups; protocol and metadata are left out unless the group is stable."""
        rounds = self._rounds
        protocol = rounds.protocol_name if rounds.state is ClassicState.STABLE else None
        return DescribedGroup(
            group_id=rounds.group_id,
            group_state=self.state_name,
            protocol_type=rounds.protocol_type,
            protocol_data=protocol or "",
            members=described_members(rounds.members, protocol),
        )

    def parked(self) -> Sequence[Deferred[Any]]:
        waiting = ((member.join, member.sync) for member in self._rounds.members)
        return [parked for pair in waiting for parked in pair if parked is not None]

    # --- requests --------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, caller: Caller, *, version: int, now: Now
    ) -> Result[JoinGroupResponse]:
        return self._joins.join(Join.of(request, caller, version=version, now=now))

    def sync(self, request: SyncGroupRequest, *, now: Now) -> Result[SyncGroupResponse]:
        """SyncGroup: a member asks for its assignment; the leader's request carries the plan."""
        rounds = self._rounds
        member = self._current_member(
            request.member_id, request.group_instance_id, request.generation_id
        )
        self._check_protocol(request)
        if rounds.state is ClassicState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        rounds.extend_session(member, now)
        if rounds.state is ClassicState.STABLE:
            rounds.synced(member)
            return Result(self._assigned(member.assignment))
        if member.member_id == rounds.members.leader_id:
            return self._plan(request, member, now)
        return self._park_sync(member)

    def heartbeat(self, request: HeartbeatRequest, *, now: Now) -> Result[HeartbeatResponse]:
        member = self._current_member(
            request.member_id, request.group_instance_id, request.generation_id
        )
        self._rounds.extend_session(member, now)
        if self._rounds.state is ClassicState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return Result(HeartbeatResponse())

    def leave(
        self, request: LeaveGroupRequest, *, version: int, now: Now
    ) -> Result[LeaveGroupResponse]:
        gone: dict[str, ClassicMember] = {}
        response = leave_response(request, version, lambda who: self._take_leave(who, gone))
        if gone:
            effects = self._rounds.remove(list(gone.values()), now)
            return Result(response, effects.records, effects.replies)
        return Result(response, replies=self._rounds.maybe_end_joining(now))

    def check_commit(
        self, who: CommitIdentity, topics: Sequence[OffsetCommitRequestTopic], now: Now
    ) -> None:
        rounds = self._rounds
        if who.generation < 0:
            if self.is_empty:
                return
            if not who.member_id and not who.instance_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members")
        member = self._current_member(who.member_id, who.instance_id, who.generation)
        rounds.extend_session(member, now)
        if rounds.state is ClassicState.COMPLETING_REBALANCE:
            # It has no plan of this generation yet: what it read belongs to the previous one.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, who: CommitIdentity) -> None:
        """Any client may read: a classic consumer asks before it knows its generation (T45)."""

    # --- checks ----------------------------------------------------------------------------------

    def _current_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ClassicMember:
        """The member. KafkaError: it is unknown, or its generation is not the current one."""
        member = self._rounds.members.identify(member_id, instance_id)
        if generation != self._rounds.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION, f"{generation} is not {self._rounds.generation}"
            )
        return member

    def _check_protocol(self, request: SyncGroupRequest) -> None:
        rounds = self._rounds
        wanted = (request.protocol_type, request.protocol_name)
        for named, actual in zip(wanted, (rounds.protocol_type, rounds.protocol_name), strict=True):
            if named is not None and named != actual:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{named!r}")

    # --- the plan --------------------------------------------------------------------------------

    def _plan(
        self, request: SyncGroupRequest, leader: ClassicMember, now: Now
    ) -> Result[SyncGroupResponse]:
        """Write the leader's plan to the log; answer all parked SyncGroups when it is committed."""
        rounds = self._rounds
        plan = {entry.member_id: entry.assignment for entry in request.assignments}
        record = rounds.plan_record(
            now, members=rounds.members, leader_id=leader.member_id, plan=plan
        )
        replies: list[Reply] = []
        for member in rounds.members:
            parked, member.sync = member.sync, None
            if parked is not None:
                rounds.extend_session(member, now)
                replies.append((parked, self._assigned(plan.get(member.member_id, b""))))
        return Result(self._assigned(plan.get(leader.member_id, b"")), [record], replies)

    def _park_sync(self, member: ClassicMember) -> Result[SyncGroupResponse]:
        replies = self._rounds.refuse([member], ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync = Deferred(sync_refusal)
        self._rounds.synced(member)
        return Result(member.sync, replies=replies)

    def _assigned(self, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self._rounds.protocol_type,
            protocol_name=self._rounds.protocol_name,
            assignment=assignment,
        )

    # --- leaving ---------------------------------------------------------------------------------

    def _take_leave(self, who: MemberIdentity, gone: dict[str, ClassicMember]) -> ErrorCode:
        """Add a leaving member to `gone`; a member id that has not joined is withdrawn at once."""
        members = self._rounds.members
        member_id = who.member_id
        if not member_id and who.group_instance_id:  # administrators do not know member ids
            member_id = members.try_id_of_instance(who.group_instance_id) or ""
        if member_id in members.pending:
            self._rounds.withdraw_id(member_id)
            return ErrorCode.NONE
        try:
            member = members.identify(member_id, who.group_instance_id)
        except KafkaError as refusal:
            return refusal.code
        if member_id in gone:
            return ErrorCode.UNKNOWN_MEMBER_ID
        gone[member_id] = member
        return ErrorCode.NONE

    # --- deadlines -------------------------------------------------------------------------------

    def deadlines_passed(self, keys: Sequence[DeadlineKey], now: Now) -> Result[None]:
        """After a record, the other deadlines stay due until it is replayed."""
        effects: Result[None] = Result(None)
        for key in keys:
            if key in self._deadlines:
                continue  # the deadline handled just before moved it
            if effects.records:
                self._deadlines.set(key, now.monotonic_ms)
                continue
            step = self._deadline_passed(key, now)
            effects.records += step.records
            effects.replies += step.replies
        return effects

    def _deadline_passed(self, key: DeadlineKey, now: Now) -> Result[None]:
        rounds = self._rounds
        if key.kind is DeadlineKind.SESSION:
            member = rounds.members.get(key.member_id)
            return Result(None) if member is None else rounds.session_expired(member, now)
        if key.kind is DeadlineKind.PENDING_JOIN:
            rounds.members.pending.pop(key.member_id, None)
            return Result(None, replies=rounds.maybe_end_joining(now))
        if key.kind is DeadlineKind.REBALANCE:
            return rounds.joining_timed_out(now)
        if key.kind is DeadlineKind.TAKEOVER:
            return Result(None, replies=rounds.taken_over(now))
        if key.kind is DeadlineKind.SYNC:
            return rounds.sync_timed_out(now)
        return Result(None)  # of the consumer group that had this name before

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """Do nothing: a classic consumer watches its topics itself and joins again."""
        return Result(None)

    # --- replay ----------------------------------------------------------------------------------

    def replay_metadata(self, value: GroupMetadataValue | None) -> None:
        """Apply a record of the group; None: the group was deleted."""
        if value is None:
            self._rounds.forget_everything()
        else:
            self._rounds.replay(value)

    def loaded(self, now: Now) -> None:
        self._rounds.loaded(now)

    def tombstones(self) -> list[CoordinatorRecord]:
        """Also of a group that only commits made: its replay ends the group on every broker."""
        return [group_metadata_tombstone(self.group_id)]
