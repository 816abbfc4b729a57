"""One run of held records over a cluster under faults and clock steps, checked at the end.

I31, I32 and I45 as the whole logs have it, and as readers see it all along; of what is held in
transactions I18-I22, too. Segments of a few batches and short retention let files go, so that holds
are carried; tables of a few holds let books be written as runs and snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.sim.campaign import Campaign, Pace, simulate
from tests.sim.clients import drain, retry_until_ready
from tests.sim.clock_steps import ClockSteps
from tests.sim.faults import STALE_READS, Faults
from tests.sim.held_transaction_worker import HeldTransactionWorker
from tests.sim.history import History
from tests.sim.hold_history import HoldHistory, HoldLedger, HoldWitness
from tests.sim.hold_worker import HoldReader, HoldWorker
from tests.sim.probe import Probe
from tests.sim.replicas import eventually, log_bytes, replica, replicas_agree
from tests.support.transaction_history import TransactionHistory
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.consuming.consumer import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.compiled import is_compiled
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.replication.holding import hold_snapshots, releaser
from tidemill.replication.holding.hold_spills import HoldSpills
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.records import Record

__all__ = ["run_holds"]

TOPIC = "later"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(2)]
VALUES = {
    "log.retention.check.interval.ms": 2_000,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
KEYS = {
    "segment.bytes": "4096",
    "retention.bytes": "8192",
    "file.delete.delay.ms": "1000",
    "message.timestamp.after.max.ms": "7200000",
}
"""A broker whose clock was set back by an hour, and stood still, takes records of now."""
WORKERS = 3
TRANSACTIONAL_WORKERS = 2
OPERATIONS_PER_TRANSACTION = 6
"""So that both kinds of workers take about as long."""
CARRY_INTERVAL_S = 5.0
TABLE_MAX = 6
RUNS_PER_SNAPSHOT = 2
SNAPSHOT_LOG_BYTES = 4_096
_SMALL_TABLE = {"table_max": TABLE_MAX}
_SMALL_SPILLS = {"table_max": TABLE_MAX, "runs_max": RUNS_PER_SNAPSHOT}


@contextmanager
def small_books() -> Iterator[None]:
    """Tables of a few holds, and snapshots of few of them; not where books are compiled."""
    if is_compiled("tidemill.replication.holding.hold_spills") or is_compiled(
        "tidemill.delivery.holds.hold_book"
    ):
        yield
        return
    makes: list[Any] = [HoldBook.__init__, HoldSpills.__init__]
    usual = [make.__kwdefaults__ for make in makes]
    places: Any = [(releaser, "CARRY_INTERVAL_S"), (hold_snapshots, "HOLD_SNAPSHOT_LOG_BYTES")]
    constants = [getattr(*place) for place in places]
    makes[0].__kwdefaults__ = {**usual[0], **_SMALL_TABLE}
    makes[1].__kwdefaults__ = {**usual[1], **_SMALL_SPILLS}
    for (module, name), value in zip(places, (CARRY_INTERVAL_S, SNAPSHOT_LOG_BYTES), strict=True):
        setattr(module, name, value)
    try:
        yield
    finally:
        for make, defaults in zip(makes, usual, strict=True):
            make.__kwdefaults__ = defaults
        for (module, name), value in zip(places, constants, strict=True):
            setattr(module, name, value)


async def _create(world: SimWorld, replication: int) -> None:
    async with ClusterClient(world.client_net("admin"), world.bootstrap) as cluster:
        await retry_until_ready(
            lambda: Admin(cluster).create_topic(
                TOPIC,
                partitions=len(PARTITIONS),
                replication=replication,
                configs={**KEYS, "min.insync.replicas": str(min(2, replication))},
            )
        )


async def _drain(world: SimWorld, partition: TopicPartition, isolation_level: int) -> list[Record]:
    """Everything that is readable; again if retention has let the start go meanwhile."""
    while True:
        try:
            return await drain(world, partition, isolation_level=isolation_level)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise


class _Judge:
    """The checks after everything was repaired."""

    def __init__(
        self,
        world: SimWorld,
        seen: HoldHistory,
        transactions: TransactionHistory,
        witness: HoldWitness,
        ids: range,
    ) -> None:
        self._world = world
        self._seen = seen
        self._transactions = transactions
        self._witness = witness
        self._ids = ids

    async def check(self) -> None:
        for broker_id in self._ids:  # with the right time, which is believed at once
            await self._world.stop_broker(broker_id)
            await self._world.start_broker(broker_id)
        await self._wait_until_delivered()
        self._check_transactions()
        for partition in PARTITIONS:
            await self._check_partition(partition)

    async def _wait_until_delivered(self) -> None:
        """I32: what is due comes."""
        try:
            await eventually(lambda: not self._overdue() and self._is_settled())
        except AssertionError:
            raise AssertionError(f"I32: never decided or released: {self._overdue()}") from None

    def _overdue(self) -> list[str]:
        self._witness.check()
        found = []
        for partition, ledger in self._witness.ledgers.items():
            due = [ticket for ticket, hold in ledger.open.items() if not hold.asked.is_far]
            due += [offset for one in ledger.undecided.values() for offset in one.records]
            found += [f"{partition} {offset}" for offset in due]
        return found

    def _check_transactions(self) -> None:
        """I18-I22: of each transaction all counts as sent, or nothing, by its outcome."""
        committed = {
            partition: [
                Record(value, offset=offset) for offset, value in sorted(ledger.committed.items())
            ]
            for partition, ledger in self._witness.ledgers.items()
        }
        self._transactions.check_final(committed, {})

    def _is_settled(self) -> bool:
        return all(
            replicas_agree(self._world, self._ids, partition)
            and replica(self._world, 0, partition).log.log_end_offset
            == self._witness.end(partition)
            for partition in PARTITIONS
        )

    async def _check_partition(self, partition: TopicPartition) -> None:
        ledger = self._witness.ledgers[partition]
        lost = {
            offset: value
            for offset, value in self._seen.acked.get(partition, {}).items()
            if ledger.found.get(offset) != value
        }
        assert not lost, f"I1: lost in {partition}: {lost}"
        late = self._seen.refused & set(ledger.found.values())
        assert not late, f"refused, and in the log: {late}"
        for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
            await self._check_readers(partition, ledger, isolation_level)
        self._check_books(partition, ledger)

    async def _check_readers(
        self, partition: TopicPartition, ledger: HoldLedger, isolation_level: int
    ) -> None:
        """I8: what was read, and what a new reader is given, is what the log shows."""
        is_committed = isolation_level == READ_COMMITTED
        shown = ledger.shown(is_committed=is_committed)
        self._seen.check_reads(partition, shown, is_committed=is_committed)
        end = self._witness.end(partition)  # schedules may tick from now on
        records = await retry_until_ready(lambda: _drain(self._world, partition, isolation_level))
        start = max(replica(self._world, i, partition).log.log_start_offset for i in self._ids)
        both = range(start, min(end, self._witness.end(partition)))
        found = {one.offset: bytes(one.value or b"") for one in records if one.offset in both}
        left = {offset: value for offset, value in shown.items() if offset in both}
        assert found == left, f"I8: {partition}: {found.items() ^ left.items()}"

    def _check_books(self, partition: TopicPartition, ledger: HoldLedger) -> None:
        """I45: every replica's book has what the whole log says, and its log has the copies."""
        copies = [replica(self._world, i, partition) for i in self._ids]
        start = max(copy.log.log_start_offset for copy in copies)
        if len({copy.log.log_end_offset for copy in copies}) > 1:
            return  # a schedule ticks
        assert len({log_bytes(copy, start) for copy in copies}) == 1, "I10"
        if copies[0].log.log_end_offset != self._witness.end(partition):
            return
        expected = {
            ticket: (hold.copy, max(-1, hold.due_ms)) for ticket, hold in ledger.open.items()
        }
        for copy in copies:
            holds = copy.holds
            if holds is None or not holds.is_whole:
                assert holds is not None or not expected, "I45: there is no book"
                continue
            book = {one.ticket: (one.offset, one.due_ms) for one in holds.book.held()}
            assert book == expected, f"I45: {partition}: the book has {book}, the log {expected}"
            assert not holds.book.undecided, f"I45: {partition}: {holds.book.undecided} undecided"
            pinned = min([at for at, _ in expected.values()], default=1 << 62)
            assert copy.log.log_start_offset <= pinned, f"I45: {pinned} is held and gone"


def run_holds(
    seed: int,
    *,
    brokers: int = 3,
    faults: int = 8,
    operations: int = 120,
    kinds: Sequence[str] = (),
    pace: Pace | None = None,
) -> Campaign:
    """Hold records during faults; then repair everything and check I18-I22, I31, I32 and I45.

    Raises what was found: AssertionError, SimulationFailed, or an error of a client.
    """
    campaign, ids = Campaign(seed), range(brokers)

    witnesses: list[HoldWitness] = []

    async def main(world: SimWorld, history: History, probe: Probe) -> None:
        seen, transactions = HoldHistory(history), TransactionHistory(lambda: history.life)
        witness = HoldWitness(world, seen, PARTITIONS)
        witnesses.append(witness)
        world.trace.probe = lambda: (probe.look(), witness.look())
        for broker_id in ids:
            await world.start_broker(broker_id)
        await _create(world, brokers)
        trouble = Faults(world, history, probe, ids, [k for k in kinds if k != STALE_READS])
        campaign.faults = trouble.done
        workers = [HoldWorker(world, number, seen, PARTITIONS) for number in range(WORKERS)]
        producers = [
            HeldTransactionWorker(world, number, transactions, seen, PARTITIONS)
            for number in range(TRANSACTIONAL_WORKERS)
        ]
        readers = [
            HoldReader(world, seen, TOPIC, level) for level in (READ_UNCOMMITTED, READ_COMMITTED)
        ]
        clocks = ClockSteps(world, ids)
        working = asyncio.Event()

        async def work() -> None:
            count = operations // OPERATIONS_PER_TRANSACTION // TRANSACTIONAL_WORKERS
            runs = [worker.run(operations // WORKERS) for worker in workers]
            runs += [producer.run(count) for producer in producers]
            await asyncio.gather(*runs, trouble.run(faults))
            working.set()

        beside = [reader.run(working.is_set) for reader in readers]
        await asyncio.gather(work(), *beside, clocks.run(working.is_set))
        witness.check()
        await _Judge(world, seen, transactions, witness, ids).check()
        witness.check()
        campaign.acked = sum(map(len, seen.acked.values()))
        for broker_id in ids:
            await world.stop_broker(broker_id)

    with small_books():
        try:
            simulate(
                campaign,
                main,
                partitions=PARTITIONS,
                values=VALUES,
                pace=pace or Pace.of_run(seed, kinds),
            )
        finally:
            for witness in witnesses:
                witness.check()  # what was broken first says more than what came of it
    return campaign
