"""One run of transactional producers over a cluster under faults, checked at the end.

I18-I24 as clients see them; I23 in the files, too: what each replica's index says of aborted
transactions is what the markers in its log say, and no log has a transaction open for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.sim.campaign import Campaign, Pace, simulate
from tests.sim.clients import drain, retry_until_ready
from tests.sim.committed_reader import CommittedReader
from tests.sim.faults import STALE_READS, Faults
from tests.sim.history import History
from tests.sim.probe import Probe
from tests.sim.replicas import eventually, log_bytes, replica, replicas_agree
from tests.sim.transactional_worker import TransactionalWorker
from tests.support.transaction_history import TransactionHistory
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.consuming.consumer import READ_COMMITTED
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.replication.partition import Partition
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import Record
from tidemill.wire.transaction_marker import read_marker

__all__ = ["run_transactions"]

TOPIC = "ledger"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]
OFFSETS = [TopicPartition(OFFSETS_TOPIC, index) for index in range(2)]
VALUES = {
    "log.retention.check.interval.ms": 2_000,
    "log.segment.bytes": 2_048,
    "offsets.topic.num.partitions": len(OFFSETS),
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.segment.bytes": 2_048,
}
"""Small segments, so that a coordinator loads several and a crash meets rolled files; a short
interval, so that logs look for producers to forget while transactions are open."""
CONFIGS = {"retention.ms": "-1", "index.interval.bytes": "256"}
"""Several entries in the index of a segment: what is cut then keeps a part of it."""
WORKERS = 4
OPERATIONS_PER_TRANSACTION = 3
"""So that a run takes about as long as one of plain records."""


async def _create(world: SimWorld, replication: int) -> None:
    async with ClusterClient(world.client_net("admin"), world.bootstrap) as cluster:
        await retry_until_ready(
            lambda: Admin(cluster).create_topic(
                TOPIC,
                partitions=len(PARTITIONS),
                replication=replication,
                configs=CONFIGS,
            )
        )


class _Judge:
    """The checks after everything was repaired."""

    def __init__(self, world: SimWorld, seen: TransactionHistory, ids: range) -> None:
        self._world = world
        self._seen = seen
        self._ids = ids

    async def check(
        self, workers: Sequence[TransactionalWorker], passed: dict[TopicPartition, range]
    ) -> None:
        for partition in PARTITIONS:
            await eventually(
                lambda partition=partition: replicas_agree(self._world, self._ids, partition)
            )
        await self._check_none_hangs()
        found: dict[TopicPartition, list[Record]] = {}
        for partition in PARTITIONS:
            found[partition] = await retry_until_ready(
                lambda partition=partition: drain(
                    self._world, partition, isolation_level=READ_COMMITTED
                )
            )
            self._check_replicas(partition)
        self._seen.check_final(found, passed)
        values = [bytes(one.value or b"") for records in found.values() for one in records]
        await self._check_offsets(workers, values)

    async def _check_none_hangs(self) -> None:
        """I23: all producers have ended, so soon no log has a transaction open."""
        try:
            await eventually(lambda: not self._open())
        except AssertionError:
            raise AssertionError(f"I23: open for good: {self._open()}") from None

    def _open(self) -> list[str]:
        """What keeps readers of committed records from the end of a log."""
        leaders = [
            copy
            for broker_id in self._ids
            for partition in (*PARTITIONS, *OFFSETS)
            if (copy := self._world.broker(broker_id).replicas.find(*partition)) is not None
            and copy.is_leader
        ]
        return [
            f"{copy.name} from {copy.last_stable_offset()} to {copy.log.log_end_offset}"
            for copy in leaders
            if copy.last_stable_offset() < copy.log.log_end_offset
        ]

    def _check_replicas(self, partition: TopicPartition) -> None:
        """I10, and I23: the aborted transactions that each copy names are those of its markers."""
        copies = [replica(self._world, broker_id, partition) for broker_id in self._ids]
        assert len({log_bytes(copy) for copy in copies}) == 1, "I10"
        for copy in copies:
            named = copy.log.find_aborted(0, copy.log.log_end_offset)
            told = [(one.producer_id, one.first_offset, one.last_offset) for one in named]
            assert told == _aborted(copy), f"I23: {partition}: the index has {told}"

    async def _check_offsets(
        self, workers: Sequence[TransactionalWorker], values: Sequence[bytes]
    ) -> None:
        """I24: offsets are committed with the records of their transaction, or not at all."""
        async with ClusterClient(self._world.client_net(), self._world.bootstrap) as cluster:
            for worker in workers:
                expected = self._seen.committed_offset(worker.number, values)
                wire = worker.wire(cluster)
                offset = await wire.committed_offset(PARTITIONS[0], is_stable=True)
                assert offset == expected, f"I24: {worker.group} is at {offset}, not {expected}"


def _aborted(copy: Partition) -> list[tuple[int, int, int]]:
    """Producer, first offset and marker of each aborted transaction, from the log alone."""
    data = memoryview(log_bytes(copy))
    found = []
    for position, header in iter_headers(data):
        if header.is_control:
            marker = read_marker(data[position : position + header.size_bytes], header)
            if marker.aborts_records:
                found.append((header.producer_id, marker.first_offset, header.last_offset))
    return found


def run_transactions(
    seed: int,
    *,
    brokers: int = 3,
    faults: int = 8,
    operations: int = 120,
    kinds: Sequence[str] = (),
    pace: Pace | None = None,
) -> Campaign:
    """Run transactions during faults; then repair everything and check I18-I24.

    Raises what was found: AssertionError, SimulationFailed, or an error of a client.
    """
    campaign, ids = Campaign(seed), range(brokers)

    async def main(world: SimWorld, history: History, probe: Probe) -> None:
        seen = TransactionHistory(lambda: history.life)
        for broker_id in ids:
            await world.start_broker(broker_id)
        await _create(world, brokers)
        trouble = Faults(world, history, probe, ids, [k for k in kinds if k != STALE_READS])
        campaign.faults = trouble.done
        workers = [TransactionalWorker(world, i, seen, PARTITIONS) for i in range(WORKERS)]
        reader = CommittedReader(world, history, seen, PARTITIONS)
        working = asyncio.Event()

        async def work() -> None:
            count = operations // OPERATIONS_PER_TRANSACTION // WORKERS
            runs = [worker.run(count) for worker in workers]
            await asyncio.gather(*runs, trouble.run(faults))
            working.set()

        await asyncio.gather(work(), reader.run(working.is_set))
        await _Judge(world, seen, ids).check(workers, reader.passed)
        campaign.acked = seen.committed
        for broker_id in ids:
            await world.stop_broker(broker_id)

    simulate(
        campaign,
        main,
        partitions=PARTITIONS,
        values={**VALUES, "min.insync.replicas": min(2, brokers)},
        pace=pace or Pace.of_run(seed, kinds),
    )
    return campaign
