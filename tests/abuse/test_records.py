"""Record batches that are false, damaged or bombs (S18 to S24), produced on a live socket."""

from __future__ import annotations

import gzip
import struct

import cramjam
import crc32c
import lz4.frame
import pytest
import zstandard

from tests.abuse.requests import FETCH, PRODUCE, batch, code_of, fetch, partition_of, produce
from tests.abuse.victim import MIB
from tidemill.core.errors import ErrorCode
from tidemill.wire.compression import GZIP, LZ4, SNAPPY, ZSTD

ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
COUNT_AT = 57
RECORDS_AT = 61
BOMB_BYTES = 200 * MIB
INVALID = (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def sealed(data):
    """Set a correct length and checksum: the damage is elsewhere."""
    data = bytearray(data)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


def with_field(at, layout, value):
    data = bytearray(batch(b"one", b"two"))
    struct.pack_into(layout, data, at, value)
    return sealed(data)


def with_payload(codec, payload):
    data = bytearray(batch(b"one")[:RECORDS_AT]) + payload
    struct.pack_into(">h", data, ATTRIBUTES_AT, codec)
    return sealed(data)


def _gzip_bomb():
    return gzip.compress(bytes(BOMB_BYTES), 1)


def _zstd_bomb():
    return zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES))


def _zstd_without_size():
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(bytes(BOMB_BYTES)) + compressor.flush()


def _lz4_bomb():
    return lz4.frame.compress(bytes(100 * MIB), store_size=False)


BOMBS = {
    "S18_gzip": lambda: with_payload(GZIP, _gzip_bomb()),
    "S20_zstd": lambda: with_payload(ZSTD, _zstd_bomb()),
    "S20_zstd_without_size": lambda: with_payload(ZSTD, _zstd_without_size()),
    "S20_zstd_of_a_terabyte": lambda: with_payload(
        ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\0" * 20
    ),
    "S21_snappy_of_4_GiB": lambda: with_payload(SNAPPY, b"\xff\xff\xff\xff\x0f\0"),
    "S21_snappy": lambda: with_payload(SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(40 * MIB)))),
    "S22_lz4": lambda: with_payload(LZ4, _lz4_bomb()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_S18_S20_S21_S22_a_decompression_bomb_is_refused_with_little_memory(victim, name):
    data = BOMBS[name]()
    end = victim.end_offset("canary")
    before = victim.memory_bytes()
    with victim.connect() as stranger:
        code = code_of(stranger.call(produce("canary", data), PRODUCE))
    assert code in {*INVALID, ErrorCode.MESSAGE_TOO_LARGE}
    assert victim.memory_bytes() - before < 70 * MIB
    assert victim.end_offset("canary") == end


FALSE_BATCHES = {
    "S23_wrong_checksum": lambda: batch(b"x")[:-1] + b"\xff",
    "S23_magic_0": lambda: _patched(16, b"\x00"),
    "S23_magic_1": lambda: _patched(16, b"\x01"),
    "S23_magic_9": lambda: _patched(16, b"\x09"),
    "S23_last_offset_delta_too_large": lambda: with_field(LAST_OFFSET_DELTA_AT, ">i", 2**31 - 1),
    "S23_last_offset_delta_negative": lambda: with_field(LAST_OFFSET_DELTA_AT, ">i", -5),
    "S23_count_too_large": lambda: with_field(COUNT_AT, ">i", 2**31 - 1),
    "S23_count_negative": lambda: with_field(COUNT_AT, ">i", -1),
    "S23_count_zero": lambda: with_field(COUNT_AT, ">i", 0),
    "S23_record_longer_than_the_batch": lambda: with_payload(0, b"\xfe\x7f\0\0\0\0"),
    "S23_record_of_negative_length": lambda: with_payload(0, b"\x01\0\0\0\0\0"),
    "S23_control_batch_from_a_client": lambda: with_field(ATTRIBUTES_AT, ">h", 0x20),
    "S23_batch_that_ends_early": lambda: batch(b"x" * 100)[:-30],
    "S23_batch_length_negative": lambda: _patched(8, struct.pack(">i", -1)),
    "S23_two_batches": lambda: batch(b"x") + batch(b"y"),
    "S23_unknown_codec": lambda: with_field(ATTRIBUTES_AT, ">h", 7),
    "S23_nothing": lambda: b"",
    "S24_far_future": lambda: with_field(BASE_TIMESTAMP_AT, ">q", 2**62),
    "S24_end_of_time": lambda: with_field(BASE_TIMESTAMP_AT, ">q", 2**63 - 1),
    "S24_negative_time": lambda: with_field(BASE_TIMESTAMP_AT, ">q", -(2**63)),
}


def test_S24_a_false_maximum_timestamp_is_corrected(victim):
    with victim.connect() as stranger:
        lie = with_field(MAX_TIMESTAMP_AT, ">q", 2**63 - 1)
        produced = stranger.call(produce("canary", lie), PRODUCE)
        assert code_of(produced) == 0
        offset = produced.responses[0].partition_responses[0].base_offset
        records = bytes(partition_of(stranger.call(fetch("canary", offset=offset), FETCH)).records)
    assert struct.unpack_from(">q", records, MAX_TIMESTAMP_AT) == (1,)


def _patched(at, data):
    good = batch(b"x")
    return good[:at] + data + good[at + len(data) :]


@pytest.mark.parametrize("name", FALSE_BATCHES)
def test_S23_S24_a_false_batch_is_refused_and_nothing_is_appended(victim, name):
    end = victim.end_offset("canary")
    with victim.connect() as stranger:
        code = code_of(stranger.call(produce("canary", FALSE_BATCHES[name]()), PRODUCE))
    allowed = {*INVALID, ErrorCode.INVALID_TIMESTAMP, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
    allowed.add(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert code in allowed
    assert victim.end_offset("canary") == end
