"""HOT PATH. Validates a client's batch: a batch that passes may be stored and sent to any consumer.

Budget: a one-record batch in 4 us, without the checksum; `bench/hot_walk.py` prints it.

The header's max timestamp must agree with the records, because time index, retention and
ListOffsets rely on it. Some clients leave it at its initial value, so a wrong one is not refused:
it is corrected, with a new checksum, as Kafka does.

A kilobyte may decompress to megabytes, and a megabyte may hold a hundred thousand records. So the
caller on the event loop passes `BatchWork`: the check counts there what it costs, and a batch that
would take milliseconds ends in `LongBatch`, to be prepared again in a thread (S18).
"""

from __future__ import annotations

from typing import Final, Literal, final

from crc32c import crc32c

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    BATCH_RECORDS_MAX,
    LOOP_BATCH_BYTES_MAX,
    LOOP_BATCH_BYTES_MIN,
    LOOP_BATCH_RATIO_MAX,
    LOOP_BATCH_RECORDS_MAX,
    LOOP_BLOCK_BYTES_MIN,
    LOOP_HELD_RECORDS_MAX,
    LOOP_OWN_HEADERS_MAX,
    LOOP_RECOMPRESSED_WORK_MAX,
    RECOMPRESSION_FACTOR,
    RECORD_ERRORS_MAX,
    RECORD_WORK,
)
from tidemill.hot.hold_scan import count_others
from tidemill.hot.record_walk import keyless, timestamps_outside, walk
from tidemill.wire import compression
from tidemill.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    correct_max_timestamp,
    read_header,
    recompress,
    stamp_append_time,
)
from tidemill.wire.records import delay_records

__all__ = [
    "BatchPolicy",
    "BatchWork",
    "InvalidRecords",
    "LongBatch",
    "Records",
    "prepare_own",
    "prepare_produced",
    "validate_produced",
]

_CLIENT_BITS: Final = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_TIMESTAMP_MAX: Final = (1 << 63) - 1

Records = bytes | bytearray | memoryview
"""The records of a batch, decompressed."""


@final
class InvalidRecords(KafkaError):
    """A batch refused for some of its records: (index in the batch, why), at most 100 (T25)."""

    def __init__(self, code: ErrorCode, detail: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors


@final
class LongBatch(Exception):
    """Checking this batch takes too long for the event loop; nothing has been changed."""


@final
class BatchWork:
    """What checking batches may still cost before other requests get a turn of the loop."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left
        """In uncompressed bytes, `RECORD_WORK` for each record added; 0 or less: used up."""


@final
class BatchPolicy:
    """The rules of a topic's configuration for batches; built once per configuration."""

    __slots__ = (
        "compression",
        "delay_default_ms",
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
        delay_default_ms: int = 0,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.timestamp_type = timestamp_type
        self.timestamp_before_max_ms = timestamp_before_max_ms
        self.timestamp_after_max_ms = timestamp_after_max_ms
        self.require_keys = require_keys
        self.compression = compression
        self.delay_default_ms = delay_default_ms
        """What a record that names no time is held for; 0: it is not."""


def prepare_produced(
    view: memoryview, policy: BatchPolicy, now_ms: int, work: BatchWork | None = None
) -> tuple[memoryview, BatchHeader, Records | None]:
    """Validate a client's batch and convert it to the form that the topic stores.

    Returns the same view, patched, unless the topic requires another codec or holds every record;
    and the records, but only if a header of theirs has a name of ours. With `work`, raises
    LongBatch instead of taking long.
    """
    left = 0 if work is None else work.left
    header, requesting = _validate(view, policy, now_ms, work)
    spent = 0 if work is None else left - work.left
    if policy.delay_default_ms:
        if work is not None and header.record_count > LOOP_OWN_HEADERS_MAX:
            raise LongBatch
        if work is not None and header.codec:
            _charge_packing(work, spent)
        view, requesting = delay_records(view, header, policy.delay_default_ms)
        header = read_header(view)
    if (
        work is not None
        and policy.compression != "producer"
        and compression.CODEC_IDS[policy.compression] != header.codec
    ):
        _charge_packing(work, spent)
    stored, header = _stored_form(view, header, policy, now_ms)
    return stored, header, requesting


def _charge_packing(work: BatchWork, spent: int) -> None:
    """Count what compressing records costs that took `spent` to read; LongBatch."""
    if spent > LOOP_RECOMPRESSED_WORK_MAX:
        raise LongBatch
    work.left -= RECOMPRESSION_FACTOR * spent


def prepare_own(
    view: memoryview, policy: BatchPolicy, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """Bring a batch that this broker built into the form that the topic stores.

    Only its size is checked: its checksum and records come from our own encoder.
    """
    header = read_header(view)
    if header.size_bytes > policy.max_message_bytes:
        raise _too_large(header.size_bytes, policy.max_message_bytes)
    return _stored_form(view, header, policy, now_ms)


def _stored_form(
    view: memoryview, header: BatchHeader, policy: BatchPolicy, now_ms: int
) -> tuple[memoryview, BatchHeader]:
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


def validate_produced(
    view: memoryview, policy: BatchPolicy, now_ms: int, work: BatchWork | None = None
) -> BatchHeader:
    """Make all checks that a leader needs before it appends a client's batch (S23).

    `view` holds exactly one batch (T23) and is writable: a wrong max timestamp is corrected in it.
    Raises KafkaError, or LongBatch if there is `work`; then nothing has been changed.
    """
    return _validate(view, policy, now_ms, work)[0]


def _validate(
    view: memoryview, policy: BatchPolicy, now_ms: int, work: BatchWork | None
) -> tuple[BatchHeader, Records | None]:
    """The header; and the records, if any has a header with a name of ours."""
    header = _parse_produced(view)
    size = header.size_bytes
    if size > policy.max_message_bytes:
        raise _too_large(size, policy.max_message_bytes)
    if size != len(view):
        raise _wrong_size(size, len(view))
    if crc32c(view[ATTRIBUTES_AT:]) != header.crc:
        raise CorruptBatch("the checksum does not match the batch")
    _check_produced_fields(header)
    section = _records_of(view, header, work)
    start = HEADER_BYTES if section is view else 0
    try:
        lowest, highest, null_keys, own_headers = walk(
            section, start, len(section), header.record_count
        )
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
            correct_max_timestamp(view, header, max_timestamp)
    if own_headers == 0:
        return header, None
    records = section if start == 0 else view[start:]
    return header, _requesting(records, header.record_count, own_headers, work)


def _requesting(
    records: Records, record_count: int, own_headers: int, work: BatchWork | None
) -> Records:
    """Records whose headers somebody has to read."""
    if work is not None and own_headers > LOOP_OWN_HEADERS_MAX:
        if own_headers > LOOP_HELD_RECORDS_MAX:
            raise LongBatch
        # A delay or a date is read by compiled code; what else there is becomes objects.
        others = count_others(records, 0, len(records), record_count, LOOP_OWN_HEADERS_MAX)
        if others > LOOP_OWN_HEADERS_MAX:
            raise LongBatch
        work.left -= RECORD_WORK * record_count
    return records


def _records_of(
    view: memoryview, header: BatchHeader, work: BatchWork | None
) -> bytes | bytearray | memoryview:
    """The batch, or its records decompressed; what reading them costs is counted."""
    if work is not None and header.record_count > LOOP_BATCH_RECORDS_MAX:
        raise LongBatch
    codec = header.attributes & CODEC_MASK
    section: bytes | bytearray | memoryview = view
    if codec:
        section = _decompressed(codec, view[HEADER_BYTES:], work)
    if work is not None:
        work.left -= len(section) + RECORD_WORK * header.record_count
    return section


def _decompressed(codec: int, packed: memoryview, work: BatchWork | None) -> bytes | bytearray:
    if work is None:
        return compression.decompress(codec, packed)
    bytes_max = min(LOOP_BATCH_BYTES_MAX, LOOP_BATCH_BYTES_MIN + LOOP_BATCH_RATIO_MAX * len(packed))
    left = work.left
    work.left = left - bytes_max  # stays so if the data is damaged: how much was read is unknown
    try:
        section = compression.decompress(codec, packed, bytes_max, LOOP_BLOCK_BYTES_MIN)
    except compression.DecompressedTooLarge:
        raise LongBatch from None
    work.left = left
    return section


def _parse_produced(view: memoryview) -> BatchHeader:
    if len(view) > MAGIC_AT and view[MAGIC_AT] in (0, 1):
        detail = f"message format {view[MAGIC_AT]} is too old: only record batches (magic 2)"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if not len(view):
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch")
    if len(view) < HEADER_BYTES:
        raise CorruptBatch(f"a batch header is {HEADER_BYTES} bytes, {len(view)} came")
    header = BatchHeader(*HEADER.unpack_from(view))
    if header.magic != MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"unknown message format {header.magic}")
    return header


def _check_produced_fields(header: BatchHeader) -> None:
    """Refuse fields that contradict each other or that no client may set, checksum or not."""
    attributes = header.attributes
    if header.record_count > BATCH_RECORDS_MAX:
        detail = f"a batch of {header.record_count} records, at most {BATCH_RECORDS_MAX}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        detail = f"{header.record_count} records with last delta {header.last_offset_delta}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if attributes & ~CODEC_MASK:
        _check_flags(header)
    if attributes & CODEC_MASK and not compression.is_known(attributes & CODEC_MASK):
        detail = f"no codec has the number {attributes & CODEC_MASK}"
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
    if header.attributes & CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a client cannot write control batches")
    if header.attributes & ~_CLIENT_BITS:
        detail = f"unknown attributes {header.attributes & 0xFFFF:#06x}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if header.attributes & LOG_APPEND_TIME:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker sets the append time")
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
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
    """The slow check of each record: a timestamp of -1 means none, and is allowed (S24)."""
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


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, at most {limit}")


def _wrong_size(size: int, got: int) -> KafkaError:
    if HEADER_BYTES <= size < got:
        return KafkaError(ErrorCode.INVALID_RECORD, "more than one record batch")
    return CorruptBatch(f"the batch says {size} bytes, {got} came")
