"""A batch whose records are encoded already; only its header is to be written.

The records lie behind `HEADER_BYTES` bytes of room. The header comes last because it holds the
producer's sequence numbers, which are given when the batch is first sent (T29), and the checksum
covers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.client.producing.producer_identity import ProducerIdentity, sequence_after
from tidemill.core.ids import TopicPartition
from tidemill.wire import batch as batches
from tidemill.wire import compression
from tidemill.wire.records import build_batch, iter_records

__all__ = ["EncodedBatch", "compressed", "halves"]


@final
@dataclass(slots=True)
class EncodedBatch:
    """The records of one partition, and what the header says about them."""

    partition: TopicPartition
    buffer: bytearray
    codec: int
    record_count: int
    base_timestamp: int
    max_timestamp: int

    def seal(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Write the header; `buffer` is a whole batch from now on."""
        batches.write_header(
            self.buffer,
            attributes=batches.attributes_of(self.codec, transactional=False, control=False),
            last_offset_delta=self.record_count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
        )


def compressed(buffer: bytearray, codec: int) -> bytearray:
    """The same room and records with the records under `codec`."""
    if codec == compression.NONE:
        return buffer
    with memoryview(buffer) as whole:
        packed = compression.compress(codec, whole[batches.HEADER_BYTES :])
    out = bytearray(batches.HEADER_BYTES + len(packed))
    out[batches.HEADER_BYTES :] = packed
    return out


def halves(batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
    """Two batches with the records of a sealed one, under the sequence numbers that it has.

    The way back from a batch that the broker finds too large, as a whole. It opens every record.
    """
    header = batches.read_header(batch.buffer)
    records = list(iter_records(batch.buffer, header))
    middle = len(records) // 2
    parts = []
    for first, part in ((0, records[:middle]), (middle, records[middle:])):
        for index, record in enumerate(part):
            record.offset = index
        idempotent = header.producer_id != batches.NO_PRODUCER_ID
        base = header.base_sequence
        sequence = sequence_after(base, first) if idempotent else base
        payload = build_batch(
            part,
            codec=batch.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence,
        )
        half = batches.read_header(payload)
        parts.append(
            EncodedBatch(
                batch.partition,
                payload,
                batch.codec,
                len(part),
                half.base_timestamp,
                half.max_timestamp,
            )
        )
    return parts[0], parts[1]
