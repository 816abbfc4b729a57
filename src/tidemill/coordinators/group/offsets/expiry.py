"""Which offsets nobody needs any more.

An offset goes when its topic was deleted, or when nothing that keeps it has happened for the
retention time: it was not committed anew, nobody in the group subscribes to its topic, and the
group is empty or its members say what they subscribe to. A group that is empty and has no offset
left goes with its last offset.

A *sweep* looks at all groups of a shard, some at a time. Sweeps come in regular intervals, and at
once when a topic was deleted. A topic that is merely unknown is a different matter: this broker may
not have heard of it yet. Its offsets go only in a regular sweep, and the first of these comes a
whole interval after the shard was loaded, when even the slowest broker would have heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tidemill.coordinators.group.base.group import Group
from tidemill.coordinators.group.offsets.committed_offsets import CommittedOffset, OffsetStore
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now
from tidemill.core.config.group_config import GroupConfig
from tidemill.metadata.image.metadata_image import DeletedTopic, MetadataImage

__all__ = ["OffsetExpiry"]

CONSUMERS = "consumer"
"""The protocol type whose members' subscriptions are known."""


@final
class OffsetExpiry:
    """The sweeps of one shard: when the next slice is due, and what goes with it."""

    def __init__(self, config: GroupConfig, store: OffsetStore) -> None:
        self._config = config
        self._store = store
        self.deleted: dict[bytes, int] = {}
        """Ids of deleted topics, and the number of the sweep that deals with them."""
        self._sweep = 0
        self._to_look_at: list[str] = []
        self._is_regular = False
        """The sweep that goes on now is not one for deleted topics alone."""
        self._is_wanted = False
        """Another sweep is to follow at once."""
        self._regular_at_ms: int | None = None

    def loaded(self, now: Now) -> None:
        self._regular_at_ms = now.monotonic_ms + self._config.offsets_retention_check_interval_ms

    def topics_deleted(self, topics: Iterable[DeletedTopic]) -> None:
        """Offsets of these are hidden from now on, and go with the next sweep."""
        for topic in topics:
            self.deleted[topic.topic_id.bytes] = self._sweep + 1
            self._is_wanted = True

    def next_deadline_ms(self) -> int | None:
        if self._to_look_at or self._is_wanted:
            return 0
        return self._regular_at_ms

    # --- going through the groups ----------------------------------------------------------------

    def begin(self, group_ids: Iterable[str], now: Now) -> bool:
        """Whether a sweep goes on, or begins now because it is due."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or due_ms > now.monotonic_ms:
            return False
        if not self._to_look_at:
            self._sweep += 1
            self._is_wanted = False
            self._to_look_at = list(group_ids)
            self._plan_regular(now)
            self._maybe_finish()
        return True

    def try_next_group(self) -> str | None:
        """The next group to look at, None at the end of the sweep."""
        return self._to_look_at[-1] if self._to_look_at else None

    def done(self, group_id: str) -> None:
        """The group that was taken has nothing left to expire."""
        assert self._to_look_at[-1] == group_id
        self._to_look_at.pop()
        self._maybe_finish()

    def _plan_regular(self, now: Now) -> None:
        due_ms = self._regular_at_ms
        self._is_regular = due_ms is not None and due_ms <= now.monotonic_ms
        if self._is_regular:
            self._regular_at_ms = (
                now.monotonic_ms + self._config.offsets_retention_check_interval_ms
            )

    def _maybe_finish(self) -> None:
        if not self._to_look_at:
            self.deleted = {one: at for one, at in self.deleted.items() if at > self._sweep}

    # --- one group -------------------------------------------------------------------------------

    def expired(self, group: Group, image: MetadataImage, now: Now) -> list[CoordinatorRecord]:
        """The tombstones of the group's offsets that go."""
        used_until_ms = now.wall_ms - self._config.offsets_retention_ms
        keeps = self._keeps_all(group, used_until_ms)
        tombstones: list[CoordinatorRecord] = []
        for topic, partitions in self._store.of(group.group_id).items():
            is_unused = not keeps and not group.subscribes_to(topic)
            tombstones.extend(
                entry.tombstone()
                for entry in partitions.values()
                if (is_unused and entry.commit_ms <= used_until_ms)
                or self._is_orphan(topic, entry, image)
            )
        return tombstones

    def _keeps_all(self, group: Group, used_until_ms: int) -> bool:
        """Whether none of the group's offsets may expire for want of use."""
        if not self._is_regular:
            return True
        if not group.is_empty:
            return group.protocol_type != CONSUMERS
        return bool(group.protocol_type) and group.empty_since_ms > used_until_ms

    def _is_orphan(self, name: str, entry: CommittedOffset, image: MetadataImage) -> bool:
        if entry.topic_id in self.deleted:
            return True
        if not self._is_regular:
            return False
        topic = image.topic(name)
        return topic is None or not entry.belongs_to(topic.topic_id.bytes)
