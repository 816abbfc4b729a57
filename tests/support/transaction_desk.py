"""A transaction shard with a log and a clock, as the runtime would host it, and partitions to mark.

The partitions follow the rules of real ones as far as transactions need them: an older epoch is
refused, a marker that comes twice changes nothing, and readers see what is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, ProducerName, Result
from tidemill.coordinators.transaction.decisions import Ending
from tidemill.coordinators.transaction.shard import MarkersWanted, TransactionShard
from tidemill.core.config.transaction_config import TransactionConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition

ID = "pay"
WALL_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
FIRST_PRODUCER_ID = 7_000
EXPIRIES_MAX = 100


def at(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


class MarkedLog:
    """One partition: what was produced to it, and what readers of committed records see."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[str]] = {}
        self.committed: list[str] = []
        self.markers: list[tuple[ProducerName, bool]] = []

    def produce(self, producer: ProducerName, value: str) -> None:
        self._check_epoch(producer)
        self.open.setdefault(producer.producer_id, []).append(value)

    def mark(self, producer: ProducerName, *, is_commit: bool) -> None:
        self._check_epoch(producer)
        values = self.open.pop(producer.producer_id, [])
        self.markers.append((producer, is_commit))
        if is_commit:
            self.committed += values

    def _check_epoch(self, producer: ProducerName) -> None:
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        self.epochs[producer.producer_id] = producer.epoch


class TransactionDesk:
    """Hosts one shard: appends and replays its records, lets deadlines pass, reloads it."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.ms = 0
        self.log: list[CoordinatorRecord] = []
        self.wanted: list[MarkersWanted] = []
        """Effects whose records are committed and that are not carried out yet."""
        self.logs: dict[TopicPartition, MarkedLog] = {}
        self._ids = count(FIRST_PRODUCER_ID)
        self.shard = TransactionShard(self.config)
        self.shard.loaded(self.now)

    @property
    def now(self) -> Now:
        return Now(self.ms, WALL_MS + self.ms)

    def fresh_id(self) -> int:
        return next(self._ids)

    def log_of(self, name: TopicPartition) -> MarkedLog:
        return self.logs.setdefault(name, MarkedLog())

    def apply(self, result: Result[Any]) -> Any:
        """As the runtime: append, replay, then hand over the effects and the answer."""
        self.log += result.records
        for key, value in result.records:
            self.shard.replay(key, value)
        self.wanted += result.effects
        return result.response

    # --- requests --------------------------------------------------------------------------------

    def init(
        self,
        *,
        transactional_id: str = ID,
        timeout_ms: int = TIMEOUT_MS,
        resumed: ProducerName | None = None,
    ) -> ProducerName:
        """The producer that is given; KafkaError as a client sees it."""
        answer = self.apply(
            self.shard.init_producer(
                transactional_id,
                timeout_ms=timeout_ms,
                resumed=resumed,
                fresh_id=self.fresh_id,
                now=self.now,
            )
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
        return ProducerName(answer.producer_id, answer.producer_epoch)

    def add(
        self, producer: ProducerName, *names: str, version: int = 0, transactional_id: str = ID
    ) -> None:
        partitions = [at(name) for name in names]
        self.apply(
            self.shard.add_partitions(
                transactional_id, producer, partitions, version=version, now=self.now
            )
        )

    def produce(self, producer: ProducerName, name: str, value: str, *, version: int = 0) -> None:
        """As a broker: ask the coordinator, then append."""
        if version:
            self.add(producer, name, version=version)
        else:
            code = self.shard.check_partitions(ID, producer, [at(name)])[at(name)]
            if code is not ErrorCode.NONE:
                raise KafkaError(code)
        self.log_of(at(name)).produce(producer, value)

    def end(
        self,
        producer: ProducerName,
        *,
        is_commit: bool = True,
        version: int = 0,
        transactional_id: str = ID,
    ) -> ProducerName:
        """Who the producer is from then on."""
        ending = Ending(producer, is_commit, version)
        answer = self.apply(
            self.shard.end(transactional_id, ending, fresh_id=self.fresh_id, now=self.now)
        )
        return ProducerName(answer.producer_id, answer.producer_epoch) if version else producer

    # --- markers and time ------------------------------------------------------------------------

    def write_markers(self, wanted: MarkersWanted, *, but: str = "") -> bool:
        """Write the markers of one decision, all but one perhaps; whether all are written."""
        left_out = {at(but)} if but else set()
        for name in sorted(wanted.partitions - left_out):
            self.log_of(name).mark(wanted.producer, is_commit=wanted.is_commit)
        return not wanted.partitions & left_out

    def finish(self) -> None:
        """Carry out all effects, as the marker sender does."""
        while self.wanted:
            wanted = self.wanted.pop(0)
            self.write_markers(wanted)
            self.complete(wanted)

    def complete(self, wanted: MarkersWanted) -> None:
        self.apply(self.shard.complete(wanted, now=self.now))

    def advance(self, ms: int, *, on_expiry: Callable[[int], None] = lambda _ms: None) -> None:
        end_ms = self.ms + ms
        for _ in range(EXPIRIES_MAX):
            due_ms = self.shard.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.ms = max(self.ms, due_ms)
            on_expiry(self.ms)
            self.apply(self.shard.expire(self.now))
        self.ms = end_ms

    def reload(self) -> None:
        """Another broker takes the partition over: what was not carried out is lost."""
        self.wanted.clear()
        self.shard.resign()
        self.shard = TransactionShard(self.config)
        for key, value in self.log:
            self.shard.replay(key, value)
        self.shard.loaded(self.now)
        self.advance(0)
