"""The plan of one consumer group: which topics its members read, and the target of every member.

Three things follow each other, each only if the one before has changed: the topics that match the
members' regular expressions, the group epoch, and the target assignment. A heartbeat brings them up
to date before its sender takes a step towards its target (`consumer_group.py`).

The group epoch has a hash over the subscribed topics beside it in the log. Whether topics may have
changed since then is soft state: a coordinator that loads the group always looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

from tidemill.coordinators.group.base.group import Caller, ShardContext
from tidemill.coordinators.group.base.rebalance_pace import RebalancePace
from tidemill.coordinators.group.consumer.assignors import Partitions
from tidemill.coordinators.group.consumer.heartbeat_sender import HeartbeatSender
from tidemill.coordinators.group.consumer.members import ConsumerMember, ConsumerMembers
from tidemill.coordinators.group.consumer.records import (
    MemberMetadata,
    group_record,
    target_epoch_record,
    target_record,
)
from tidemill.coordinators.group.consumer.targets import ConsumerTargets, topics_hash
from tidemill.coordinators.group.consumer.topic_patterns import (
    PatternTopics,
    TopicPatterns,
    subscription_of,
    with_matches,
)
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now
from tidemill.wire.generated.consumer_group_metadata_record import ConsumerGroupMetadataValue

__all__ = ["GroupPlan", "MemberTarget"]


class MemberTarget(NamedTuple):
    """A member's target assignment and its epoch."""

    epoch: int
    partitions: Partitions


@final
class GroupPlan:
    """Patterns, group epoch and targets of one group."""

    def __init__(self, group_id: str, context: ShardContext, members: ConsumerMembers) -> None:
        self._group_id = group_id
        self._context = context
        self._members = members
        self.patterns = TopicPatterns(group_id, context)
        self.targets = ConsumerTargets()
        self._pace = RebalancePace()
        self.epoch = 0
        """The group epoch."""
        self._topics_hash = 0
        """Hash of the subscribed topics at the time when the group epoch was set."""
        self.topics_may_have_changed = False
        """Soft state: the hash must be computed again."""
        self._newest_hash: int | None = None
        """Soft state: the hash over the newest topics, from a heartbeat that raised the epoch."""

    @property
    def is_made(self) -> bool:
        """Whether the targets are those of the group epoch."""
        return self.epoch == self.targets.epoch

    def has_newer_target(self, member: ConsumerMember, now: Now) -> bool:
        """Whether the member's next step would bring it further, or compute a new target."""
        if member.current.member_epoch < self.targets.epoch:
            return True
        if self.topics_may_have_changed and self._members.classic_count == len(self._members):
            return True  # no member of the new protocol is there to notice
        return not self.is_made and not self._must_wait(now)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether other members still have a part of the member's target."""
        return any(
            self._members.try_owner(topic_id, number) not in (None, member.member_id)
            for topic_id, numbers in self.targets.of(member.member_id).items()
            for number in numbers
        )

    # --- events ----------------------------------------------------------------------------------

    def topics_changed(self, names: Iterable[str]) -> None:
        """These topics were created, deleted or grown."""
        if self._members.patterns or any(self._members.subscribes_to(name) for name in names):
            self.topics_may_have_changed = True
            self._newest_hash = None

    def advance(
        self,
        sender: HeartbeatSender,
        metadata: MemberMetadata,
        caller: Caller,
        records: list[CoordinatorRecord],
        now: Now,
    ) -> tuple[int, MemberTarget]:
        """A member has this subscription now: the group epoch, and the member's target."""
        patterns = self._next_patterns(sender, metadata, caller, records, now)
        epoch = self._next_epoch(sender, metadata, patterns, records)
        return epoch, self._next_target(sender, metadata, patterns, epoch, records, now)

    def evaluate_more(self, now: Now) -> list[CoordinatorRecord]:
        """Evaluate regular expressions further; a result raises the epoch."""
        self.topics_may_have_changed = True  # the next heartbeat looks at the outcome
        records: list[CoordinatorRecord] = []
        used = self._members.patterns
        patterns = self.patterns.evaluate_more(used, now=now, records=records)
        if records:
            names = with_matches(self._members.topics(), patterns)
            self._raise_epoch(topics_hash(names, self._context.image), records)
        return records

    def go_on_without(
        self, gone: Sequence[ConsumerMember], records: list[CoordinatorRecord], now: Now
    ) -> None:
        """Members are removed: the next heartbeat plans without them."""
        used = self._members.patterns_if(without=gone)
        records += self.patterns.tombstones(used=used)
        topics = self._members.topics_if(without=gone)
        topics = with_matches(topics, self.patterns.topics_of(used))
        epoch = self._raise_epoch(topics_hash(topics, self._context.image), records)
        if len(self._members) == len(gone):
            records.append(target_epoch_record(self._group_id, epoch, now.wall_ms))

    def replay_epoch(self, value: ConsumerGroupMetadataValue | None) -> None:
        self.epoch = 0 if value is None else value.epoch
        self._topics_hash = 0 if value is None else value.metadata_hash
        if self._topics_hash == self._newest_hash:
            self.topics_may_have_changed = self.patterns.is_unfinished

    # --- one thing after the other ---------------------------------------------------------------

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
        records += self.patterns.tombstones(used=used)
        is_new = metadata.pattern != sender.member.metadata.pattern
        if not is_new and not self.topics_may_have_changed:
            return self.patterns.topics_of(used)
        return self.patterns.evaluate(
            used, caller.sees_topic, own=metadata.pattern, now=now, records=records
        )

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
        raises = self.epoch == 0 or subscription != (before.topics, before.pattern)
        raises = raises or patterns != self.patterns.topics_of(patterns)
        if not raises and not self.topics_may_have_changed:
            return self.epoch
        topics = self._members.topics_if(without=[sender.former], with_topics=metadata.topics)
        new_hash = topics_hash(with_matches(topics, patterns), self._context.image)
        if new_hash == self._topics_hash:
            self.topics_may_have_changed = self.patterns.is_unfinished
            if not raises:
                return self.epoch
        self._newest_hash = new_hash
        return self._raise_epoch(new_hash, records)

    def _raise_epoch(self, new_hash: int, records: list[CoordinatorRecord]) -> int:
        epoch = self.epoch + 1
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
    ) -> MemberTarget:
        """The member's target; recomputed for all members if the group epoch is ahead."""
        member_id, former_id = sender.member.member_id, sender.former.member_id
        if epoch == self.targets.epoch or self._must_wait(now):
            target = self.targets.of(former_id)
            if sender.replaced is not None:
                records.append(target_record(self._group_id, member_id, target))
            return MemberTarget(self.targets.epoch, target)
        members = {one.member_id: subscription_of(one.metadata, patterns) for one in self._members}
        members.pop(former_id, None)
        members[member_id] = subscription_of(metadata, patterns)
        rows = self.targets.compute_for(
            members,
            assignors=self._context.config.consumer_assignors,
            image=self._context.image,
            heirs={member_id: former_id},
        )
        for one, row in rows.items():
            if row is not self.targets.of(one):
                records.append(target_record(self._group_id, one, row))
        records.append(target_epoch_record(self._group_id, epoch, now.wall_ms))
        self._pace.count(now.monotonic_ms)
        return MemberTarget(epoch, rows[member_id])

    def _must_wait(self, now: Now) -> bool:
        """Whether the group rebalances too often: the old target stays for now (S41)."""
        return self.targets.epoch > 0 and self._pace.wait_ms(now.monotonic_ms) > 0
