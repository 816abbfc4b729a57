"""A transactional producer that commits, aborts, gives up, is replaced and sends too late."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from tests.sim.transaction_wire import Generation, Instance, StepFailed, TransactionWire
from tests.support.transaction_history import Outcome, SentTransaction, TransactionHistory
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.records import Record

__all__ = ["TransactionalWorker"]

TIMEOUTS_MS = (4_000, 15_000, 30_000)
"""Some transactions take longer than the shortest: their coordinator aborts them."""
PAUSE_S_MAX = 2.0
BATCH_RECORDS_MAX = 3
MARKERS_S = 0.3
"""Longer than markers take without faults."""
ONCE_S = 0.0
"""Patience for what must be refused."""


class _Replaced(NamedTuple):
    """An instance that another one has replaced, and its last transaction."""

    instance: Instance
    transaction: SentTransaction


class TransactionalWorker:
    """One transactional id, with one instance at work; replaced ones come back now and then."""

    def __init__(
        self,
        world: SimWorld,
        number: int,
        history: TransactionHistory,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._world = world
        self.number = number
        self.generation = Generation.TV2 if number % 2 else Generation.TV1
        self._history = history
        self._partitions = partitions
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._instance: Instance | None = None
        self._replaced: _Replaced | None = None
        self._resumed: Instance | None = None
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        """Of the next batch, in the epoch of the instance."""

    @property
    def group(self) -> str:
        return f"group-{self.number}"

    def wire(self, cluster: ClusterClient) -> TransactionWire:
        return TransactionWire(cluster, f"producer-{self.number}", self.generation, self.group)

    async def run(self, transactions: int) -> None:
        """Run that many transactions, one after the other."""
        net = self._world.client_net(f"producer-{self.number}")
        async with ClusterClient(net, self._world.bootstrap) as cluster:
            wire = self.wire(cluster)
            for _ in range(transactions):
                await self._one(wire)
                await asyncio.sleep(PAUSE_S_MAX / 2 ** self._rng.below(9))

    def _one_in(self, count: int) -> bool:
        return self._rng.below(count) == 0

    async def _one(self, wire: TransactionWire) -> None:
        instance = self._instance or await self._open(wire)
        sent = self._history.begin(self.number)
        try:
            await self._write(wire, instance, sent)
            await self._meet_replaced(wire)
            if self._one_in(8):
                await self._replace(wire, instance, sent)
            elif self._one_in(10):
                self._instance = None  # it dies; the next one, or the timeout, aborts
            else:
                await self._end(wire, instance, sent)
        except StepFailed as failure:
            await self._give_up(wire, instance, failure)

    async def _open(self, wire: TransactionWire) -> Instance:
        timeout_ms = TIMEOUTS_MS[self._rng.below(len(TIMEOUTS_MS))]
        resumed, self._resumed = self._resumed, None
        try:
            opened = await wire.open(timeout_ms=timeout_ms, resumed=resumed)
        except StepFailed:
            if resumed is None:
                raise
            opened = await wire.open(timeout_ms=timeout_ms)  # it was fenced: begin as a new one
        self._become(opened)
        return opened

    def _become(self, instance: Instance | None) -> None:
        if instance != self._instance:
            self._sequences.clear()
        self._instance = instance

    async def _give_up(
        self, wire: TransactionWire, instance: Instance, failure: StepFailed
    ) -> None:
        """Abort, or leave that to the next instance; some go on under their id (KIP-360)."""
        if self._one_in(2):
            with suppress(StepFailed):
                await wire.end(instance, is_commit=False)
        elif self._one_in(2) and failure.code is None:
            self._resumed = instance
        self._become(None)

    # --- a transaction ---------------------------------------------------------------------------

    async def _write(
        self, wire: TransactionWire, instance: Instance, sent: SentTransaction
    ) -> None:
        """Some batches in some partitions, and perhaps an offset."""
        left = list(self._partitions)
        count = 1 + self._rng.below(len(left))
        chosen = [left.pop(self._rng.below(len(left))) for _ in range(count)]
        if wire.generation is Generation.TV1:
            await wire.add_partitions(instance, chosen)
        await asyncio.gather(
            *(self._write_one(wire, instance, sent, partition) for partition in chosen)
        )
        if self._one_in(2):
            await self._commit_offset(wire, instance, sent)

    async def _write_one(
        self,
        wire: TransactionWire,
        instance: Instance,
        sent: SentTransaction,
        partition: TopicPartition,
    ) -> None:
        for _ in range(1 + self._rng.below(2)):
            values = [sent.value(partition) for _ in range(1 + self._rng.below(BATCH_RECORDS_MAX))]
            sequence = self._sequences[partition]
            self._sequences[partition] += len(values)
            records = [self._record(sent, partition, value) for value in values]
            offset = await wire.produce(instance, partition, records, sequence)
            for at, value in enumerate(values):
                self._acked(sent, partition, offset + at, value)

    def _record(self, _sent: SentTransaction, _partition: TopicPartition, value: bytes) -> Record:
        return Record(value, timestamp=0)

    def _acked(
        self, sent: SentTransaction, _partition: TopicPartition, offset: int, value: bytes
    ) -> None:
        sent.acked[value] = offset

    def _stray(self, sent: SentTransaction, partition: TopicPartition) -> Record:
        return self._record(sent, partition, sent.stray())

    async def _commit_offset(
        self, wire: TransactionWire, instance: Instance, sent: SentTransaction
    ) -> None:
        """T55: nobody sees it before the transaction is committed."""
        partition = self._partitions[0]
        await wire.commit_offset(instance, partition, sent.number)
        sent.offset = sent.number
        if self._one_in(2):
            seen = await wire.committed_offset(partition, is_stable=False)
            assert seen < sent.number, f"I21: offset {seen} of an open transaction is visible"

    async def _end(self, wire: TransactionWire, instance: Instance, sent: SentTransaction) -> None:
        is_commit = not self._one_in(3)
        if is_commit:
            sent.outcome = Outcome.UNKNOWN
        try:
            after = await wire.end(instance, is_commit=is_commit)
        except StepFailed as failure:
            if is_commit and not failure.in_doubt:
                sent.outcome = Outcome.ABORTED
            raise
        if is_commit:
            sent.outcome = Outcome.COMMITTED
            await self._check_offset(wire, sent)
        sequences = dict(self._sequences)
        self._become(after)
        if self._one_in(3):
            await self._send_late(wire, instance, sent, sequences)

    async def _check_offset(self, wire: TransactionWire, sent: SentTransaction) -> None:
        if sent.offset == sent.number and self._one_in(3):
            seen = await wire.committed_offset(self._partitions[0], is_stable=True)
            assert seen == sent.number, f"I20: {sent.number} was committed, the group is at {seen}"

    # --- what no correct client does -------------------------------------------------------------

    async def _send_late(
        self,
        wire: TransactionWire,
        instance: Instance,
        sent: SentTransaction,
        sequences: dict[TopicPartition, int],
    ) -> None:
        """A batch that comes after its transaction (I22): it must not open another one.

        In TV1 it may still come in the next transaction of the same epoch, as in Kafka. So a
        producer that does not know what became of it begins a new epoch.
        """
        partition = self._partitions[self._rng.below(len(self._partitions))]
        sequence = sequences.get(partition, 0)
        is_complete = await self._waits_for_markers(wire)
        try:
            late = self._stray(sent, partition)
            await wire.produce(instance, partition, [late], sequence, patience_s=ONCE_S)
        except StepFailed as failure:
            is_settled = not failure.in_doubt
        else:
            assert not is_complete, f"I22: {instance} wrote to {partition} after its transaction"
            is_settled = False  # it came before the marker, so the next sequence is another one
        if not is_settled and wire.generation is Generation.TV1:
            self._become(None)

    async def _waits_for_markers(self, wire: TransactionWire) -> bool:
        """Perhaps wait a little; whether the transaction is complete, as its coordinator says."""
        if self._one_in(2):
            return False
        await asyncio.sleep(MARKERS_S)
        with suppress(StepFailed):
            return await wire.is_complete()
        return False

    async def _replace(
        self, wire: TransactionWire, instance: Instance, sent: SentTransaction
    ) -> None:
        """Another instance begins while this one has a transaction open."""
        self._become(None)
        await self._open(wire)
        self._replaced = _Replaced(instance, sent)
        await self._meet_replaced(wire)

    async def _meet_replaced(self, wire: TransactionWire) -> None:
        """I19: whatever a replaced instance sends is refused."""
        if self._replaced is None:
            return
        instance, sent = self._replaced
        if self._one_in(2):
            partition = self._partitions[self._rng.below(len(self._partitions))]
            late = self._stray(sent, partition)
            step = wire.produce(instance, partition, [late], 0, patience_s=ONCE_S)
        else:
            step = wire.end(instance, is_commit=True, patience_s=ONCE_S)
        try:
            taken = await step
        except StepFailed:
            return
        raise AssertionError(f"I19: {instance} was replaced, and was answered {taken}")
