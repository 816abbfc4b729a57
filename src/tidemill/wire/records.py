"""Single records, for code that must open batches: tools, coordinators, compaction, our client.

Produce, fetch and replication never use this: they handle whole batches. A batch is opened some
records at a time, so a batch with millions of tiny records does not become millions of objects at
once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import HELD_BATCH_HEADERS_MAX
from tidemill.hot import record_encode, record_walk
from tidemill.hot.record_pick import HIDING_NAMES
from tidemill.wire import batch as batches
from tidemill.wire import compression
from tidemill.wire import header_names as names
from tidemill.wire.marks import is_veiled, record_base

__all__ = [
    "Header",
    "Record",
    "build_batch",
    "build_pair_batch",
    "check_header_count",
    "count_headers",
    "delay_records",
    "empty_batch",
    "iter_records",
    "try_find_timestamp",
    "visible_times",
]

Header = tuple[str, bytes | None]

_CHUNK_RECORDS: Final = 256
"""Records that exist as Python objects at the same time while a batch is iterated."""
_DELAY_NAME = names.DELAY_MS.encode()
_OWN_TIME = frozenset(
    [name.encode() for name in (names.DELAY_MS, names.DELIVER_AT, names.SCHEDULE, names.COMMAND)]
)
"""Headers of records that no delay of their topic concerns."""


@final
class Record:
    """One record. In `build_batch`, an offset that is set must be at least the batch's base."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Sequence[Header] = (),
        timestamp: int = batches.NO_TIMESTAMP,
        offset: int = -1,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamp = timestamp
        self.offset = offset

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, key={self.key!r}, value={self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # mutable, and compared by content

    def _content(self) -> tuple[object, ...]:
        return self.offset, self.timestamp, self.key, self.value, list(self.headers)


def iter_records(
    view: bytes | bytearray | memoryview, header: batches.BatchHeader | None = None
) -> Iterator[Record]:
    """The records of the batch that `view` starts with, in order.

    KafkaError if the batch is damaged, INVALID_RECORD also if it is larger than the cap. The caller
    verifies the checksum (`batch.verify`).
    """
    view = memoryview(view)
    header = batches.read_header(view) if header is None else header
    if len(view) < header.size_bytes:
        raise batches.CorruptBatch(f"{len(view)} bytes of a batch of {header.size_bytes}")
    section = bytes(batches.records_section(view, header))
    append_time = header.max_timestamp if header.timestamp_type == "append" else None
    base_timestamp = header.base_timestamp
    if is_veiled(header) and append_time is None:
        base_timestamp = record_base(header, _highest_delta(section, header))
    for rows in _row_chunks(section, header.record_count):
        for offset_delta, timestamp_delta, key, value, headers in rows:
            yield Record(
                value,
                key,
                headers=[(name.decode("utf-8", "surrogateescape"), data) for name, data in headers],
                timestamp=base_timestamp + timestamp_delta if append_time is None else append_time,
                offset=header.base_offset + offset_delta,
            )


def _row_chunks(section: bytes, record_count: int) -> Iterator[list[record_walk.Row]]:
    """The records of a section as rows, some at a time. KafkaError if it is damaged."""
    position = 0
    for first in range(0, record_count, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, record_count - first)
        try:
            position, rows = record_walk.rows(section, position, len(section), first, count)
        except ValueError as err:
            raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None
        yield rows
    if position != len(section):
        raise KafkaError(ErrorCode.INVALID_RECORD, "bytes after the last record")


def _highest_delta(section: bytes, header: batches.BatchHeader) -> int:
    """Of the timestamp deltas; a batch is veiled whole, so no offset is missing in it."""
    try:
        return record_walk.walk(section, 0, len(section), header.record_count)[1]
    except ValueError as err:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None


def visible_times(view: memoryview, header: batches.BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record of a veiled batch that consumers see."""
    for record in iter_records(view, header):
        if not any(
            name.encode("utf-8", "surrogateescape") in HIDING_NAMES for name, _ in record.headers
        ):
            yield record.offset, record.timestamp


def delay_records(
    view: memoryview, header: batches.BatchHeader, delay_ms: int
) -> tuple[memoryview, bytearray]:
    """A batch with the same records, which have a delay unless they name a time; and its section.

    What is held is a function of the bytes in the log: a delay that the topic has for all becomes
    a header of each record, as if its producer had sent it. Codec, producer and sequence stay. The
    batch was checked before; it may become larger than what clients may send.
    """
    section = bytes(batches.records_section(view, header))
    _check_headers(section, header.record_count)
    delay: record_encode.Header = (_DELAY_NAME, b"%d" % delay_ms)
    made = bytearray()
    for rows in _row_chunks(section, header.record_count):
        for _, _, _, _, headers in rows:
            if not any(name in _OWN_TIME for name, _ in headers):
                headers.append(delay)
        made += record_encode.encode(rows)
    packed = compression.compress(header.codec, made)
    return memoryview(batches.with_records(view, packed, header.codec)), made


def _check_headers(section: bytes, record_count: int) -> None:
    """KafkaError if a section has too many, before an object is made of any of them."""
    table = array("q", bytes(8 * record_walk.ROW_FIELDS * _CHUNK_RECORDS))
    header_count = position = 0
    for first in range(0, record_count, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, record_count - first)
        try:
            position = record_walk.index(section, position, len(section), first, count, table)
        except ValueError as err:
            raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None
        header_count += count_headers(table, count)
        check_header_count(header_count)


def count_headers(table: array[int], count: int) -> int:
    """Those of the first `count` records of a table that was indexed."""
    fields = record_walk.ROW_FIELDS
    return sum(table[record_walk.HEADER_COUNT : count * fields : fields])


def check_header_count(count: int) -> None:
    """KafkaError MESSAGE_TOO_LARGE if these are too many for a batch with held records."""
    if count > HELD_BATCH_HEADERS_MAX:
        detail = f"a batch with held records has at most {HELD_BATCH_HEADERS_MAX} headers"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)


def try_find_timestamp(
    view: memoryview, header: batches.BatchHeader, target_ms: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the batch's first record at `target_ms` or later (T39)."""
    if header.max_timestamp < target_ms:
        return None
    if header.timestamp_type == "append":
        return header.base_offset, header.max_timestamp
    section = batches.records_section(view, header)
    try:
        found = record_walk.find_time(
            section, 0, len(section), header.record_count, header.base_timestamp, target_ms
        )
    except ValueError as err:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None
    return None if found is None else (header.base_offset + found[0], found[1])


def empty_batch(base_offset: int, end_offset: int, *, leader_epoch: int) -> bytearray:
    """A batch without records in the place of all offsets from `base_offset` to `end_offset`."""
    out = bytearray(batches.HEADER_BYTES)
    batches.write_header(
        out,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        last_offset_delta=end_offset - base_offset - 1,
        base_timestamp=batches.NO_TIMESTAMP,
        max_timestamp=batches.NO_TIMESTAMP,
        record_count=0,
    )
    return out


def build_batch(
    records: Iterable[Record],
    *,
    codec: int = compression.NONE,
    producer_id: int = batches.NO_PRODUCER_ID,
    producer_epoch: int = batches.NO_PRODUCER_EPOCH,
    base_sequence: int = batches.NO_SEQUENCE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One whole batch. Records without an offset are numbered on from the one before.

    Offsets may have gaps (compaction) but must rise.
    """
    rows: list[record_encode.Row] = []
    base_timestamp: int | None = None
    max_timestamp = batches.NO_TIMESTAMP
    next_delta = 0
    for record in records:
        if base_timestamp is None:
            base_timestamp = record.timestamp
        delta = record.offset - base_offset if record.offset >= 0 else next_delta
        if delta < next_delta:
            raise ValueError(f"offset {record.offset} comes after {base_offset + next_delta - 1}")
        next_delta = delta + 1
        max_timestamp = max(max_timestamp, record.timestamp)
        rows.append(_row(record, delta, base_timestamp))
    if base_timestamp is None:
        raise ValueError("a batch has at least one record")
    packed = compression.compress(codec, record_encode.encode(rows))
    out = bytearray(batches.HEADER_BYTES + len(packed))
    out[batches.HEADER_BYTES :] = packed
    batches.write_header(
        out,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=batches.attributes_of(codec, transactional=transactional, control=control),
        last_offset_delta=next_delta - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(rows),
    )
    return out


def build_pair_batch(
    pairs: Sequence[tuple[bytes | None, bytes | None]], timestamp: int
) -> bytearray:
    """Keys and values with one timestamp as one plain batch: half the cost of `build_batch`."""
    rows: list[record_encode.Row] = [
        (delta, 0, key, value, []) for delta, (key, value) in enumerate(pairs)
    ]
    out = bytearray(batches.HEADER_BYTES)
    out += record_encode.encode(rows)
    batches.write_header(
        out,
        last_offset_delta=len(rows) - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=len(rows),
    )
    return out


def _row(record: Record, delta: int, base_timestamp: int) -> record_encode.Row:
    headers = [(name.encode("utf-8", "surrogateescape"), data) for name, data in record.headers]
    return delta, record.timestamp - base_timestamp, record.key, record.value, headers
