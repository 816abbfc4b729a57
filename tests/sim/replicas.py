"""Access to the replicas inside the brokers of a cluster, simulated or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from tidemill.broker import Broker
from tidemill.core.clock import Clock
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.net import Net
from tidemill.replication.partition import Partition
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.batch import iter_headers

__all__ = ["Brokers", "eventually", "leader_of", "log_bytes", "replica", "replicas_agree"]

POLL_S = 0.02
POLLS_MAX = 5_000


class Brokers(Protocol):
    """`SimWorld` and `InProcessCluster`, as far as a scenario needs them."""

    clock: Clock

    @property
    def bootstrap(self) -> list[tuple[str, int]]: ...

    def broker(self, broker_id: int) -> Broker: ...

    def client_net(self) -> Net: ...


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the cluster reaches a state without further requests."""
    for _ in range(POLLS_MAX):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError("it never came about")


def replica(brokers: Brokers, broker_id: int, partition: TopicPartition) -> Partition:
    """One broker's copy of a partition."""
    found = brokers.broker(broker_id).replicas.find(*partition)
    assert found is not None
    return found


def leader_of(brokers: Brokers, ids: Iterable[int], partition: TopicPartition) -> int:
    """The leader of the newest epoch that these brokers know."""
    copies = {broker_id: replica(brokers, broker_id, partition) for broker_id in ids}
    newest = max(copy.leader_epoch for copy in copies.values())
    (leader,) = [i for i, c in copies.items() if c.is_leader and c.leader_epoch == newest]
    return leader


def log_bytes(copy: Partition, start: int = 0) -> bytes:
    """All bytes of a replica's log, from `start` on."""
    log, data, offset = copy.log, b"", max(start, copy.log.log_start_offset)
    while offset < log.log_end_offset:
        chunk = _read(log, offset)
        assert chunk, f"{copy.name}: nothing at offset {offset}, below the end of the log"
        *_, (_, last) = iter_headers(memoryview(chunk))
        offset, data = last.next_offset, data + chunk
    return data


def _read(log: PartitionLog, offset: int) -> bytes:
    try:
        found = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        return b"".join(map(bytes, found.load() if found.load is not None else found.chunks))
    except KafkaError as error:
        raise AssertionError(f"offset {offset} cannot be read: {error}") from error


def replicas_agree(brokers: Brokers, ids: Iterable[int], partition: TopicPartition) -> bool:
    """I16: all replicas are in sync, and all logs have the same length."""
    members = sorted(ids)
    copies = [brokers.broker(broker_id).replicas.find(*partition) for broker_id in members]
    known = [copy for copy in copies if copy is not None and sorted(copy.isr) == members]
    return len(known) == len(members) and len({copy.log.log_end_offset for copy in known}) == 1
