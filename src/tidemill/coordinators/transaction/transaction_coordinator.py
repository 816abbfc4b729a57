"""The transaction coordinator of one broker: transactional ids and `__transaction_state`."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.coordinators.runtime.committed_answers import CarryOut
from tidemill.coordinators.runtime.coordinator import Coordinator
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.transaction.shard import TransactionLimit, TransactionShard
from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import TRANSACTION_STATE_TOPIC, MetadataImage
from tidemill.storage.files.disk import Disk

__all__ = ["TransactionCoordinator"]


@final
class TransactionCoordinator(Coordinator[TransactionShard]):
    """Coordinates transactions."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        clock: Clock,
        timers: LoopTimers,
        disk: Disk,
        image: Callable[[], MetadataImage],
        knows_all_topics: Callable[[], bool],
        carry_out: CarryOut,
    ) -> None:
        """`knows_all_topics`: the image lacks none of those that exist.

        `carry_out` gets `MarkersWanted` of decisions that are durable.
        """
        config = live.current
        limit = TransactionLimit(config.transactions.transactional_ids_max)
        runtime = CoordinatorRuntime(
            TRANSACTION_STATE_TOPIC,
            lambda _image: TransactionShard(live.current.transactions, limit),
            clock=clock,
            timers=timers,
            disk=disk,
            image=image,
            commit_timeout_s=config.groups.offsets_commit_timeout_ms / 1000,
            carry_out=carry_out,
        )
        super().__init__(
            TRANSACTION_STATE_TOPIC, runtime, image, name_refusal=ErrorCode.INVALID_REQUEST
        )
        self._live = live
        self._knows_all_topics = knows_all_topics
        self._limit = limit
        live.subscribe(self._config_changed)

    @property
    def is_loading(self) -> bool:
        """Whether this broker coordinates ids that it does not know yet.

        So it does while a partition that it leads by the image is not open here, perhaps because
        its log cannot be read, or the image may lack the topic: its transactions must not be taken
        for ones that hang.
        """
        topic = self._image().topics.get(TRANSACTION_STATE_TOPIC)
        own_id = self._live.current.node_id
        led = [] if topic is None else enumerate(topic.partitions)
        is_missing = any(
            one.leader == own_id and self.runtime.epoch_of(index) is None for index, one in led
        )
        is_unread = topic is None and not self._knows_all_topics()
        return is_missing or is_unread or self.runtime.is_loading

    def _config_changed(self) -> None:
        config = self._live.current
        self._limit.ids_max = config.transactions.transactional_ids_max
        self.runtime.answers.commit_timeout_s = config.groups.offsets_commit_timeout_ms / 1000
        self.runtime.tell_shards(lambda shard: shard.config_changed(config.transactions))
