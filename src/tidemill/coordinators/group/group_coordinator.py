"""The group coordinator of one broker: groups of every kind and `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.coordinators.group.offsets.pending_offsets import Verification
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.group.registry import GroupLimit
from tidemill.coordinators.group.shard import GroupShard
from tidemill.coordinators.runtime.coordinator import Coordinator
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.partition_writer import Marker
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC, Delta, MetadataImage
from tidemill.storage.files.disk import Disk

__all__ = ["GroupCoordinator"]


@final
class GroupCoordinator(Coordinator[GroupShard]):
    """Coordinates groups and keeps their offsets."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        clock: Clock,
        timers: LoopTimers,
        disk: Disk,
        image: Callable[[], MetadataImage],
        knows_all_topics: Callable[[], bool],
    ) -> None:
        """`knows_all_topics`: the image lacks none of those that exist."""
        config = live.current.groups
        limit = GroupLimit(config.groups_max)
        matcher = Re2Matcher()

        def make_shard(current: MetadataImage) -> GroupShard:
            return GroupShard(
                live.current.groups,
                current,
                limit,
                matcher=matcher,
                knows_all_topics=knows_all_topics,
            )

        runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            make_shard,
            clock=clock,
            timers=timers,
            disk=disk,
            image=image,
            commit_timeout_s=config.offsets_commit_timeout_ms / 1000,
        )
        super().__init__(OFFSETS_TOPIC, runtime, image, name_refusal=ErrorCode.INVALID_GROUP_ID)
        self._live = live
        self._limit = limit
        live.subscribe(self._config_changed)

    def append_marker(self, index: int, marker: Marker) -> int:
        """End a producer's transaction in a partition; see `CoordinatorRuntime.append_marker`."""
        producer_id = marker.producer.producer_id
        self.runtime.read(
            index,
            lambda shard, _now: shard.offsets.pending.void_verifications(producer_id),
            lambda _code: None,
        )
        return self.runtime.append_marker(index, marker)

    def forget_verification(self, group_id: str, verification: Verification) -> None:
        """The coordinator of the transaction refused; KafkaError if the shard is gone anyway."""

        def forget(shard: GroupShard, _now: Now) -> None:
            shard.offsets.pending.end_verification(verification)

        self.read(group_id, forget, lambda _code: None)

    def metadata_changed(self, delta: Delta) -> None:
        if delta.topics_changed or delta.topics_deleted or delta.overrides_changed:
            self.runtime.metadata_changed(delta)

    def _config_changed(self) -> None:
        config = self._live.current.groups
        self._limit.groups_max = config.groups_max
        self.runtime.answers.commit_timeout_s = config.offsets_commit_timeout_ms / 1000
        self.runtime.tell_shards(lambda shard: shard.config_changed(config))
