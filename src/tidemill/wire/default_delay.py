"""Gives the records of a batch a delay, on topics with `tidemill.delay.default.ms`.

What is held is a function of the bytes in the log, so the delay becomes a header of each record
that names no time, as if its producer had sent it. The batch keeps its codec, its producer and its
sequence: a retry is recognised, and a transaction decides.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.hot import record_encode, record_walk
from tidemill.wire import compression
from tidemill.wire import header_names as names
from tidemill.wire.batch import BatchHeader, records_section, with_records

__all__ = ["delay_records"]

_CHUNK_RECORDS = 256
_DELAY_NAME = names.DELAY_MS.encode()
_OWN_TIME = frozenset(
    name.encode() for name in (names.DELAY_MS, names.DELIVER_AT, names.SCHEDULE, names.COMMAND)
)
"""Who names one of these decides for itself."""


def delay_records(
    view: memoryview, header: BatchHeader, delay_ms: int
) -> tuple[memoryview, bytearray]:
    """A batch with the same records, which have a delay unless they name a time; and its section.

    The batch was checked before; it may be larger than the limit for what clients send.
    """
    section = bytes(records_section(view, header))
    delay: record_encode.Header = (_DELAY_NAME, b"%d" % delay_ms)
    made = bytearray()
    position = 0
    for first in range(0, header.record_count, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, header.record_count - first)
        try:
            position, rows = record_walk.rows(section, position, len(section), first, count)
        except ValueError as err:
            raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None
        for _, _, _, _, headers in rows:
            if not any(name in _OWN_TIME for name, _ in headers):
                headers.append(delay)
        made += record_encode.encode(rows)
    packed = compression.compress(header.codec, made)
    return memoryview(with_records(view, packed, header.codec)), made
