"""Proposes changes of the in-sync sets: drops followers that lag, adds those that caught up.

A change counts only after the coordination store has accepted it (compare-and-set on the
partition's epoch); until then the marks respect both sets (KIP-497).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import KafkaError, StoreUnavailable
from tidemill.replication.isr import expanded_isr, shrunk_isr
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager

__all__ = ["IsrKeeper"]

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.5
LAG_S_MAX = 30.0


@final
class IsrKeeper:
    """The loop that checks all led partitions twice a second."""

    def __init__(
        self,
        replicas: ReplicaManager,
        propose: Callable[[Partition, tuple[int, ...]], Awaitable[None]],
        *,
        clock: Clock,
        lag_s_max: float = LAG_S_MAX,
    ) -> None:
        self._replicas = replicas
        self._propose = propose
        self._clock = clock
        self._lag_s_max = lag_s_max

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for partition in [p for p in self._replicas if p.is_leader and p.followers]:
                await self.maybe_propose(partition)

    async def maybe_propose(self, partition: Partition) -> None:
        """Propose the in-sync set that the positions imply, if it differs from the current one."""
        wanted = self.wanted_isr(partition)
        if wanted == partition.isr or not partition.is_leader:
            return
        partition.propose_isr(wanted)
        try:
            await self._propose(partition, wanted)
            log.info("%s: in sync %s -> %s", partition.name, partition.isr, wanted)
        except (KafkaError, StoreUnavailable) as error:
            partition.withdraw_isr_proposal()
            log.info("%s: in-sync set not changed: %s", partition.name, error)

    def wanted_isr(self, partition: Partition) -> tuple[int, ...]:
        kept = shrunk_isr(
            partition.isr,
            partition.followers,
            leader_end=partition.log.log_end_offset,
            now=self._clock.monotonic(),
            lag_s_max=self._lag_s_max,
        )
        return expanded_isr(
            kept,
            {b: p for b, p in partition.followers.items() if b not in partition.isr},
            high_watermark=partition.high_watermark,
            epoch_start_offset=partition.epoch_start_offset,
        )
