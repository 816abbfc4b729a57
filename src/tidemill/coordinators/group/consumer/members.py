"""The members of one consumer group, with indexes over them: hard state, changed by replay.

A compacted log may hold a member's records in any order. So either of its two kinds of record
creates the member, and only the tombstone of its metadata removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import final
from uuid import UUID

from tidemill.coordinators.group.classic.protocols import ProtocolSupport
from tidemill.coordinators.group.consumer.assignors import Partitions
from tidemill.coordinators.group.consumer.reconciliation import CurrentAssignment, MemberState
from tidemill.coordinators.group.consumer.records import MemberMetadata

__all__ = ["LEAVE_EPOCH", "STATIC_LEAVE_EPOCH", "ConsumerMember", "ConsumerMembers"]

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""Also the epoch of a static member that left temporarily and keeps its place."""

_NEW_METADATA = MemberMetadata()
_NEW_CURRENT = CurrentAssignment()


@final
@dataclass(slots=True)
class ConsumerMember:
    """One member; both parts are replaced, never changed in place."""

    member_id: str
    metadata: MemberMetadata = _NEW_METADATA
    current: CurrentAssignment = _NEW_CURRENT
    has_listed_less: bool = False
    """The list that it sent when it was told to give up partitions did not have them, and none has
    come since. So it may never send another one: what it does not list now it does not read. Soft
    state."""

    @property
    def is_classic(self) -> bool:
        """It uses the classic protocol."""
        return self.metadata.classic is not None

    @property
    def is_away(self) -> bool:
        """It left temporarily; the next member with its instance id takes its place."""
        return self.current.member_epoch == STATIC_LEAVE_EPOCH

    def is_reconciled_to(self, target_epoch: int) -> bool:
        current = self.current
        return current.state is MemberState.STABLE and current.member_epoch == target_epoch


@final
class ConsumerMembers:
    """All members of a group."""

    def __init__(self) -> None:
        self._by_id: dict[str, ConsumerMember] = {}
        self._by_instance: dict[str, ConsumerMember] = {}
        self._subscribers: dict[str, int] = {}
        """The number of members that subscribe to each topic by name; at least one."""
        self._patterns: dict[str, int] = {}
        """The number of members that subscribe with each regular expression; at least one."""
        self.classic_count = 0
        """Members that use the classic protocol."""
        self.classic_support = ProtocolSupport()
        """The assignment protocols that these offer."""
        self._owners: dict[UUID, dict[int, str]] = {}
        """The member that was assigned each partition and has not given it up (I26)."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._by_id.values())

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._by_id.get(member_id)

    def try_holder(self, instance_id: str) -> ConsumerMember | None:
        """The static member with this instance id."""
        return self._by_instance.get(instance_id)

    def ids(self) -> list[str]:
        return sorted(self._by_id)

    @property
    def patterns(self) -> Collection[str]:
        """The regular expressions that members subscribe with."""
        return self._patterns

    def patterns_if(
        self, *, without: Iterable[ConsumerMember], with_pattern: str | None = None
    ) -> Collection[str]:
        """The same, if these members had another subscription or none."""
        gone = Counter(member.metadata.pattern for member in without)
        left = [one for one, count in self._patterns.items() if count > gone[one]]
        return left if with_pattern is None or with_pattern in left else [*left, with_pattern]

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member names the topic."""
        return topic in self._subscribers

    def topics(self) -> list[str]:
        """The topics that members name, sorted."""
        return sorted(self._subscribers)

    def topics_if(
        self, *, without: Iterable[ConsumerMember], with_topics: tuple[str, ...] = ()
    ) -> list[str]:
        """The named topics, sorted, if these members had another subscription or none."""
        gone = Counter(name for member in without for name in member.metadata.topics)
        left = (name for name, count in self._subscribers.items() if count > gone[name])
        return sorted({*left, *with_topics})

    def try_owner(self, topic_id: UUID, partition: int) -> str | None:
        """The member that has the partition or may still be reading it."""
        partitions = self._owners.get(topic_id)
        return None if partitions is None else partitions.get(partition)

    # --- replay ----------------------------------------------------------------------------------

    def put_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        member = self._find_or_add(member_id)
        self._unlist(member)
        member.metadata = metadata
        if metadata.instance_id is not None:
            self._by_instance[metadata.instance_id] = member
        if metadata.classic is not None:
            self.classic_count += 1
            self.classic_support.add(name for name, _ in metadata.classic.protocols)
        for name in metadata.topics:
            self._subscribers[name] = self._subscribers.get(name, 0) + 1
        if metadata.pattern is not None:
            self._patterns[metadata.pattern] = self._patterns.get(metadata.pattern, 0) + 1

    def put_current(self, member_id: str, current: CurrentAssignment) -> None:
        member = self._find_or_add(member_id)
        self._disown(member)
        member.current = current
        for partitions in (current.assigned, current.revoking):
            for topic_id, numbers in partitions.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member_id))

    def drop_current(self, member_id: str) -> None:
        member = self._by_id.get(member_id)
        if member is not None:
            self._disown(member)
            member.current = _NEW_CURRENT

    def drop(self, member_id: str) -> None:
        member = self._by_id.pop(member_id, None)
        if member is not None:
            self._disown(member)
            self._unlist(member)

    def _find_or_add(self, member_id: str) -> ConsumerMember:
        member = self._by_id.get(member_id)
        if member is None:
            member = self._by_id[member_id] = ConsumerMember(member_id)
        return member

    def _unlist(self, member: ConsumerMember) -> None:
        instance_id = member.metadata.instance_id
        if instance_id is not None and self._by_instance.get(instance_id) is member:
            del self._by_instance[instance_id]
        classic = member.metadata.classic
        if classic is not None:
            self.classic_count -= 1
            self.classic_support.remove(name for name, _ in classic.protocols)
        for name in member.metadata.topics:
            self._subscribers[name] -= 1
            if not self._subscribers[name]:
                del self._subscribers[name]
        pattern = member.metadata.pattern
        if pattern is not None:
            self._patterns[pattern] -= 1
            if not self._patterns[pattern]:
                del self._patterns[pattern]

    def _disown(self, member: ConsumerMember) -> None:
        self._disown_all(member.member_id, member.current.assigned)
        self._disown_all(member.member_id, member.current.revoking)

    def _disown_all(self, member_id: str, partitions: Partitions) -> None:
        for topic_id, numbers in partitions.items():
            owners = self._owners.get(topic_id, {})
            for number in numbers:
                if owners.get(number) == member_id:
                    del owners[number]
            if not owners:
                self._owners.pop(topic_id, None)
