"""HOT PATH. The record batch of magic 2: the unit of produce, storage, replication and fetch.

Budget: a one-record batch in 4 us, without the checksum; `bench/hot_walk.py` prints it. Layout,
big-endian, 61 bytes before the records:

     0 base_offset i64       8 batch_length i32     12 partition_leader_epoch i32
    16 magic i8             17 crc u32              21 attributes i16
    23 last_offset_delta i32                        27 base_timestamp i64
    35 max_timestamp i64    43 producer_id i64      51 producer_epoch i16
    53 base_sequence i32    57 record_count i32     61 records

Theory of operation. The checksum covers everything from the attributes on, so a leader can write
base offset and leader epoch into a client's bytes and keep the client's checksum (T24). A client's
batch is validated by `produced_batch`; for a stored one `read_header` and `verify` suffice.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, Literal, final

from crc32c import crc32c

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire import compression

__all__ = [
    "ATTRIBUTES_AT",
    "CODEC_MASK",
    "CONTROL",
    "HEADER",
    "HEADER_BYTES",
    "LOG_APPEND_TIME",
    "LOG_OVERHEAD_BYTES",
    "MAGIC",
    "MAGIC_AT",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "TRANSACTIONAL",
    "BatchHeader",
    "CorruptBatch",
    "assign_offsets",
    "attributes_of",
    "correct_max_timestamp",
    "iter_headers",
    "read_header",
    "rebuild",
    "recompress",
    "records_section",
    "stamp_append_time",
    "verify",
    "with_records",
    "write_checksum",
    "write_header",
]

HEADER: Final = Struct(
    ">"
    "q"  # base_offset: of the first record
    "i"  # batch_length: bytes after this field
    "i"  # partition_leader_epoch: of the leader that appended it
    "b"  # magic: always 2
    "I"  # crc: CRC32C of everything from the attributes on
    "h"  # attributes: codec, timestamp type, transactional, control, delete horizon
    "i"  # last_offset_delta: stays when compaction removes records
    "q"  # base_timestamp: the base of the records' deltas; the delete horizon if one is set
    "q"  # max_timestamp: the highest of the records, or the append time
    "q"  # producer_id: -1 without idempotence
    "h"  # producer_epoch
    "i"  # base_sequence: of the first record
    "i"  # record_count
)
HEADER_BYTES: Final = HEADER.size
LOG_OVERHEAD_BYTES: Final = 12
"""base_offset and batch_length, which `batch_length` does not count."""

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

MAGIC: Final = 2
MAGIC_AT: Final = 16
_CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_OFFSET: Final = Struct(">q")
_LEADER_EPOCH_AT: Final = 12
_LEADER_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_CRC_TO_COME: Final = 0
_ATTRIBUTES: Final = Struct(">h")
_TIMESTAMP: Final = Struct(">q")
_BATCH_LENGTH_AT: Final = 8
_BATCH_LENGTH: Final = Struct(">i")

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
_HAS_HORIZON: Final = 0x40

_SEQUENCES: Final = 1 << 31


@final
class CorruptBatch(KafkaError):
    """Bytes that are not a batch, or no longer the batch that was written."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, detail)


@final
class BatchHeader:
    """The 61 bytes, unpacked."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(
        self,
        base_offset: int,
        batch_length: int,
        partition_leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.batch_length = batch_length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

    def __repr__(self) -> str:
        return (
            f"BatchHeader(base_offset={self.base_offset}, batch_length={self.batch_length}, "
            f"magic={self.magic}, attributes={self.attributes:#x}, "
            f"record_count={self.record_count}, last_offset_delta={self.last_offset_delta}, "
            f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
            f"base_sequence={self.base_sequence})"
        )

    @property
    def size_bytes(self) -> int:
        """The whole batch, first byte to last."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A number of `wire.compression`."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the batch's tombstones; None if not yet known (KIP-534).

        It replaces the base timestamp: a record's time is still base plus delta.
        """
        return self.base_timestamp if self.attributes & _HAS_HORIZON else None

    @property
    def timestamp_type(self) -> Literal["create", "append"]:
        return "append" if self.attributes & LOG_APPEND_TIME else "create"

    @property
    def last_sequence(self) -> int:
        """Of the last record; sequences wrap from 2^31-1 to 0 (T29)."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


def read_header(buf: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; CorruptBatch if it is cut or cannot be a batch header.

    The batch itself may reach beyond `buf`: compare `size_bytes`.
    """
    if position < 0 or len(buf) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header is {HEADER_BYTES} bytes, {len(buf) - position} left")
    header = BatchHeader(*HEADER.unpack_from(buf, position))
    if (
        header.magic != MAGIC
        or header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES
        or header.base_offset < 0
        or header.last_offset_delta < 0
        or header.record_count < 0
    ):
        raise CorruptBatch(f"not a batch header at byte {position}: {header!r}")
    return header


def iter_headers(
    buf: bytes | bytearray | memoryview, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in `buf[start:end]`.

    A cut last batch ends the iteration without an error, because fetched data may end that way
    (T31); bytes that are not a batch raise CorruptBatch.
    """
    stop = len(buf) if end is None else min(end, len(buf))
    position = start
    while stop - position >= HEADER_BYTES:
        header = read_header(buf, position)
        size = header.size_bytes
        if size > stop - position:
            return
        yield position, header
        position += size


def verify(view: memoryview, header: BatchHeader) -> None:
    """Check the checksum of a stored or fetched batch that starts at `view[0]`."""
    if len(view) < header.size_bytes:
        raise CorruptBatch(f"{len(view)} bytes of a batch of {header.size_bytes}")
    actual = crc32c(view[ATTRIBUTES_AT : header.size_bytes])
    if actual != header.crc:
        raise CorruptBatch(f"checksum is {actual:#010x}, the batch says {header.crc:#010x}")


def records_section(view: memoryview, header: BatchHeader) -> bytes | bytearray | memoryview:
    """The records of a batch, decompressed under the cap if they are compressed."""
    section = view[HEADER_BYTES : header.size_bytes]
    codec = header.attributes & CODEC_MASK
    return section if codec == compression.NONE else compression.decompress(codec, section)


def assign_offsets(view: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write the leader's values into a validated batch; the checksum does not cover them."""
    _OFFSET.pack_into(view, 0, base_offset)
    _LEADER_EPOCH.pack_into(view, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(view: memoryview | bytearray, now_ms: int) -> None:
    """Make `now_ms` the time of every record (`message.timestamp.type=LogAppendTime`, T24)."""
    attributes = _ATTRIBUTES.unpack_from(view, ATTRIBUTES_AT)[0]
    _ATTRIBUTES.pack_into(view, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, now_ms)
    write_checksum(view)


def correct_max_timestamp(view: memoryview, header: BatchHeader, max_timestamp: int) -> None:
    """Replace a header's max timestamp that the records contradict."""
    _TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, max_timestamp)
    header.max_timestamp = max_timestamp
    header.crc = write_checksum(view)


def attributes_of(codec: int, *, transactional: bool, control: bool) -> int:
    """The attribute bits of a batch with create time."""
    return codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)


def write_checksum(view: memoryview | bytearray) -> int:
    """Compute and write the checksum of the one batch in `view`."""
    crc = crc32c(memoryview(view)[ATTRIBUTES_AT:])
    _CRC.pack_into(view, _CRC_AT, crc)
    return crc


def write_header(
    out: bytearray,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> None:
    """Complete the batch whose records are in `out[HEADER_BYTES:]`, including its checksum."""
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - LOG_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        _CRC_TO_COME,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    write_checksum(out)


def rebuild(
    header: BatchHeader,
    records: bytes | bytearray | memoryview,
    *,
    record_count: int,
    max_timestamp: int,
    delete_horizon_ms: int | None,
    codec: int | None = None,
) -> bytearray:
    """The batch with only these records; their deltas are relative to the horizon if one is given.

    Offsets, leader epoch and producer stay the same: removed records leave gaps. The codec does too
    unless one is given. A batch without records still carries its producer and its epoch, and has
    no timestamp.
    """
    if codec is None:
        codec = header.codec if record_count else compression.NONE
    packed = compression.compress(codec, records)
    attributes = (header.attributes & ~(CODEC_MASK | _HAS_HORIZON)) | codec
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= _HAS_HORIZON
        base_timestamp = delete_horizon_ms
    out = bytearray(HEADER_BYTES + len(packed))
    out[HEADER_BYTES:] = packed
    write_header(
        out,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=record_count,
    )
    return out


def recompress(view: memoryview, codec: int) -> bytearray:
    """The same batch with its records under another codec."""
    packed = compression.compress(codec, records_section(view, read_header(view)))
    return with_records(view, packed, codec)


def with_records(view: memoryview, packed: bytes | bytearray | memoryview, codec: int) -> bytearray:
    """The same batch with other records, as many, which were compressed with this codec."""
    header = read_header(view)
    out = bytearray(HEADER_BYTES + len(packed))
    out[:HEADER_BYTES] = view[:HEADER_BYTES]
    out[HEADER_BYTES:] = packed
    _BATCH_LENGTH.pack_into(out, _BATCH_LENGTH_AT, len(out) - LOG_OVERHEAD_BYTES)
    _ATTRIBUTES.pack_into(out, ATTRIBUTES_AT, (header.attributes & ~CODEC_MASK) | codec)
    write_checksum(out)
    return out
