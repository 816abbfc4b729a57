"""HOT PATH. The record batch of magic 2: the unit of produce, storage, replication, fetch (D2).

Budget: a one-record batch in 4 us, checksum apart; `bench/hot_walk.py` prints it. Layout,
big-endian, 61 bytes before the records:

     0 base_offset i64       8 batch_length i32     12 partition_leader_epoch i32
    16 magic i8             17 crc u32              21 attributes i16
    23 last_offset_delta i32                        27 base_timestamp i64
    35 max_timestamp i64    43 producer_id i64      51 producer_epoch i16
    53 base_sequence i32    57 record_count i32     61 records

Theory of operation. The checksum covers everything from the attributes on, so that a leader may
write base offset and leader epoch into a client's bytes and keep the client's checksum (T24).
`validate_produced` is the one gate for a client's batch: whatever passes may be stored, copied and
handed to any consumer. Stored batches passed it once; for them `read_header` and `verify` suffice.

The header's max timestamp must be what the records say, because time index, retention and
ListOffsets believe it. Some clients leave it at its initial value, so a wrong one is not refused:
it is put right, with a new checksum, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Literal, final

from crc32c import crc32c

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import RECORD_ERRORS_MAX
from tidemill.hot.record_walk import keyless, timestamps_outside, walk
from tidemill.wire import compression

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "LOG_OVERHEAD_BYTES",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "BatchPolicy",
    "CorruptBatch",
    "InvalidRecords",
    "assign_offsets",
    "attributes_of",
    "iter_headers",
    "prepare_produced",
    "read_header",
    "rebuild",
    "recompress",
    "records_section",
    "seal",
    "stamp_append_time",
    "validate_produced",
    "verify",
]

HEADER = Struct(
    ">"
    "q"  # base_offset: of the first record
    "i"  # batch_length: bytes behind this field
    "i"  # partition_leader_epoch: of the leader that appended it
    "b"  # magic: always 2
    "I"  # crc: CRC32C of everything from the attributes on
    "h"  # attributes: codec, timestamp type, transactional, control, delete horizon
    "i"  # last_offset_delta: stays when compaction removes records
    "q"  # base_timestamp: what the records' deltas count from; the delete horizon where one is set
    "q"  # max_timestamp: the highest of the records, or the append time
    "q"  # producer_id: -1 without idempotence
    "h"  # producer_epoch
    "i"  # base_sequence: of the first record
    "i"  # record_count
)
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12
"""base_offset and batch_length: what `batch_length` does not count."""

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_MAGIC = 2
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_OFFSET = Struct(">q")
_LEADER_EPOCH_AT = 12
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_BATCH_LENGTH_AT = 8
_BATCH_LENGTH = Struct(">i")

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_HAS_HORIZON = 0x40
_CLIENT_BITS = _CODEC_MASK | _LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL

_SEQUENCES = 1 << 31
_TIMESTAMP_MAX = (1 << 63) - 1


@final
class CorruptBatch(KafkaError):
    """Bytes that are not a batch, or no longer the batch they were."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, detail)


@final
class InvalidRecords(KafkaError):
    """A batch refused for some of its records: (index in the batch, why), at most 100 (T25)."""

    def __init__(self, code: ErrorCode, detail: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors


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
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"BatchHeader({fields})"

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
        return self.attributes & _CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on compaction may drop the batch's tombstones; None: not yet known (KIP-534).

        It stands in the place of the base timestamp: a record's time is still base plus delta.
        """
        return self.base_timestamp if self.attributes & _HAS_HORIZON else None

    @property
    def timestamp_type(self) -> Literal["create", "append"]:
        return "append" if self.attributes & _LOG_APPEND_TIME else "create"

    @property
    def last_sequence(self) -> int:
        """Of the last record; sequences wrap from 2^31-1 to 0 (T29)."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


@final
class BatchPolicy:
    """What a topic's configuration says about batches; built once per configuration."""

    __slots__ = (
        "compression",
        "max_message_bytes",
        "require_keys",
        "timestamp_after_max_ms",
        "timestamp_before_max_ms",
        "timestamp_type",
    )

    def __init__(
        self,
        *,
        max_message_bytes: int = 1_048_588,
        timestamp_type: Literal["create", "append"] = "create",
        timestamp_before_max_ms: int = _TIMESTAMP_MAX,
        timestamp_after_max_ms: int = 3_600_000,
        require_keys: bool = False,
        compression: str = "producer",
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.timestamp_type = timestamp_type
        self.timestamp_before_max_ms = timestamp_before_max_ms
        self.timestamp_after_max_ms = timestamp_after_max_ms
        self.require_keys = require_keys
        self.compression = compression


def read_header(buf: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; CorruptBatch when it is cut or cannot be a batch's.

    The batch itself may reach beyond `buf`: compare `size_bytes`.
    """
    if position < 0 or len(buf) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header is {HEADER_BYTES} bytes, {len(buf) - position} left")
    header = BatchHeader(*HEADER.unpack_from(buf, position))
    if (
        header.magic != _MAGIC
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

    A cut last batch ends the iteration quietly, as fetched data may end so (T31); what is not a
    batch raises CorruptBatch.
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
    actual = crc32c(view[_ATTRIBUTES_AT : header.size_bytes])
    if actual != header.crc:
        raise CorruptBatch(f"checksum is {actual:#010x}, the batch says {header.crc:#010x}")


def records_section(view: memoryview, header: BatchHeader) -> bytes | bytearray | memoryview:
    """The records of a batch, decompressed under the cap where they are compressed."""
    section = view[HEADER_BYTES : header.size_bytes]
    codec = header.attributes & _CODEC_MASK
    return section if codec == compression.NONE else compression.decompress(codec, section)


def prepare_produced(
    view: memoryview, policy: BatchPolicy, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """Validate a client's batch and bring it into the form that the topic stores.

    The view is the same one, patched, unless the topic asks for another codec.
    """
    header = validate_produced(view, policy, now_ms)
    if policy.compression != "producer":
        codec = compression.CODEC_IDS[policy.compression]
        if codec != header.codec:
            view = memoryview(recompress(view, codec))
            header = read_header(view)
            if header.size_bytes > policy.max_message_bytes:
                raise _too_large(header.size_bytes, policy.max_message_bytes)
    if policy.timestamp_type == "append":
        stamp_append_time(view, now_ms)
        header = read_header(view)
    return view, header


def validate_produced(view: memoryview, policy: BatchPolicy, now_ms: int) -> BatchHeader:
    """Everything a leader must know about a client's batch before it appends it (S23).

    `view` holds exactly one batch (T23) and is writable: a wrong max timestamp is mended in it.
    Raises KafkaError; nothing has been changed then.
    """
    header = _parse_produced(view)
    size = header.size_bytes
    if size > policy.max_message_bytes:
        raise _too_large(size, policy.max_message_bytes)
    if size != len(view):
        raise _wrong_size(size, len(view))
    if crc32c(view[_ATTRIBUTES_AT:]) != header.crc:
        raise CorruptBatch("the checksum does not match the batch")
    _check_produced_fields(header)
    codec = header.attributes & _CODEC_MASK
    if codec:
        section: bytes | bytearray | memoryview = compression.decompress(codec, view[HEADER_BYTES:])
        start = 0
    else:
        section = view
        start = HEADER_BYTES
    try:
        lowest, highest, null_keys = walk(section, start, len(section), header.record_count)
    except ValueError as err:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None
    if null_keys and policy.require_keys:
        raise _keyless_records(section, start, header.record_count)
    max_timestamp = header.base_timestamp + highest
    if policy.timestamp_type == "create":
        min_timestamp = header.base_timestamp + lowest
        low = max(0, now_ms - policy.timestamp_before_max_ms)
        high = min(_TIMESTAMP_MAX, now_ms + policy.timestamp_after_max_ms)
        if min_timestamp < low or max_timestamp > high:
            _check_timestamps(section, start, header, low=low, high=high)
        if max_timestamp != header.max_timestamp:
            _mend_max_timestamp(view, header, max_timestamp)
    return header


def _parse_produced(view: memoryview) -> BatchHeader:
    if len(view) > _MAGIC_AT and view[_MAGIC_AT] in (0, 1):
        detail = f"message format {view[_MAGIC_AT]} is too old: only record batches (magic 2)"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if not len(view):
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch")
    if len(view) < HEADER_BYTES:
        raise CorruptBatch(f"a batch header is {HEADER_BYTES} bytes, {len(view)} came")
    header = BatchHeader(*HEADER.unpack_from(view))
    if header.magic != _MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"unknown message format {header.magic}")
    return header


def _check_produced_fields(header: BatchHeader) -> None:
    """What the checksum does not show: fields that contradict each other or are not a client's."""
    attributes = header.attributes
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        detail = f"{header.record_count} records with last delta {header.last_offset_delta}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if attributes & ~_CODEC_MASK:
        _check_flags(header)
    if attributes & _CODEC_MASK and not compression.is_known(attributes & _CODEC_MASK):
        detail = f"no codec has the number {attributes & _CODEC_MASK}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, detail)
    if header.producer_id != NO_PRODUCER_ID and (
        header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} with epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}",
        )


def _check_flags(header: BatchHeader) -> None:
    if header.attributes & _CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a client cannot write control batches")
    if header.attributes & ~_CLIENT_BITS:
        detail = f"unknown attributes {header.attributes & 0xFFFF:#06x}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if header.attributes & _LOG_APPEND_TIME:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker sets the append time")
    if header.attributes & _TRANSACTIONAL and header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch without producer id")


def _keyless_records(
    section: bytes | bytearray | memoryview, start: int, count: int
) -> InvalidRecords:
    indexes = keyless(section, start, len(section), count, RECORD_ERRORS_MAX)
    why = "a record of a compacted topic needs a key"
    return InvalidRecords(ErrorCode.INVALID_RECORD, why, [(index, why) for index in indexes])


def _check_timestamps(
    section: bytes | bytearray | memoryview, start: int, header: BatchHeader, *, low: int, high: int
) -> None:
    """The slow look at each record: a timestamp of -1 means none, and is allowed (S24)."""
    indexes = timestamps_outside(
        section,
        start,
        len(section),
        header.record_count,
        header.base_timestamp,
        low,
        high,
        RECORD_ERRORS_MAX,
    )
    if indexes:
        why = f"timestamp is not within {low}..{high}"
        errors = [(index, why) for index in indexes]
        raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, why, errors)


def _mend_max_timestamp(view: memoryview, header: BatchHeader, max_timestamp: int) -> None:
    _TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, max_timestamp)
    header.max_timestamp = max_timestamp
    header.crc = seal(view)


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, at most {limit}")


def _wrong_size(size: int, got: int) -> KafkaError:
    if HEADER_BYTES <= size < got:
        return KafkaError(ErrorCode.INVALID_RECORD, "more than one record batch")
    return CorruptBatch(f"the batch says {size} bytes, {got} came")


def assign_offsets(view: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader decides into a validated batch; the checksum does not cover it."""
    _OFFSET.pack_into(view, 0, base_offset)
    _LEADER_EPOCH.pack_into(view, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(view: memoryview | bytearray, now_ms: int) -> None:
    """Make `now_ms` the time of every record (`message.timestamp.type=LogAppendTime`, T24)."""
    attributes = _ATTRIBUTES.unpack_from(view, _ATTRIBUTES_AT)[0]
    _ATTRIBUTES.pack_into(view, _ATTRIBUTES_AT, attributes | _LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, now_ms)
    seal(view)


def attributes_of(codec: int, *, transactional: bool, control: bool) -> int:
    """The attribute bits of a batch with create time."""
    return codec | (_TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)


def seal(view: memoryview | bytearray) -> int:
    """Compute and write the checksum of the one batch in `view`."""
    crc = crc32c(memoryview(view)[_ATTRIBUTES_AT:])
    _CRC.pack_into(view, _CRC_AT, crc)
    return crc


def rebuild(
    header: BatchHeader,
    records: bytes | bytearray | memoryview,
    *,
    record_count: int,
    max_timestamp: int,
    delete_horizon_ms: int | None,
) -> bytearray:
    """The batch with only these records, their deltas counted from the horizon where one is given.

    Offsets, leader epoch, producer and codec are the same: what was removed leaves gaps. A batch
    that is left without records still speaks for its producer and its epoch, and has no time.
    """
    codec = header.codec if record_count else compression.NONE
    packed = compression.compress(codec, records)
    attributes = (header.attributes & ~(_CODEC_MASK | _HAS_HORIZON)) | codec
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= _HAS_HORIZON
        base_timestamp = delete_horizon_ms
    out = bytearray(HEADER_BYTES + len(packed))
    out[HEADER_BYTES:] = packed
    HEADER.pack_into(
        out,
        0,
        header.base_offset,
        len(out) - LOG_OVERHEAD_BYTES,
        header.partition_leader_epoch,
        _MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    seal(out)
    return out


def recompress(view: memoryview, codec: int) -> bytearray:
    """The same batch with its records under another codec."""
    header = read_header(view)
    packed = compression.compress(codec, records_section(view, header))
    out = bytearray(HEADER_BYTES + len(packed))
    out[:HEADER_BYTES] = view[:HEADER_BYTES]
    out[HEADER_BYTES:] = packed
    _BATCH_LENGTH.pack_into(out, _BATCH_LENGTH_AT, len(out) - LOG_OVERHEAD_BYTES)
    _ATTRIBUTES.pack_into(out, _ATTRIBUTES_AT, (header.attributes & ~_CODEC_MASK) | codec)
    seal(out)
    return out
