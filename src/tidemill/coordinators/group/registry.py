"""The groups of one shard by name, and how records of the log create and delete them.

A group is *recorded* once the log has a record of the group itself. A group without one is either
new, with its first member still joining, and may be forgotten; or it has offsets and nothing else,
because simple consumers commit without joining. Such a *simple* group is a classic group without a
protocol type, until a member joins it by either protocol.

Compaction keeps the last record of each key, in the order of the log. So the offsets of a consumer
group may come before the group's own records, and replay may change the kind of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from tidemill.coordinators.group.base.group import ShardContext
from tidemill.coordinators.group.classic.classic_group import ClassicGroup
from tidemill.coordinators.group.consumer.consumer_group import ConsumerGroup
from tidemill.coordinators.group.migration.downgrade import try_downgrade
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.consumer_group_current_member_assignment_record import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from tidemill.wire.generated.consumer_group_member_metadata_record import (
    ConsumerGroupMemberMetadataKey,
)
from tidemill.wire.generated.consumer_group_metadata_record import ConsumerGroupMetadataKey
from tidemill.wire.generated.consumer_group_regular_expression_record import (
    ConsumerGroupRegularExpressionKey,
)
from tidemill.wire.generated.consumer_group_target_assignment_member_record import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from tidemill.wire.generated.consumer_group_target_assignment_metadata_record import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from tidemill.wire.generated.group_metadata_record import GroupMetadataKey, GroupMetadataValue
from tidemill.wire.message import Message

__all__ = ["AnyGroup", "GroupLimit", "GroupRegistry", "is_simple"]

AnyGroup = ClassicGroup | ConsumerGroup


@final
class GroupLimit:
    """Limits the groups that one broker coordinates, in all its shards together (S38)."""

    __slots__ = ("count", "groups_max")

    def __init__(self, groups_max: int) -> None:
        self.groups_max = groups_max
        self.count = 0

    def check_one_more(self) -> None:
        """KafkaError if the limit is reached."""
        if self.count >= self.groups_max:
            detail = f"this broker coordinates {self.groups_max} groups (tidemill.groups.max)"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)


def is_simple(group: AnyGroup) -> bool:
    """Whether no member ever joined: the group has offsets and nothing else."""
    return isinstance(group, ClassicGroup) and group.is_empty and not group.protocol_type


@final
class GroupRegistry:
    """All groups of one shard, and which of them are recorded."""

    def __init__(
        self, context: ShardContext, limit: GroupLimit, has_offsets: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._has_offsets = has_offsets
        self.limit = limit
        self._groups: dict[str, AnyGroup] = {}
        self._recorded: set[str] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[AnyGroup]:
        return iter(self._groups.values())

    def ids(self) -> Iterator[str]:
        return iter(self._groups)

    def try_find(self, group_id: str) -> AnyGroup | None:
        return self._groups.get(group_id)

    def is_recorded(self, group_id: str) -> bool:
        return group_id in self._recorded

    # --- soft changes ----------------------------------------------------------------------------

    def make_classic(self, group_id: str) -> ClassicGroup:
        """Create the group; it replaces any group of this name."""
        group = ClassicGroup(group_id, self._context)
        self._put(group)
        return group

    def make_consumer(self, group_id: str) -> ConsumerGroup:
        """Create the group; it replaces any group of this name."""
        group = ConsumerGroup(group_id, self._context, try_downgrade)
        self._put(group)
        return group

    def _put(self, group: AnyGroup) -> None:
        if group.group_id not in self._groups:
            self.limit.count += 1
        self._groups[group.group_id] = group

    def drop(self, group_id: str) -> None:
        """Forget an existing group; the caller takes care of its records."""
        del self._groups[group_id]
        self.limit.count -= 1
        self._recorded.discard(group_id)

    def drop_all(self) -> None:
        self.limit.count -= len(self._groups)
        self._groups.clear()
        self._recorded.clear()

    # --- replay ----------------------------------------------------------------------------------

    def replay_offset(self, group_id: str) -> None:
        """An offset of the group was set or deleted: the first one creates a simple group.

        Deleting the last one does not end the group: a sweep does, with a tombstone of its own.
        """
        if group_id not in self._groups and self._has_offsets(group_id):
            self.make_classic(group_id)

    def replay(self, key: Message, value: Message | None) -> None:
        """Apply a record of a group or one of its members."""
        if isinstance(key, GroupMetadataKey):
            self._replay_classic(key.group, value)
        else:
            self._replay_consumer(key, value)

    def _replay_classic(self, group_id: str, value: Message | None) -> None:
        group = self._groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                group.replay_metadata(None)
                self._delete(group_id)
            return
        assert isinstance(value, GroupMetadataValue)
        if not isinstance(group, ClassicGroup):
            group = self.make_classic(group_id)
        self._recorded.add(group_id)
        group.replay_metadata(value)

    def _replay_consumer(self, key: Message, value: Message | None) -> None:
        group_id = _group_of(key)
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.make_consumer(group_id)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            self._delete(group_id)
        else:
            self._recorded.add(group_id)
            _replay_into(group, key, value)

    def _delete(self, group_id: str) -> None:
        self.drop(group_id)
        if self._has_offsets(group_id):
            self.make_classic(group_id)


def _group_of(key: Message) -> str:
    assert isinstance(
        key,
        ConsumerGroupMetadataKey
        | ConsumerGroupMemberMetadataKey
        | ConsumerGroupTargetAssignmentMetadataKey
        | ConsumerGroupTargetAssignmentMemberKey
        | ConsumerGroupCurrentMemberAssignmentKey
        | ConsumerGroupRegularExpressionKey,
    )
    return key.group_id


def _replay_into(group: ConsumerGroup, key: Message, value: Any) -> None:  # noqa: ANN401
    """`value` is None or of the class that belongs to the key; `decode_value` guarantees it."""
    match key:
        case ConsumerGroupMetadataKey():
            group.plan.replay_epoch(value)
        case ConsumerGroupMemberMetadataKey():
            group.replay_member_metadata(key.member_id, value)
        case ConsumerGroupTargetAssignmentMetadataKey():
            group.plan.targets.replay_epoch(value)
        case ConsumerGroupTargetAssignmentMemberKey():
            group.plan.targets.replay_member(key.member_id, value)
        case ConsumerGroupRegularExpressionKey():
            group.plan.patterns.replay(key.regular_expression, value)
        case _:
            assert isinstance(key, ConsumerGroupCurrentMemberAssignmentKey)
            group.replay_current_assignment(key.member_id, value)
