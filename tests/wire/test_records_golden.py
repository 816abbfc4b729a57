"""Batches of two other client libraries, read by our code; and ours, read by theirs."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record import default_records as aiokafka_records

from tidemill.wire import compression
from tidemill.wire.batch import assign_offsets, read_header
from tidemill.wire.produced_batch import BatchPolicy, validate_produced
from tidemill.wire.records import Record, build_batch, iter_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python loads its schemas by a deprecated call
    from kafka.record import default_records as kafka_python_records

NOW_MS = 1_700_000_000_000
LIBRARIES = {"aiokafka": aiokafka_records, "kafka-python": kafka_python_records}
RECORDS = [
    Record(b"first", b"key", timestamp=NOW_MS, headers=[("h", b"1"), ("null", None)]),
    Record(None, b"tombstone", timestamp=NOW_MS + 250),
    Record(b"x" * 300, None, timestamp=NOW_MS - 70_000),
    Record(b"", b"", timestamp=NOW_MS + 1),
]

# One record with every kind of field, laid out by hand from the protocol's description.
GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset 0
    "0000003e"  # 62 bytes follow
    "ffffffff"  # leader epoch -1
    "02"  # magic
    "0a1381c2"  # checksum
    "0000"  # no codec, create time
    "00000000"  # last offset delta 0
    "0000018bcfe56800"  # base timestamp 1 700 000 000 000
    "0000018bcfe56800"  # max timestamp, the same
    "ffffffffffffffff"  # no producer id
    "ffff"  # no producer epoch
    "ffffffff"  # no sequence
    "00000001"  # one record
    "18"  # 12 bytes follow
    "00"  # attributes
    "00"  # timestamp delta 0
    "00"  # offset delta 0
    "026b"  # key "k"
    "047676"  # value "vv"
    "02"  # one header
    "0268"  # its key "h"
    "01"  # its value: null
)

# kafka-python needs a snappy library of its own, which nothing else here uses.
FOREIGN = [
    pytest.param(library, codec, id=f"{name}-{compression.CODEC_NAMES[codec]}")
    for name, library in LIBRARIES.items()
    for codec in compression.CODEC_NAMES
    if (name, codec) != ("kafka-python", compression.SNAPPY)
]


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


def foreign(library, codec: int) -> bytearray:
    builder = library.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        batch_size=100_000,
    )
    for offset, record in enumerate(RECORDS):
        headers = list(record.headers)
        builder.append(offset, record.timestamp, record.key, record.value, headers)
    return bytearray(builder.build())


def test_a_batch_is_laid_out_as_the_protocol_says():
    built = build_batch([Record(b"vv", b"k", timestamp=NOW_MS, headers=[("h", None)])])
    assert bytes(built).hex() == GOLDEN.hex()


def test_an_uncompressed_batch_is_the_same_bytes_that_others_write(library):
    theirs = foreign(library, compression.NONE)
    ours = build_batch(RECORDS, producer_id=5, producer_epoch=1, base_sequence=9)
    assign_offsets(ours, 0, 0)
    assign_offsets(theirs, 0, 0)
    assert ours == theirs


@pytest.mark.parametrize(("library", "codec"), FOREIGN)
def test_T62_a_batch_that_others_write_is_valid_and_reads_back(library, codec):
    theirs = foreign(library, codec)
    header = validate_produced(memoryview(theirs), BatchPolicy(), NOW_MS)
    assert header.codec == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9)
    assert [content(record) for record in iter_records(theirs)] == [content(r) for r in RECORDS]


def content(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, list(record.headers)


@pytest.mark.parametrize(("library", "codec"), FOREIGN)
def test_T62_others_read_the_batches_that_we_write(library, codec):
    ours = build_batch(RECORDS, codec=codec)
    theirs = library.DefaultRecordBatch(bytes(ours))
    assert theirs.validate_crc()
    found = [(r.timestamp, r.key, r.value, [(k, v) for k, v in r.headers]) for r in theirs]
    assert found == [content(record) for record in RECORDS]


def test_the_header_reads_as_others_read_it(library):
    data = foreign(library, compression.GZIP)
    assign_offsets(data, 1234, 0)
    ours = read_header(data)
    theirs = library.DefaultRecordBatch(bytes(data))
    assert ours.base_offset == theirs.base_offset
    assert ours.attributes == theirs.attributes
    assert ours.last_offset_delta == theirs.last_offset_delta
    assert ours.max_timestamp == theirs.max_timestamp
    assert ours.crc == theirs.crc
