"""A group of the consumer protocol (KIP-848, T48): the coordinator assigns the partitions.

Theory of operation. A group has three epochs, and each follows the one before:

- The *group epoch* rises with every change that may need a new plan: a member joins, leaves or
  changes its subscription, or a topic is created or grows.
- The *target epoch* is the group epoch for which the current target assignment was computed. The
  next heartbeat of any member that finds it below the group epoch computes a new target.
- Each member has a *member epoch*. A member that is not in the target epoch moves towards its
  target step by step, one step per heartbeat of its own (reconciliation.py).

So no request waits for another member, and a heartbeat that changes nothing writes no record.

Hard state is what the records hold (records.py): handlers only return records, and replaying them
changes the group. Soft state is the deadlines, and whether topics may have changed since the group
epoch was set. A member is fenced when its session ends, or when it was told to give up partitions
and has not done so within its own rebalance timeout. Only heartbeats extend a session.

A static member that leaves temporarily keeps its place, and its session keeps running. A client
that joins with the same instance id before the session ends takes over its partitions; no partition
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final
from uuid import UUID

from tidemill.coordinators.group.base.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from tidemill.coordinators.group.base.group import (
    Caller,
    CommitIdentity,
    DeadlineKey,
    DeadlineKind,
    GroupType,
    ShardContext,
)
from tidemill.coordinators.group.consumer.assignment_epochs import (
    NO_EPOCHS,
    check_older_epoch,
    date_partitions,
)
from tidemill.coordinators.group.consumer.assignors import NOTHING, Partitions
from tidemill.coordinators.group.consumer.group_plan import GroupPlan, MemberTarget
from tidemill.coordinators.group.consumer.heartbeat_request import (
    JOIN_EPOCH,
    UNCHANGED_TIMEOUT,
    check_heartbeat,
    is_full,
    metadata_after,
)
from tidemill.coordinators.group.consumer.heartbeat_sender import (
    HeartbeatSender,
    identify_leaver,
    identify_sender,
    unknown_member,
)
from tidemill.coordinators.group.consumer.member_deadlines import MemberDeadlines
from tidemill.coordinators.group.consumer.members import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    ConsumerMembers,
)
from tidemill.coordinators.group.consumer.messages import described_member, heartbeat_assignment
from tidemill.coordinators.group.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    Owned,
    lists_any,
    reconcile,
)
from tidemill.coordinators.group.consumer.records import (
    ClassicProtocols,
    current_of,
    current_record,
    group_tombstones,
    member_record,
    member_tombstones,
    metadata_of,
)
from tidemill.coordinators.group.consumer.targets import (
    preferred_assignor,
)
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta
from tidemill.wire.generated.consumer_group_current_member_assignment_record import (
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tidemill.wire.generated.consumer_group_describe import DescribedGroup
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidemill.wire.generated.consumer_group_member_metadata_record import (
    ConsumerGroupMemberMetadataValue,
)
from tidemill.wire.generated.offset_commit import OffsetCommitRequestTopic

__all__ = ["ConsumerGroup"]

Downgrade = Callable[
    ["ConsumerGroup", Sequence[ConsumerMember], Now], list[CoordinatorRecord] | None
]
"""Makes a classic group of those that stay if these members go; None if it stays as it is."""


@final
class ConsumerGroup:
    """One group, whose coordinator makes the plan."""

    def __init__(
        self, group_id: str, context: ShardContext, downgrade: Downgrade | None = None
    ) -> None:
        self._downgrade = downgrade
        self._group_id = group_id
        self._context = context
        self._members = ConsumerMembers()
        self.deadlines = MemberDeadlines(group_id, context, self._members)
        self.plan = GroupPlan(group_id, context, self._members)
        self.stays_in_epoch = 0
        """Soft state: the last group epoch in which it could not become a classic group."""

    # --- for members that use the classic protocol (migration/) ----------------------------------

    @property
    def context(self) -> ShardContext:
        return self._context

    @property
    def members(self) -> ConsumerMembers:
        return self._members

    @property
    def epoch(self) -> int:
        return self.plan.epoch

    def has_new(self, member_id: str) -> bool:
        """Whether it is a member that uses the consumer protocol."""
        member = self._members.get(member_id)
        return member is not None and not member.is_classic

    # --- for the shard ---------------------------------------------------------------------------

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def group_type(self) -> GroupType:
        return GroupType.CONSUMER

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state_name(self) -> str:
        if not self._members:
            return "Empty"
        if not self.plan.is_made:
            return "Assigning"
        if all(member.is_reconciled_to(self.plan.targets.epoch) for member in self._members):
            return "Stable"
        return "Reconciling"

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def expects_members(self) -> bool:
        return False

    @property
    def empty_since_ms(self) -> int:
        return self.plan.targets.made_ms

    def subscribes_to(self, topic: str) -> bool:
        return self._members.subscribes_to(topic) or self.plan.patterns.match(topic)

    def check_commit(
        self, who: CommitIdentity, topics: Sequence[OffsetCommitRequestTopic], now: Now
    ) -> None:
        """Does not extend the session: in this protocol only heartbeats do."""
        if who.generation < 0 and not self._members:
            return
        member = self._members.get(who.member_id)
        if member is not None and member.is_classic:
            if who.generation != member.current.member_epoch:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        elif member is not None and 0 < who.generation < member.current.member_epoch:
            check_older_epoch(who.generation, member.current.since, topics, self._context.image)
        else:
            self._check_epoch(who)

    def check_fetch(self, who: CommitIdentity) -> None:
        if who.generation < 0 and not who.member_id:
            return
        self._check_epoch(who)

    def _check_epoch(self, who: CommitIdentity) -> None:
        member = self._members.get(who.member_id)
        if member is None:
            raise unknown_member(who.member_id)
        if who.generation != member.current.member_epoch:
            detail = f"the member's epoch is {member.current.member_epoch}, not {who.generation}"
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH, detail)

    def tombstones(self) -> list[CoordinatorRecord]:
        patterns = self.plan.patterns.tombstones()
        return [*patterns, *group_tombstones(self._group_id, self._members.ids())]

    def loaded(self, now: Now) -> None:
        self.plan.topics_may_have_changed = True
        self.deadlines.loaded(now)

    def deadlines_passed(self, keys: Sequence[DeadlineKey], now: Now) -> Result[None]:
        """Fence all members that are late, in one decision; else evaluate patterns further."""
        late = {
            key.member_id: member
            for key in keys
            if (member := self.deadlines.try_late(key, now)) is not None
        }
        evaluates = any(key.kind is DeadlineKind.PATTERNS for key in keys)
        if evaluates and not late:
            return Result(None, self.plan.evaluate_more(now))
        if evaluates:
            self.plan.patterns.postpone(now)  # both raise the epoch: one decision at a time
        return Result(None, self.fence(list(late.values()), now) if late else [])

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """The next heartbeat acts on it: until then no member can be told."""
        self.plan.topics_changed(
            (*delta.topics_changed, *(one.name for one in delta.topics_deleted))
        )
        return Result(None)

    def parked(self) -> list[Deferred[Any]]:
        return []

    def describe(self) -> DescribedGroup:
        image = self._context.image
        return DescribedGroup(
            group_id=self._group_id,
            group_state=self.state_name,
            group_epoch=self.plan.epoch,
            assignment_epoch=self.plan.targets.epoch,
            assignor_name=preferred_assignor(
                (member.metadata for member in self._members),
                self._context.config.consumer_assignors,
            ),
            members=[
                described_member(member, self.plan.targets.of(member.member_id), image)
                for member in self._members
            ],
        )

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, *, version: int, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat: join, stay or leave. KafkaError: see T48."""
        member = self._members.get(request.member_id)
        if member is not None and self._changes_nothing(request, caller, member):
            self.deadlines.extend_session(member.member_id, now)
            return Result(self._response(member.member_id, member.current.member_epoch, now=now))
        config = self._context.config
        check_heartbeat(request, version, config.consumer_assignors)
        self.plan.patterns.check(request.subscribed_topic_regex, self._members.patterns)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request, now)
        sender = identify_sender(
            self._members, request, caller.fresh_member_id, config.group_max_size
        )
        return self.advance(request, caller, sender, now)

    def _changes_nothing(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, member: ConsumerMember
    ) -> bool:
        """The common heartbeat, without news, from a member that has its whole target."""
        metadata = member.metadata
        return (
            request.member_epoch == member.current.member_epoch > JOIN_EPOCH
            and request.topic_partitions is None
            and request.subscribed_topic_names is None
            and request.rebalance_timeout_ms == UNCHANGED_TIMEOUT
            and request.subscribed_topic_regex in (None, metadata.pattern or "")
            and request.server_assignor is None
            and request.rack_id is None
            and request.instance_id == metadata.instance_id
            and caller.client_id == metadata.client_id
            and caller.client_host == metadata.client_host
            and self.plan.is_made
            and not self.plan.topics_may_have_changed
            and member.is_reconciled_to(self.plan.targets.epoch)
        )

    def advance(
        self,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        sender: HeartbeatSender,
        now: Now,
        *,
        classic: ClassicProtocols | None = None,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """Apply the request, compute a target if one is due, move the member towards it.

        `classic`: of a member that uses the classic protocol, whose joins are such requests too.
        """
        member = sender.member
        records: list[CoordinatorRecord] = []
        if sender.replaced is not None:
            records += member_tombstones(self._group_id, sender.replaced.member_id)
        metadata = metadata_after(request, caller, member.metadata)._replace(classic=classic)
        if not sender.is_known or metadata != member.metadata:
            records.append(member_record(self._group_id, member.member_id, metadata))
        epoch, target = self.plan.advance(sender, metadata, caller, records, now)
        current = self._reconciled(sender, target, request)
        if not sender.is_known or current != member.current:
            records.append(current_record(self._group_id, member.member_id, current))
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                timeout_ms = metadata.rebalance_timeout_ms
                self.deadlines.set(DeadlineKind.REBALANCE, member.member_id, timeout_ms, now)
        self.deadlines.extend_session(member.member_id, now)
        tells_all = (
            is_full(request)
            or request.member_epoch != member.current.member_epoch
            or current.assigned != member.current.assigned
        )
        response = self._response(
            member.member_id,
            current.member_epoch,
            current.assigned if tells_all else None,
            now=now,
            is_changing=epoch != self.plan.targets.epoch or self.plan.patterns.is_unfinished,
        )
        return Result(response, records)

    def _reconciled(
        self, sender: HeartbeatSender, target: MemberTarget, request: ConsumerGroupHeartbeatRequest
    ) -> CurrentAssignment:
        free_or_own = {None, sender.member.member_id, sender.former.member_id}

        def is_free(topic_id: UUID, partition: int) -> bool:
            return self._members.try_owner(topic_id, partition) in free_or_own

        member = sender.member
        current = member.current
        owned: Owned = request.topic_partitions
        joins = request.member_epoch == JOIN_EPOCH
        if member.is_away or sender.replaced is not None:
            current = current._replace(member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        if owned is None and member.has_listed_less:
            owned = ()
        after = reconcile(
            current,
            target=target.partitions,
            target_epoch=target.epoch,
            owned=owned,
            is_free=is_free,
            may_be_late=not joins and not member.is_classic,
        )
        listed = request.topic_partitions
        if after.revoking != current.revoking or listed is not None:
            is_told = after.state is MemberState.UNREVOKED_PARTITIONS
            member.has_listed_less = is_told and not lists_any(listed, after.revoking)
        if not joins:
            return after
        return after._replace(
            since=date_partitions(after.assigned, before=NO_EPOCHS, epoch=after.member_epoch)
        )

    def _response(
        self,
        member_id: str,
        member_epoch: int,
        assigned: Partitions | None = None,
        *,
        now: Now,
        is_changing: bool = False,
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=member_epoch,
            heartbeat_interval_ms=self.deadlines.heartbeat_interval_ms(
                now, is_changing=is_changing, planned_ms=self.plan.targets.made_ms
            ),
            assignment=None if assigned is None else heartbeat_assignment(assigned),
        )

    # --- leaving ---------------------------------------------------------------------------------

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        member = identify_leaver(self._members, request)
        if request.member_epoch == LEAVE_EPOCH:
            records = self.fence([member], now)
        else:
            away = member.current._replace(
                member_epoch=STATIC_LEAVE_EPOCH, state=MemberState.STABLE, revoking=NOTHING
            )
            records = [current_record(self._group_id, member.member_id, away)]
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )
        return Result(response, records)

    def fence(self, members: Sequence[ConsumerMember], now: Now) -> list[CoordinatorRecord]:
        """Remove members: their partitions become free, the next heartbeat plans without them."""
        downgraded = self._downgrade and self._downgrade(self, members, now)
        if downgraded:
            return downgraded
        records = [
            record
            for member in members
            for record in member_tombstones(self._group_id, member.member_id)
        ]
        self.plan.go_on_without(members, records, now)
        return records

    # --- replay ----------------------------------------------------------------------------------
    # Records of the plan are replayed by its parts (`registry.py`).

    def replay_member_metadata(
        self, member_id: str, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is not None:
            self._members.put_metadata(member_id, metadata_of(value))
            self.deadlines.member_put(member_id)
            return
        self._members.drop(member_id)
        self.deadlines.member_dropped(member_id)

    def replay_current_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        if value is None:
            self._members.drop_current(member_id)
            return
        current = current_of(value)
        self._members.put_current(member_id, current)
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            self.deadlines.met(DeadlineKind.REBALANCE, member_id)
