"""The groups of one partition of `__consumer_offsets`: a `Shard` (`runtime/shard.py`).

The shard finds the group that a request is for, creates it where the request may, and refuses
requests for the wrong kind of group. What happens inside a group is in `classic/` and `consumer/`,
their offsets are in `shard_offsets.py`. If the whole request is refused, it raises `KafkaError`.

A name belongs to one kind of group at a time. A client of the other protocol may take over an empty
group: the shard deletes the old group's records and asks the client to retry
(COORDINATOR_LOAD_IN_PROGRESS), because the new group may begin only after the deletion is in the
log. A simple group, which no member ever joined, has no such records and changes its kind at once.
A group of consumers with members changes its kind with them (`migration/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar, final

from tidemill.coordinators.group.base.group import (
    Caller,
    DeadlineKey,
    DeadlineKind,
    ShardContext,
    TopicMatcher,
)
from tidemill.coordinators.group.base.records import (
    decode_value,
    is_offset_key,
    try_decode_key,
)
from tidemill.coordinators.group.classic.classic_group import ClassicGroup
from tidemill.coordinators.group.consumer.consumer_group import ConsumerGroup
from tidemill.coordinators.group.consumer.heartbeat_request import check_heartbeat
from tidemill.coordinators.group.migration import classic_requests
from tidemill.coordinators.group.migration.upgrade import try_upgrade
from tidemill.coordinators.group.registry import AnyGroup, GroupLimit, GroupRegistry, is_simple
from tidemill.coordinators.group.shard_offsets import NO_GENERATION, ShardOffsets
from tidemill.coordinators.runtime.batch_sized_work import BatchSizedWork
from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import Now, ProducerName, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta, MetadataImage, difference
from tidemill.wire.generated.consumer_group_describe import DescribedGroup as ConsumerDescription
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidemill.wire.generated.delete_groups import DeletableGroupResult
from tidemill.wire.generated.describe_groups import DescribedGroup
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from tidemill.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidemill.wire.generated.list_groups import ListedGroup
from tidemill.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["GroupShard"]

R = TypeVar("R")

FIRST_HEARTBEAT_EPOCH: Final = 0
"""The member epoch in a new member's first heartbeat."""
RECORDS_PER_DEADLINE: Final = 3
"""A member is fenced by three tombstones, whose keys name the group and the member."""
RETRY: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@final
class GroupShard:
    """All groups and offsets of one partition."""

    def __init__(
        self,
        config: GroupConfig,
        image: MetadataImage,
        limit: GroupLimit | None = None,
        *,
        matcher: TopicMatcher,
        knows_all_topics: Callable[[], bool] = lambda: True,
    ) -> None:
        """`knows_all_topics`: the newest image lacks none of those that exist."""
        self._context = ShardContext(config, Deadlines(), image, matcher)
        self._groups = GroupRegistry(
            self._context,
            limit or GroupLimit(config.groups_max),
            lambda group_id: self.offsets.has_any(group_id),
        )
        self.offsets = ShardOffsets(self._context, self._groups, knows_all_topics)
        self._topic_changes: Delta | None = None
        """Topic changes that some groups have not been told of; None if all have."""
        self._groups_to_tell: list[str] = []
        """Ids of the groups that have yet to be told."""

    @property
    def group_count(self) -> int:
        return len(self._groups)

    def count_states(self) -> Counter[str]:
        """The number of groups in each state."""
        return Counter(group.state_name for group in self._groups)

    @property
    def rebalances(self) -> int:
        """Since the shard was loaded."""
        return self._context.rebalances

    # --- the Shard Protocol ----------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        if is_offset_key(key):
            self.offsets.replay(key, value)
            return
        name = try_decode_key(key)
        if name is None:
            return
        taken = None if value is None else decode_value(name, value)
        self._groups.replay(name, taken)

    def replay_pending(self, key: bytes, value: bytes | None, producer: ProducerName) -> None:
        if is_offset_key(key):
            self.offsets.replay_pending(key, value, producer)
        else:
            self.replay(key, value)

    def replay_marker(self, producer: ProducerName, *, is_commit: bool) -> None:
        self.offsets.replay_marker(producer, is_commit=is_commit)

    def loaded(self, now: Now) -> None:
        for group in list(self._groups):
            group.loaded(now)
            self._maybe_drop(group)  # all its offsets were deleted
        self.offsets.loaded(now)

    def next_deadline_ms(self) -> int | None:
        if self._groups_to_tell:
            return 0
        member_ms = self._context.deadlines.next_ms()
        offset_ms = self.offsets.next_deadline_ms()
        if member_ms is None or offset_ms is None:
            return member_ms if offset_ms is None else offset_ms
        return min(member_ms, offset_ms)

    def expire(self, now: Now) -> Result[None]:
        work = BatchSizedWork()
        self._tell_groups(work, now)
        self._pass_deadlines(work, now)
        self.offsets.expire(work, now)
        return work.result

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        self._context.image = delta.after
        work = BatchSizedWork()
        if _concerns_groups(delta):
            before = delta.before if self._topic_changes is None else self._topic_changes.before
            self._topic_changes = difference(before, delta.after)
            self._groups_to_tell = list(self._groups.ids())
            self.offsets.topics_deleted(delta.topics_deleted)
            self._tell_groups(work, now)
            self.offsets.expire(work, now)
        return work.result

    def config_changed(self, config: GroupConfig) -> None:
        """Members are held to the new values from their next request on."""
        self._context.config = config
        self.offsets.config_changed(config)

    def resign(self) -> list[Deferred[Any]]:
        parked = [one for group in self._groups for one in group.parked()]
        self._groups.drop_all()
        return parked

    def _tell_groups(self, work: BatchSizedWork, now: Now) -> None:
        """Tell groups of the topic changes, as many as fit into one batch."""
        while self._topic_changes is not None and not work.is_full:
            if not self._groups_to_tell:
                self._topic_changes = None
                break
            group = self._groups.try_find(self._groups_to_tell.pop())
            if group is not None:
                work.add(group.metadata_changed(self._topic_changes, now))

    def _pass_deadlines(self, work: BatchSizedWork, now: Now) -> None:
        """Handle some of the deadlines that have passed, those of one group together."""
        by_group: dict[str, list[DeadlineKey]] = {}
        count = size_bytes = 0
        while work.has_room(steps=count, size_bytes=size_bytes):
            due = self._context.deadlines.take_due(now.monotonic_ms, 1)
            if not due:
                break
            by_group.setdefault(due[0].group_id, []).append(due[0])
            if due[0].kind is DeadlineKind.PATTERNS:
                break  # it will use up a slice of the loop's time
            count += 1
            size_bytes += RECORDS_PER_DEADLINE * due[0].size_bytes
        for group_id, keys in by_group.items():
            group = self._groups.try_find(group_id)
            if group is not None:
                work.add(group.deadlines_passed(keys, now), steps=len(keys))
                self._maybe_drop(group)

    def _maybe_drop(self, group: AnyGroup) -> None:
        """Forget a group that is empty and has neither a record nor an offset in the log."""
        group_id = group.group_id
        is_logged = self._groups.is_recorded(group_id) or self.offsets.has_any(group_id)
        if group.is_empty and not is_logged:
            self._groups.drop(group_id)

    # --- members of classic groups ---------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, caller: Caller, *, version: int, now: Now
    ) -> Result[JoinGroupResponse]:
        """JoinGroup; the first member creates the group."""
        group = self._groups.try_find(request.group_id)
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return classic_requests.join(group, request, caller, version=version, now=now)
            return Result(_retry_join(request), group.tombstones())
        if group is not None:
            return group.join(request, caller, version=version, now=now)
        _check_group_id(request.group_id)
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._groups.limit.check_one_more()
        try:
            return self._groups.make_classic(request.group_id).join(
                request, caller, version=version, now=now
            )
        except KafkaError:
            self._groups.drop(request.group_id)
            raise

    def sync(self, request: SyncGroupRequest, *, now: Now) -> Result[SyncGroupResponse]:
        group = self._group_of_member(request.group_id)
        if isinstance(group, ConsumerGroup):
            return classic_requests.sync(group, request, now=now)
        return group.sync(request, now=now)

    def heartbeat(self, request: HeartbeatRequest, *, now: Now) -> Result[HeartbeatResponse]:
        group = self._group_of_member(request.group_id)
        if isinstance(group, ConsumerGroup):
            return classic_requests.heartbeat(group, request, now=now)
        return group.heartbeat(request, now=now)

    def leave(
        self, request: LeaveGroupRequest, *, version: int, now: Now
    ) -> Result[LeaveGroupResponse]:
        group = self._group_of_member(request.group_id)
        if isinstance(group, ConsumerGroup):
            return classic_requests.leave(group, request, version=version, now=now)
        result = group.leave(request, version=version, now=now)
        self._maybe_drop(group)
        return result

    def _group_of_member(self, group_id: str) -> AnyGroup:
        """The group of a request that only its members send. KafkaError: there is none."""
        group = self._groups.try_find(group_id)
        if group is not None:
            return group
        _check_group_id(group_id)
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def describe_classic_group(self, group_id: str) -> DescribedGroup:
        group = self._groups.try_find(group_id)
        if not isinstance(group, ClassicGroup):
            raise _not_found(group_id, group, "classic")
        return group.describe()

    # --- members of consumer groups --------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, *, version: int, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat; the first member creates the group."""
        group = self._groups.try_find(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group.heartbeat(request, caller, version=version, now=now)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the group has no name")
        if request.member_epoch != FIRST_HEARTBEAT_EPOCH:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "there is no such group")
        if group is not None and not is_simple(group):
            self._check_join(request, version)
            return self._take_over(group, now)
        return self._create_consumer_group(request, caller, version=version, now=now)

    def _check_join(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        """KafkaError if no group accepts the request: then it changes no group either."""
        check_heartbeat(request, version, self._context.config.consumer_assignors)
        if request.subscribed_topic_regex:
            self._context.matcher.check(request.subscribed_topic_regex)

    def _take_over(self, group: ClassicGroup, now: Now) -> Result[ConsumerGroupHeartbeatResponse]:
        """End the classic group, or make a consumer group of it with its members."""
        records = group.tombstones() if group.is_empty else try_upgrade(group, self._context, now)
        if records is None:
            raise _not_found(group.group_id, group, "consumer")
        retry = ConsumerGroupHeartbeatResponse(
            error_code=int(RETRY), error_message="the classic group of this name is changed"
        )
        return Result(retry, records, group.refuse_parked(ErrorCode.REBALANCE_IN_PROGRESS))

    def _create_consumer_group(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, *, version: int, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        group_id = request.group_id
        if self._groups.try_find(group_id) is None:
            self._groups.limit.check_one_more()
        group = self._groups.make_consumer(group_id)
        try:
            return group.heartbeat(request, caller, version=version, now=now)
        except KafkaError:
            self._groups.drop(group_id)
            if self.offsets.has_any(group_id):
                self._groups.make_classic(group_id)
            raise

    def describe_consumer_group(self, group_id: str) -> ConsumerDescription:
        group = self._groups.try_find(group_id)
        if not isinstance(group, ConsumerGroup):
            raise _not_found(group_id, group, "consumer")
        return group.describe()

    # --- groups as a whole -----------------------------------------------------------------------

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Groups in one of these states and of one of these types (lower case); empty means all."""
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.group_type.value,
            )
            for group in self._groups
            if (not states or group.state_name.lower() in states)
            and (not types or group.group_type.value in types)
        ]

    def delete_group(self, group_id: str) -> Result[DeletableGroupResult]:
        """One group's part of DeleteGroups: the group and all its offsets."""
        group = self._groups.try_find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        work = BatchSizedWork()
        answer = DeletableGroupResult(group_id=group_id)
        if not work.add_until_full([*self.offsets.tombstones_of(group_id), *group.tombstones()]):
            # More than one batch holds: the client retries for the rest.
            answer.error_code = int(RETRY)
        return Result(answer, work.result.records)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)


def _retry_join(request: JoinGroupRequest) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(RETRY), generation_id=NO_GENERATION, member_id=request.member_id
    )


def _not_found(group_id: str, group: AnyGroup | None, kind: str) -> KafkaError:
    what = "not found" if group is None else f"not a {kind} group"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} is {what}")


def _concerns_groups(delta: Delta) -> bool:
    """Whether topics were deleted or changed their partitions; groups ignore leader changes."""
    return bool(delta.topics_deleted) or any(
        _partition_count(delta.before, name) != _partition_count(delta.after, name)
        for name in delta.topics_changed
    )


def _partition_count(image: MetadataImage, name: str) -> int:
    topic = image.topic(name)
    return 0 if topic is None else len(topic.partitions)
