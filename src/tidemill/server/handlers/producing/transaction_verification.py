"""A batch that would open a transaction in a partition is verified with the coordinator (KIP-890).

A request may arrive after its transaction has ended. Its records would open a transaction that no
marker ever ends, and hold the last stable offset for good. So the producer's coordinator is asked
first whether the partition belongs to the transaction that is open. A batch that continues a
transaction in this log needs no question.

The answer may be outdated when it comes: it counts only if this broker still leads in the same
epoch, and no marker of the producer was appended meanwhile. Clients since Produce v12 do not add
partitions themselves, so the same question adds them (T53).

While the markers of the producer's last transaction are written, the broker asks a few times: the
producer would wait for longer before it sends the batch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.server.request.authorizer import Operation, Resource, ResourceType
from tidemill.server.request.context import DataContext
from tidemill.server.request.partition_access import find_led_partition
from tidemill.server.request.partition_verifier import MARKER_PAUSES_S
from tidemill.wire.batch import ATTRIBUTES_AT, HEADER_BYTES, TRANSACTIONAL, CorruptBatch
from tidemill.wire.generated.produce import PartitionProduceData, ProduceRequest

__all__ = ["TransactionVerification", "Unverified", "is_transactional"]

FIRST_WITH_ABORTABLE: Final = 11
FIRST_WITHOUT_ADDING: Final = 12
_LOW_BYTE_AT: Final = ATTRIBUTES_AT + 1
_PRODUCER: Final = Struct(">qh")
_PRODUCER_AT: Final = 43

NOT_ADDED: Final = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)
PASSING: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""Nobody could tell just now. Producers get another code instead, one that they retry."""


@final
class Unverified(Exception):
    """The coordinator must be asked before this batch is appended; nothing has been changed."""


def is_transactional(records: memoryview) -> bool:
    """HOT PATH. Whether a batch claims to be part of a transaction; it is not checked yet."""
    return len(records) > _LOW_BYTE_AT and records[_LOW_BYTE_AT] & TRANSACTIONAL != 0


@final
class _Verdict:
    """What the coordinator said about one partition, and what must not have changed since."""

    __slots__ = ("code", "leader_epoch", "marker_count")

    def __init__(self, partition: Partition, producer_id: int) -> None:
        self.code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.leader_epoch = partition.leader_epoch
        self.marker_count = partition.log.producers.marker_count(producer_id)


@final
class TransactionVerification:
    """The transactional batches of one produce request."""

    __slots__ = ("_context", "_may_send", "_request", "_verdicts", "_wanted")

    def __init__(self, context: DataContext, request: ProduceRequest) -> None:
        self._context = context
        self._request = request
        self._may_send = False
        """Whether the request names a transactional id that its client may use."""
        self._verdicts: dict[TopicPartition, _Verdict] = {}
        self._wanted: tuple[int, int] | None = None
        """The producer and epoch of the batch that is to be verified next."""

    @property
    def is_wanted(self) -> bool:
        """Whether `run` has something to ask."""
        return self._wanted is not None

    def check(self, partition: Partition, records: memoryview) -> None:
        """KafkaError unless the batch may be appended; Unverified: call `run` first."""
        if not self._may_send:
            self._check_request()
            self._may_send = True
        producer_id, epoch = _producer_of(records)
        if partition.log.producers.continues(producer_id, epoch):
            return
        partition.check_leader()  # `run` asks about partitions that are led here, and no others
        verdict = self._verdicts.get(partition.name)
        if verdict is None:
            self._wanted = producer_id, epoch
            raise Unverified
        if verdict.leader_epoch != partition.leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch has changed")
        if verdict.code is not ErrorCode.NONE:
            raise self._refusal(verdict.code)
        if verdict.marker_count != partition.log.producers.marker_count(producer_id):
            raise self._refusal(ErrorCode.INVALID_TXN_STATE)

    def _check_request(self) -> None:
        """Also for batches that need no question: a stranger must not add to what is open."""
        transactional_id = self._request.transactional_id
        if transactional_id is None:
            detail = "a transactional batch in a request without transactional id"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
        resource = Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)
        self._context.require(Operation.WRITE, resource)

    def _refusal(self, code: ErrorCode) -> KafkaError:
        if code in NOT_ADDED:
            is_new = self._context.version >= FIRST_WITH_ABORTABLE
            code = ErrorCode.TRANSACTION_ABORTABLE if is_new else ErrorCode.INVALID_TXN_STATE
            return KafkaError(code, "the partition is not part of the producer's transaction")
        if code in PASSING:
            detail = f"the transaction's coordinator could not be asked: {code.name}"
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, detail)
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH  # all producers know it
        return KafkaError(code, "says the transaction's coordinator")

    async def run(self, left: Iterable[tuple[str, PartitionProduceData]]) -> None:
        """Ask about the partition that `check` stopped at, and those of `left` that are like it."""
        assert self._wanted is not None
        transactional_id = self._request.transactional_id
        assert transactional_id is not None
        producer_id, epoch = self._wanted
        all_left = list(left)
        pauses_s = iter(MARKER_PAUSES_S)
        while True:
            asked = dict(self._unverified(producer_id, epoch, all_left))
            if not asked:
                break  # lost during the pause: to add nothing would begin a transaction
            await self._ask(transactional_id, producer_id, epoch, asked)
            codes = [verdict.code for verdict in asked.values()]
            pause_s = next(pauses_s, None)
            if pause_s is None or ErrorCode.CONCURRENT_TRANSACTIONS not in codes:
                break
            await asyncio.sleep(pause_s)
        self._verdicts.update(asked)
        self._wanted = None

    async def _ask(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        asked: dict[TopicPartition, _Verdict],
    ) -> None:
        try:
            answers = await self._context.services.verifier.verify(
                transactional_id,
                producer_id,
                epoch,
                list(asked),
                add=self._context.version >= FIRST_WITHOUT_ADDING,
            )
        except KafkaError as error:
            answers = dict.fromkeys(asked, error.code)
        for name, verdict in asked.items():
            verdict.code = answers.get(name, verdict.code)
        refused = sum(verdict.code is not ErrorCode.NONE for verdict in asked.values())
        self._context.services.telemetry.verifications_refused += refused

    def _unverified(
        self, producer_id: int, epoch: int, left: Iterable[tuple[str, PartitionProduceData]]
    ) -> Iterator[tuple[TopicPartition, _Verdict]]:
        for name, data in left:
            records = data.records
            if not isinstance(records, memoryview) or not is_transactional(records):
                continue
            if len(records) < HEADER_BYTES or _producer_of(records) != (producer_id, epoch):
                continue
            try:
                partition = find_led_partition(self._context, Operation.WRITE, name, data.index)
            except KafkaError:
                continue  # it is refused in its turn
            if not partition.log.producers.continues(producer_id, epoch):
                yield partition.name, _Verdict(partition, producer_id)


def _producer_of(records: memoryview) -> tuple[int, int]:
    """The producer id and epoch of a batch that is not checked yet."""
    if len(records) < HEADER_BYTES:
        raise CorruptBatch(f"a batch header is {HEADER_BYTES} bytes, {len(records)} came")
    producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_AT)
    return producer_id, epoch
