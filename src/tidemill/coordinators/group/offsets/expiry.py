"""Expiry of offsets that no consumer needs any more.

An offset expires when its topic was deleted. It also expires when all of this holds for the
retention time: there was no new commit, no member subscribes to its topic, and the group is either
empty or its members' subscriptions are known. An empty group is deleted with its last offset.

A *sweep* looks at all groups of a shard, a few at a time. Sweeps run at regular intervals, and at
once when a topic was deleted. A topic that is merely unknown may be new: this broker's image may
lag behind. Its offsets are deleted only by a regular sweep. The first regular sweep runs a whole
interval after the shard was loaded, when every image has caught up. No topic counts as unknown
while the image may lack one, as after a start with a page of the metadata that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from tidemill.coordinators.group.base.group import Group
from tidemill.coordinators.group.offsets.committed_offsets import CommittedOffset, OffsetStore
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now
from tidemill.core.config.group_config import GroupConfig
from tidemill.metadata.image.metadata_image import DeletedTopic, MetadataImage

__all__ = ["OffsetExpiry"]

CONSUMERS: Final = "consumer"
"""The protocol type whose subscriptions are known."""


@final
class OffsetExpiry:
    """The sweeps of one shard: when the next step is due, and which offsets it deletes."""

    def __init__(
        self, config: GroupConfig, store: OffsetStore, knows_all_topics: Callable[[], bool]
    ) -> None:
        self.config = config
        """The newest configuration; the shard replaces it when it changes."""
        self._store = store
        self._knows_all_topics = knows_all_topics
        self.deleted: dict[bytes, int] = {}
        """Ids of deleted topics, with the number of the sweep that deletes their offsets."""
        self._sweep = 0
        self._groups_left: list[str] = []
        self._is_regular = False
        """The current sweep is a regular one, not only for deleted topics."""
        self._is_wanted = False
        """Another sweep must follow at once."""
        self._regular_since_ms: int | None = None
        """When the interval began at whose end the next regular sweep is due."""

    def loaded(self, now: Now) -> None:
        self._regular_since_ms = now.monotonic_ms

    def topics_deleted(self, topics: Iterable[DeletedTopic]) -> None:
        """Hide the offsets of these topics; the next sweep deletes them."""
        for topic in topics:
            self.deleted[topic.topic_id.bytes] = self._sweep + 1
            self._is_wanted = True

    def next_deadline_ms(self) -> int | None:
        if self._groups_left or self._is_wanted:
            return 0
        return self._regular_at_ms

    @property
    def _regular_at_ms(self) -> int | None:
        since_ms = self._regular_since_ms
        if since_ms is None:
            return None
        return since_ms + self.config.offsets_retention_check_interval_ms

    # --- sweeping the groups ---------------------------------------------------------------------

    def begin(self, group_ids: Iterable[str], now: Now) -> bool:
        """Begin a sweep if one is due; whether a sweep is in progress now."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or due_ms > now.monotonic_ms:
            return False
        if not self._groups_left:
            self._sweep += 1
            self._is_wanted = False
            self._groups_left = list(group_ids)
            self._plan_regular(now)
            self._maybe_finish()
        return True

    def try_next_group(self) -> str | None:
        """The next group of the sweep; None at its end."""
        return self._groups_left[-1] if self._groups_left else None

    def done(self, group_id: str) -> None:
        """The current group has nothing left to expire."""
        assert self._groups_left[-1] == group_id
        self._groups_left.pop()
        self._maybe_finish()

    def _plan_regular(self, now: Now) -> None:
        due_ms = self._regular_at_ms
        self._is_regular = due_ms is not None and due_ms <= now.monotonic_ms
        if self._is_regular:
            self._regular_since_ms = now.monotonic_ms

    def _maybe_finish(self) -> None:
        if not self._groups_left:
            self.deleted = {one: at for one, at in self.deleted.items() if at > self._sweep}

    # --- one group -------------------------------------------------------------------------------

    def expired(self, group: Group, image: MetadataImage, now: Now) -> list[CoordinatorRecord]:
        """The tombstones of the group's expired offsets."""
        used_until_ms = now.wall_ms - self.config.offsets_retention_ms
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
        """Whether none of the group's offsets may expire by age."""
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
        is_unknown = topic is None or not entry.belongs_to(topic.topic_id.bytes)
        return is_unknown and self._knows_all_topics()
