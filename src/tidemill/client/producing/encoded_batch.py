"""A batch whose records are already encoded; only its header is missing.

The buffer has `HEADER_BYTES` bytes of room before the records. The header is written last, because
it holds the sequence numbers, which are assigned when the batch is first sent (T29), and the
checksum covers them.
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
    """The encoded records of one partition, and the values for their header."""

    partition: TopicPartition
    buffer: bytearray
    codec: int
    record_count: int
    base_timestamp: int
    max_timestamp: int

    def seal(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Write the header; this completes the batch in `buffer`."""
        batches.write_header(
            self.buffer,
            attributes=batches.attributes_of(
                self.codec, transactional=identity.transactional, control=False
            ),
            last_offset_delta=self.record_count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
        )


def compressed(buffer: bytearray, codec: int) -> bytearray:
    """The buffer with its records compressed by `codec`; the room for the header stays."""
    if codec == compression.NONE:
        return buffer
    with memoryview(buffer) as whole:
        packed = compression.compress(codec, whole[batches.HEADER_BYTES :])
    out = bytearray(batches.HEADER_BYTES + len(packed))
    out[batches.HEADER_BYTES :] = packed
    return out


def halves(batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
    """Split a sealed batch in two; its records keep their sequence numbers.

    For a batch that the broker finds too large. It opens every record.
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
            transactional=header.is_transactional,
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
