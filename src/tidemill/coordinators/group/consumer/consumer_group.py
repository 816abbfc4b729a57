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
from typing import Any, NamedTuple, final
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
from tidemill.coordinators.group.base.rebalance_pace import RebalancePace
from tidemill.coordinators.group.consumer.assignment_epochs import (
    NO_EPOCHS,
    check_older_epoch,
    date_partitions,
)
from tidemill.coordinators.group.consumer.assignors import NOTHING, Partitions
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
    reconcile,
)
from tidemill.coordinators.group.consumer.records import (
    ClassicProtocols,
    MemberMetadata,
    current_of,
    current_record,
    group_record,
    group_tombstones,
    member_record,
    member_tombstones,
    metadata_of,
    target_epoch_record,
    target_of,
    target_record,
)
from tidemill.coordinators.group.consumer.targets import (
    ConsumerTargets,
    preferred_assignor,
    topics_hash,
)
from tidemill.coordinators.group.consumer.topic_patterns import (
    PatternTopics,
    TopicPatterns,
    subscription_of,
    with_matches,
)
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import QUICK_HEARTBEAT_MS, QUICK_HEARTBEAT_MS_PER_MEMBER
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
from tidemill.wire.generated.consumer_group_metadata_record import ConsumerGroupMetadataValue
from tidemill.wire.generated.consumer_group_regular_expression_record import (
    ConsumerGroupRegularExpressionValue,
)
from tidemill.wire.generated.consumer_group_target_assignment_member_record import (
    ConsumerGroupTargetAssignmentMemberValue,
)
from tidemill.wire.generated.consumer_group_target_assignment_metadata_record import (
    ConsumerGroupTargetAssignmentMetadataValue,
)
from tidemill.wire.generated.offset_commit import OffsetCommitRequestTopic

__all__ = ["ConsumerGroup"]

Downgrade = Callable[
    ["ConsumerGroup", Sequence[ConsumerMember], Now], list[CoordinatorRecord] | None
]
"""Makes a classic group of those that stay if these members go; None if it stays as it is."""


class _Target(NamedTuple):
    """A member's target assignment and its epoch."""

    epoch: int
    partitions: Partitions


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
        self._targets = ConsumerTargets()
        self._patterns = TopicPatterns(group_id, context)
        self._pace = RebalancePace()
        self._epoch = 0
        self._topics_hash = 0
        """Hash of the subscribed topics at the time when the group epoch was set."""
        self.stays_in_epoch = 0
        """Soft state: the last group epoch in which it could not become a classic group."""
        self._topics_may_have_changed = False
        """Soft state: the hash must be computed again."""
        self._newest_hash: int | None = None
        """Soft state: the hash over the newest topics, from a heartbeat that raised the epoch."""

    # --- for members that use the classic protocol (migration/) ----------------------------------

    @property
    def context(self) -> ShardContext:
        return self._context

    @property
    def members(self) -> ConsumerMembers:
        return self._members

    @property
    def epoch(self) -> int:
        return self._epoch

    def has_new(self, member_id: str) -> bool:
        """Whether it is a member that uses the consumer protocol."""
        member = self._members.get(member_id)
        return member is not None and not member.is_classic

    def has_newer_target(self, member: ConsumerMember, now: Now) -> bool:
        """Whether the member's next join would bring it further, or compute a new target."""
        if member.current.member_epoch < self._targets.epoch:
            return True
        if self._topics_may_have_changed and self._members.classic_count == len(self._members):
            return True  # no member of the new protocol is there to notice
        return self._epoch > self._targets.epoch and not self._must_wait(now)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether other members still have a part of the member's target."""
        return any(
            self._members.try_owner(topic_id, number) not in (None, member.member_id)
            for topic_id, numbers in self._targets.of(member.member_id).items()
            for number in numbers
        )

    def advance(
        self,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        sender: HeartbeatSender,
        classic: ClassicProtocols,
        now: Now,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """A member that uses the classic protocol joins, perhaps again: one step of its own."""
        return self._advance(request, caller, sender, now, classic=classic)

    def fence(self, members: Sequence[ConsumerMember], now: Now) -> list[CoordinatorRecord]:
        """Remove members that leave."""
        return self._fence(members, now)

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
        if self._epoch > self._targets.epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self._targets.epoch) for member in self._members):
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
        return self._targets.made_ms

    def subscribes_to(self, topic: str) -> bool:
        return self._members.subscribes_to(topic) or self._patterns.match(topic)

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
        patterns = self._patterns.tombstones()
        return [*patterns, *group_tombstones(self._group_id, self._members.ids())]

    def loaded(self, now: Now) -> None:
        self._topics_may_have_changed = True
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
            return Result(None, self._evaluate_more(now))
        if evaluates:
            self._patterns.postpone(now)  # both raise the epoch: one decision at a time
        return Result(None, self._fence(list(late.values()), now) if late else [])

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """The next heartbeat acts on it: until then no member can be told."""
        names = (*delta.topics_changed, *(one.name for one in delta.topics_deleted))
        if self._members.patterns or any(self._members.subscribes_to(name) for name in names):
            self._topics_may_have_changed = True
            self._newest_hash = None
        return Result(None)

    def parked(self) -> list[Deferred[Any]]:
        return []

    def describe(self) -> DescribedGroup:
        image = self._context.image
        return DescribedGroup(
            group_id=self._group_id,
            group_state=self.state_name,
            group_epoch=self._epoch,
            assignment_epoch=self._targets.epoch,
            assignor_name=preferred_assignor(
                (member.metadata for member in self._members),
                self._context.config.consumer_assignors,
            ),
            members=[
                described_member(member, self._targets.of(member.member_id), image)
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
        self._patterns.check(request.subscribed_topic_regex, self._members.patterns)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request, now)
        sender = identify_sender(
            self._members, request, caller.fresh_member_id, config.group_max_size
        )
        return self._advance(request, caller, sender, now)

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
            and self._epoch == self._targets.epoch
            and not self._topics_may_have_changed
            and member.is_reconciled_to(self._targets.epoch)
        )

    def _advance(
        self,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        sender: HeartbeatSender,
        now: Now,
        *,
        classic: ClassicProtocols | None = None,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """Apply the request, compute a target if one is due, move the member towards it."""
        member = sender.member
        records: list[CoordinatorRecord] = []
        if sender.replaced is not None:
            records += member_tombstones(self._group_id, sender.replaced.member_id)
        metadata = metadata_after(request, caller, member.metadata)._replace(classic=classic)
        if not sender.is_known or metadata != member.metadata:
            records.append(member_record(self._group_id, member.member_id, metadata))
        patterns = self._next_patterns(sender, metadata, caller, records, now)
        epoch = self._next_epoch(sender, metadata, patterns, records)
        target = self._next_target(sender, metadata, patterns, epoch, records, now)
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
            is_changing=epoch != self._targets.epoch or self._patterns.is_unfinished,
        )
        return Result(response, records)

    def _next_patterns(
        self,
        sender: HeartbeatSender,
        metadata: MemberMetadata,
        caller: Caller,
        records: list[CoordinatorRecord],
        now: Now,
    ) -> PatternTopics:
        """The topics of all regular expressions, evaluated again if they may have changed."""
        used = self._members.patterns_if(without=[sender.former], with_pattern=metadata.pattern)
        records += self._patterns.tombstones(used=used)
        is_new = metadata.pattern != sender.member.metadata.pattern
        if not is_new and not self._topics_may_have_changed:
            return self._patterns.topics_of(used)
        return self._patterns.evaluate(
            used, caller.sees_topic, own=metadata.pattern, now=now, records=records
        )

    def _evaluate_more(self, now: Now) -> list[CoordinatorRecord]:
        self._topics_may_have_changed = True  # the next heartbeat looks at the outcome
        records: list[CoordinatorRecord] = []
        used = self._members.patterns
        patterns = self._patterns.evaluate_more(used, now=now, records=records)
        if records:
            names = with_matches(self._members.topics(), patterns)
            self._raise_epoch(topics_hash(names, self._context.image), records)
        return records

    def _next_epoch(
        self,
        sender: HeartbeatSender,
        metadata: MemberMetadata,
        patterns: PatternTopics,
        records: list[CoordinatorRecord],
    ) -> int:
        """The group epoch, raised if the subscriptions or their topics have changed."""
        before = sender.member.metadata
        subscription = metadata.topics, metadata.pattern
        raises = self._epoch == 0 or subscription != (before.topics, before.pattern)
        raises = raises or patterns != self._patterns.topics_of(patterns)
        if not raises and not self._topics_may_have_changed:
            return self._epoch
        topics = self._members.topics_if(without=[sender.former], with_topics=metadata.topics)
        new_hash = topics_hash(with_matches(topics, patterns), self._context.image)
        if new_hash == self._topics_hash:
            self._topics_may_have_changed = self._patterns.is_unfinished
            if not raises:
                return self._epoch
        self._newest_hash = new_hash
        return self._raise_epoch(new_hash, records)

    def _raise_epoch(self, new_hash: int, records: list[CoordinatorRecord]) -> int:
        epoch = self._epoch + 1
        records.append(group_record(self._group_id, epoch, new_hash))
        self._context.rebalances += 1
        return epoch

    def _next_target(
        self,
        sender: HeartbeatSender,
        metadata: MemberMetadata,
        patterns: PatternTopics,
        epoch: int,
        records: list[CoordinatorRecord],
        now: Now,
    ) -> _Target:
        """The member's target; recomputed for all members if the group epoch is ahead."""
        member_id, former_id = sender.member.member_id, sender.former.member_id
        if epoch == self._targets.epoch or self._must_wait(now):
            target = self._targets.of(former_id)
            if sender.replaced is not None:
                records.append(target_record(self._group_id, member_id, target))
            return _Target(self._targets.epoch, target)
        members = {one.member_id: subscription_of(one.metadata, patterns) for one in self._members}
        members.pop(former_id, None)
        members[member_id] = subscription_of(metadata, patterns)
        rows = self._targets.compute_for(
            members,
            assignors=self._context.config.consumer_assignors,
            image=self._context.image,
            heirs={member_id: former_id},
        )
        for one, row in rows.items():
            if row is not self._targets.of(one):
                records.append(target_record(self._group_id, one, row))
        records.append(target_epoch_record(self._group_id, epoch, now.wall_ms))
        self._pace.count(now.monotonic_ms)
        return _Target(epoch, rows[member_id])

    def _must_wait(self, now: Now) -> bool:
        """Whether the group rebalances too often: the old target stays for now (S41)."""
        return self._targets.epoch > 0 and self._pace.wait_ms(now.monotonic_ms) > 0

    def _reconciled(
        self, sender: HeartbeatSender, target: _Target, request: ConsumerGroupHeartbeatRequest
    ) -> CurrentAssignment:
        free_or_own = {None, sender.member.member_id, sender.former.member_id}

        def is_free(topic_id: UUID, partition: int) -> bool:
            return self._members.try_owner(topic_id, partition) in free_or_own

        current = sender.member.current
        if sender.member.is_away or sender.replaced is not None:
            current = current._replace(member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        after = reconcile(
            current,
            target=target.partitions,
            target_epoch=target.epoch,
            owned=request.topic_partitions,
            is_free=is_free,
        )
        if request.member_epoch != JOIN_EPOCH:
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
            heartbeat_interval_ms=self._heartbeat_interval_ms(now, is_changing=is_changing),
            assignment=None if assigned is None else heartbeat_assignment(assigned),
        )

    def _heartbeat_interval_ms(self, now: Now, *, is_changing: bool) -> int:
        """When the member sends its next heartbeat: sooner for a while after a new target.

        Only heartbeats tell a member to give up a partition, and another one that it is free.
        """
        usual_ms = self._context.consumer_timeouts(self._group_id).heartbeat_ms
        if not is_changing and now.wall_ms - self._targets.made_ms >= usual_ms:
            return usual_ms
        quick_ms = max(QUICK_HEARTBEAT_MS, len(self._members) * QUICK_HEARTBEAT_MS_PER_MEMBER)
        return min(usual_ms, quick_ms)

    # --- leaving ---------------------------------------------------------------------------------

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        member = identify_leaver(self._members, request)
        if request.member_epoch == LEAVE_EPOCH:
            records = self._fence([member], now)
        else:
            away = member.current._replace(
                member_epoch=STATIC_LEAVE_EPOCH, state=MemberState.STABLE, revoking=NOTHING
            )
            records = [current_record(self._group_id, member.member_id, away)]
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )
        return Result(response, records)

    def _fence(self, members: Sequence[ConsumerMember], now: Now) -> list[CoordinatorRecord]:
        """Remove members: their partitions become free, the next heartbeat plans without them."""
        downgraded = self._downgrade and self._downgrade(self, members, now)
        if downgraded:
            return downgraded
        records = [
            record
            for member in members
            for record in member_tombstones(self._group_id, member.member_id)
        ]
        used = self._members.patterns_if(without=members)
        records += self._patterns.tombstones(used=used)
        topics = self._members.topics_if(without=members)
        topics = with_matches(topics, self._patterns.topics_of(used))
        epoch = self._raise_epoch(topics_hash(topics, self._context.image), records)
        if len(self._members) == len(members):
            records.append(target_epoch_record(self._group_id, epoch, now.wall_ms))
        return records

    # --- replay ----------------------------------------------------------------------------------

    def replay_group_metadata(self, value: ConsumerGroupMetadataValue | None) -> None:
        self._epoch = 0 if value is None else value.epoch
        self._topics_hash = 0 if value is None else value.metadata_hash
        if self._topics_hash == self._newest_hash:
            self._topics_may_have_changed = self._patterns.is_unfinished

    def replay_member_metadata(
        self, member_id: str, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is not None:
            self._members.put_metadata(member_id, metadata_of(value))
            self.deadlines.member_put(member_id)
            return
        self._members.drop(member_id)
        self.deadlines.member_dropped(member_id)

    def replay_pattern(
        self, pattern: str, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        self._patterns.replay(pattern, value)

    def replay_target_metadata(
        self, value: ConsumerGroupTargetAssignmentMetadataValue | None
    ) -> None:
        self._targets.epoch = 0 if value is None else value.assignment_epoch
        self._targets.made_ms = 0 if value is None else value.assignment_timestamp

    def replay_target_member(
        self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self._targets.rows.pop(member_id, None)
        else:
            self._targets.rows[member_id] = target_of(value)

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
