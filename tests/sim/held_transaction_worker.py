"""A transactional producer of held records: nobody gets one before its commit, or after an abort.

It does what every `TransactionalWorker` does: it commits, aborts, dies with a transaction open, is
replaced and sends too late. Some transactions take so long that their records are due before the
end, and some longer than their timeout: then the coordinator aborts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.sim.hold_draws import HoldDraws
from tests.sim.hold_history import HoldHistory
from tests.sim.transaction_wire import Instance, TransactionWire
from tests.sim.transactional_worker import TransactionalWorker
from tests.support.transaction_history import SentTransaction, TransactionHistory
from tidemill.core.ids import TopicPartition
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.records import Record

__all__ = ["HeldTransactionWorker"]

DELAY_MS_MAX = 8_000
OPEN_S_MAX = 8.0


class HeldTransactionWorker(TransactionalWorker):
    """One transactional id whose records may ask to be held."""

    def __init__(
        self,
        world: SimWorld,
        number: int,
        transactions: TransactionHistory,
        seen: HoldHistory,
        partitions: Sequence[TopicPartition],
    ) -> None:
        super().__init__(world, number, transactions, partitions)
        self._seen = seen
        self._draws = HoldDraws(world, seen, self._rng, delay_ms_max=DELAY_MS_MAX)

    def _record(self, sent: SentTransaction, partition: TopicPartition, value: bytes) -> Record:
        headers, asked = self._draws.record(partition, sent)
        self._seen.ask(value, asked)
        return Record(value, headers=headers, timestamp=self._world.clock.wall_ms())

    def _acked(
        self, sent: SentTransaction, partition: TopicPartition, offset: int, value: bytes
    ) -> None:
        super()._acked(sent, partition, offset, value)
        self._seen.sent(partition, offset, value)

    async def _write(
        self, wire: TransactionWire, instance: Instance, sent: SentTransaction
    ) -> None:
        await super()._write(wire, instance, sent)
        await asyncio.sleep(OPEN_S_MAX / 2 ** self._rng.below(9))
