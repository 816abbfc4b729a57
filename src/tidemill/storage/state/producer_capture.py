"""A log's producers at one moment, and the content of a snapshot file.

A capture is made on the loop as a few lists and encoded in a thread. The payload, big-endian:

    offset i64, producers u32                         everything below the offset was appended
    version 2: last offset without a sequence i64, first and last abort marker i64, ended u32,
               then for each: first offset i64, marker i64
    version 3: start of the first and end of the last veiled batch i64
    per producer: id i64, epoch i16, last append i64, first offset of its transaction i64,
                  version 2: last marker i64, its coordinator's epoch i32
                  batches u8, then each: sequences 2 x i32, offsets 2 x i64, timestamp i64

Version 1 was written before there were transactions, version 2 before there were veiled batches,
so they have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import final

from tidemill.core.limits import IDEMPOTENCE_WINDOW_BATCHES
from tidemill.storage.files.checked_file import DamagedFile, decode_versions, encode_checked
from tidemill.storage.files.disk import Buffer
from tidemill.storage.state.producer_entry import NO_OFFSET, ProducerEntry, sequence_after

__all__ = ["ProducerCapture", "TransactionFacts", "decode_capture"]

_KIND = b"PROD"
_VERSION = 3
_VERSION_WITHOUT_VEILS = 2
_VERSION_WITHOUT_TRANSACTIONS = 1
_COUNTS = Struct(">qI")
_FACTS = Struct(">qqqI")
_ENDED = Struct(">qq")
_VEILED = Struct(">qq")
_PRODUCER = Struct(">qhqq")
_PRODUCER_2 = Struct(">qi")
_BATCH_COUNT = Struct(">B")
_BATCH = Struct(">iiqqq")


@final
@dataclass(frozen=True, slots=True)
class TransactionFacts:
    """What a log knows about its transactions and holds besides its producers' entries."""

    last_unsequenced_offset: int = NO_OFFSET
    first_abort_offset: int = NO_OFFSET
    last_abort_offset: int = NO_OFFSET
    ended: Sequence[tuple[int, int]] = ()
    first_veiled_offset: int = NO_OFFSET
    last_veiled_offset: int = NO_OFFSET


@final
@dataclass(slots=True)
class ProducerCapture:
    """The state at one moment: made on the loop, encoded anywhere."""

    offset: int
    """Everything below it was appended."""
    producer_ids: list[int]
    producers: list[ProducerEntry]
    generation: int
    """Newer than that of every producer here."""
    facts: TransactionFacts

    def encode(self) -> bytes:
        """The content of a snapshot."""
        facts = self.facts
        parts = [
            _COUNTS.pack(self.offset, len(self.producer_ids)),
            _FACTS.pack(
                facts.last_unsequenced_offset,
                facts.first_abort_offset,
                facts.last_abort_offset,
                len(facts.ended),
            ),
        ]
        parts.extend(_ENDED.pack(*ended) for ended in facts.ended)
        parts.append(_VEILED.pack(facts.first_veiled_offset, facts.last_veiled_offset))
        for producer_id, producer in zip(self.producer_ids, self.producers, strict=True):
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.last_append_ms,
                    producer.txn_first_offset,
                )
            )
            parts.append(_PRODUCER_2.pack(producer.marker_offset, producer.coordinator_epoch))
            parts.append(_BATCH_COUNT.pack(len(producer.window)))
            parts.extend(_BATCH.pack(*batch) for batch in producer.window)
        return encode_checked(_KIND, _VERSION, b"".join(parts))


def decode_capture(data: Buffer, *, name: str) -> ProducerCapture:
    """What a snapshot holds. Raises DamagedFile, UserError."""
    versions = (_VERSION_WITHOUT_TRANSACTIONS, _VERSION_WITHOUT_VEILS, _VERSION)
    payload, version = decode_versions(data, kind=_KIND, versions=versions, name=name)
    try:
        return _Payload(payload, version).read()
    except (ValueError, StructError) as err:
        raise DamagedFile(f"{name}: {err}") from err


@final
class _Payload:
    """Reads a payload from its first byte to its last."""

    def __init__(self, payload: memoryview, version: int) -> None:
        self._payload = payload
        self._position = 0
        self._has_transactions = version != _VERSION_WITHOUT_TRANSACTIONS
        self._has_veils = version >= _VERSION

    def _take(self, struct: Struct) -> tuple[int, ...]:
        found = struct.unpack_from(self._payload, self._position)
        self._position += struct.size
        return found

    def read(self) -> ProducerCapture:
        offset, count = self._take(_COUNTS)
        facts = self._read_facts() if self._has_transactions else TransactionFacts()
        producer_ids, producers = [], []
        for _ in range(count):
            producer_id, producer = self._read_producer()
            producer_ids.append(producer_id)
            producers.append(producer)
        left_bytes = len(self._payload) - self._position
        if left_bytes:
            raise ValueError(f"{left_bytes} bytes too many")
        return ProducerCapture(offset, producer_ids, producers, 1, facts)

    def _read_facts(self) -> TransactionFacts:
        last_unsequenced, first_abort, last_abort, count = self._take(_FACTS)
        ended = []
        for _ in range(count):
            first_offset, marker_offset = self._take(_ENDED)
            ended.append((first_offset, marker_offset))
        veiled = self._take(_VEILED) if self._has_veils else (NO_OFFSET, NO_OFFSET)
        return TransactionFacts(last_unsequenced, first_abort, last_abort, ended, *veiled)

    def _read_producer(self) -> tuple[int, ProducerEntry]:
        producer_id, epoch, last_append_ms, txn_first_offset = self._take(_PRODUCER)
        producer = ProducerEntry(epoch, last_append_ms, generation=0)
        producer.txn_first_offset = txn_first_offset
        if self._has_transactions:
            producer.marker_offset, producer.coordinator_epoch = self._take(_PRODUCER_2)
        (batches,) = self._take(_BATCH_COUNT)
        for _ in range(batches):
            base, last, base_offset, last_offset, timestamp = self._take(_BATCH)
            producer.window.append((base, last, base_offset, last_offset, timestamp))
        del producer.window[:-IDEMPOTENCE_WINDOW_BATCHES]
        if producer.window:
            producer.next_sequence = sequence_after(producer.window[-1][1])
        return producer_id, producer
