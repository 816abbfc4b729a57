from __future__ import annotations

import contextlib
import gzip
import struct
import subprocess
import sys
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from cramjam import snappy
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    DECOMPRESSED_BATCH_BYTES_MAX,
    DECOMPRESSION_SLICE_BYTES,
    GZIP_MEMBERS_MAX,
    MIB,
    SNAPPY_BLOCKS_MAX,
    ZSTD_BLOCKS_MAX,
    ZSTD_FRAMES_MAX,
)
from tidemill.wire.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
)

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def refused(codec: int, data: bytes, **options) -> str:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, memoryview(data), **options)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    return caught.value.detail


def block(data: bytes) -> bytes:
    raw = bytes(snappy.compress_raw(data))
    return struct.pack(">i", len(raw)) + raw


# --- what must work ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=2000), repeat=st.sampled_from([1, 100]))
def test_what_is_compressed_decompresses(codec, data, repeat):
    data = data * repeat
    assert decompress(codec, memoryview(compress(codec, data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_data_of_several_slices_decompresses(codec):
    data = bytes(range(256)) * (3 * DECOMPRESSION_SLICE_BYTES // 256) + b"tail"
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_data_of_exactly_the_cap_decompresses(codec):
    data = bytes(3000)
    assert decompress(codec, compress(codec, data), 3000) == data


def test_no_codec_leaves_the_data_unchanged():
    assert compress(NONE, b"abc") == b"abc"


@pytest.mark.parametrize("codec", [NONE, 5, 6, 7, -1])
def test_an_unknown_codec_is_named(codec):
    with pytest.raises(KafkaError) as caught:
        decompress(codec, b"")
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_an_unknown_codec_cannot_be_written():
    with pytest.raises(KafkaError) as caught:
        compress(5, b"")
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_T62_snappy_is_read_raw():
    assert decompress(SNAPPY, bytes(snappy.compress_raw(b"hello" * 100))) == b"hello" * 100


def test_T62_snappy_is_read_in_xerial_blocks():
    assert decompress(SNAPPY, XERIAL_HEADER + block(b"one") + block(b"two")) == b"onetwo"


def test_T62_snappy_is_written_in_xerial_blocks_of_32_kib():
    packed = compress(SNAPPY, bytes(70_000))
    assert bytes(packed).startswith(XERIAL_HEADER)
    sizes = []
    position = len(XERIAL_HEADER)
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        raw = packed[position + 4 : position + 4 + size]
        sizes.append(snappy.decompress_raw_len(raw))
        position += 4 + size
    assert sizes == [32768, 32768, 4464]


def test_T62_gzip_may_have_several_members():
    assert decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


def test_zstd_may_have_several_frames():
    frames = compress(ZSTD, b"one") + compress(ZSTD, b"two")  # type: ignore[operator]
    assert decompress(ZSTD, frames) == b"onetwo"


def test_zstd_without_content_size_is_read():
    writer = zstandard.ZstdCompressor(write_content_size=False)
    assert decompress(ZSTD, writer.compress(b"x" * 5000)) == b"x" * 5000


def test_a_zstd_frame_larger_than_the_window_limit_is_read():
    data = bytes(range(256)) * (10 * MIB // 256)
    assert decompress(ZSTD, zstandard.ZstdCompressor().compress(data)) == data


def test_lz4_is_written_in_independent_blocks_as_java_reads_them():
    info = lz4.frame.get_frame_info(compress(LZ4, bytes(200_000)))
    assert (info["block_linked"], info["block_size"]) == (False, 64 * 1024)


# --- what must not ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_S18_one_byte_over_the_cap_is_refused(codec):
    assert "more than 2999 bytes" in refused(
        codec, bytes(compress(codec, bytes(3000))), bytes_max=2999
    )


@pytest.mark.parametrize("codec", CODECS)
def test_S18_a_bomb_costs_no_more_memory_than_the_cap(codec):
    bomb = bytes(compress(codec, bytes(40 * MIB)))
    decompress(codec, compress(codec, b"loads the library"))
    tracemalloc.start()
    try:
        refused(codec, bomb, bytes_max=4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB


def test_S18_the_cap_of_a_batch_is_the_default():
    bomb = bytes(compress(ZSTD, bytes(DECOMPRESSED_BATCH_BYTES_MAX + 1)))
    assert str(DECOMPRESSED_BATCH_BYTES_MAX) in refused(ZSTD, bomb)


def test_S18_several_gzip_members_share_the_cap():
    refused(GZIP, gzip.compress(bytes(600)) * 2, bytes_max=1000)


def test_S18_several_zstd_frames_share_the_cap():
    refused(ZSTD, bytes(compress(ZSTD, bytes(600))) * 2, bytes_max=1000)


def test_S19_a_bomb_outside_a_batch_is_capped_by_the_same_call():
    refused(GZIP, gzip.compress(bytes(10 * MIB)), bytes_max=MIB)


def test_S20_a_forged_zstd_content_size_is_refused():
    # Frame header: magic, 8-byte content size and single segment, then an empty last block.
    forged = bytes.fromhex("28b52ffde0") + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
    refused(ZSTD, forged)


def test_S20_a_zstd_window_beyond_the_limit_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    refused(ZSTD, writer.compress(b"x" * 1000) + writer.flush())


def test_S20_a_refused_zstd_frame_does_not_spoil_the_next():
    refused(ZSTD, b"\x28\xb5\x2f\xfd\xff\xff\xff\xff")
    refused(ZSTD, bytes(compress(ZSTD, bytes(5000))), bytes_max=10)
    assert decompress(ZSTD, compress(ZSTD, b"good")) == b"good"


@pytest.mark.parametrize("claim", ["ffffffff0f", "8080808008", "ffffff0f"])
def test_S21_a_forged_snappy_length_is_refused(claim):
    raw = bytes.fromhex(claim) + b"\x00"
    refused(SNAPPY, raw)
    refused(SNAPPY, XERIAL_HEADER + struct.pack(">i", len(raw)) + raw)


def test_S21_many_snappy_blocks_share_the_cap():
    refused(SNAPPY, XERIAL_HEADER + block(bytes(600)) * 2, bytes_max=1000)


def test_S21_a_snappy_block_that_holds_less_than_it_says_is_refused():
    refused(SNAPPY, b"\x0a" + b"\x00a")


def test_S22_an_lz4_frame_that_never_ends_is_refused():
    frame = lz4.frame.compress(bytes(3 * MIB), store_size=False)
    refused(LZ4, frame[:-4])  # without its end mark
    refused(LZ4, frame, bytes_max=MIB)


def test_S22_a_forged_lz4_content_size_is_refused_or_ignored():
    frame = bytearray(lz4.frame.compress(b"x" * 1000))
    frame[6:14] = (1 << 40).to_bytes(8, "little")
    refused(LZ4, bytes(frame))


def test_T62_too_many_gzip_members_are_refused():
    assert "members" in refused(GZIP, gzip.compress(b"") * (GZIP_MEMBERS_MAX + 1))


def test_T62_too_many_snappy_blocks_are_refused():
    assert "blocks" in refused(SNAPPY, XERIAL_HEADER + block(b"a") * (SNAPPY_BLOCKS_MAX + 1))


def test_S20_too_many_zstd_frames_are_refused():
    assert "too many" in refused(ZSTD, bytes(compress(ZSTD, b"")) * (ZSTD_FRAMES_MAX + 1))


def test_S20_too_many_zstd_blocks_are_refused():
    header = bytes(compress(ZSTD, b""))[:-3]
    refused(ZSTD, header + bytes(3) * (ZSTD_BLOCKS_MAX + 1) + b"\x01\x00\x00")


def test_zstd_frames_with_checksum_and_run_blocks_are_read():
    writer = zstandard.ZstdCompressor(write_checksum=True)
    data = bytes(300_000) + b"tail"
    assert decompress(ZSTD, writer.compress(data)) == data
    assert "cut" in refused(ZSTD, writer.compress(data)[:-1])


@pytest.mark.parametrize(
    "tail",
    [b"\x00", b"\x00\x00\x00\x00", struct.pack(">i", -1) + b"x", struct.pack(">i", 50) + b"x"],
)
def test_T62_a_wrong_xerial_block_length_is_refused(tail):
    refused(SNAPPY, XERIAL_HEADER + tail)


def test_T62_a_cut_xerial_header_is_refused():
    refused(SNAPPY, XERIAL_HEADER[:10])


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_after_the_data_are_refused(codec):
    refused(codec, bytes(compress(codec, b"data")) + b"\x99garbage")


@pytest.mark.parametrize("codec", CODECS)
def test_cut_data_is_refused(codec):
    packed = bytes(compress(codec, b"0123456789" * 10))
    for size in range(1, len(packed)):
        if codec == SNAPPY and size == len(XERIAL_HEADER):
            continue  # a whole xerial stream without blocks
        refused(codec, packed[:size])


def test_a_wrong_gzip_checksum_is_refused():
    packed = bytearray(gzip.compress(b"data"))
    packed[-8] ^= 1
    refused(GZIP, bytes(packed))


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(min_size=1, max_size=100))
def test_S55_any_bytes_are_refused_or_decompress(codec, data):
    prefix = b"" if codec == SNAPPY else bytes(compress(codec, b""))[:4]
    for candidate in (data, prefix + data):
        with contextlib.suppress(KafkaError):
            decompress(codec, candidate, 10_000)


BOMBS_UNDER_A_MEMORY_LIMIT = """
import resource, sys
from tidemill.core.errors import KafkaError
from tidemill.wire import compression
bombs = [bytes.fromhex(line) for line in sys.stdin.read().split()]
for codec in (1, 2, 3, 4):
    compression.decompress(codec, compression.compress(codec, b"loads the library"))
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 160 * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for codec, bomb in zip((1, 2, 3, 4, 2, 4), bombs, strict=True):
    try:
        compression.decompress(codec, bomb)
    except KafkaError:
        continue
    sys.exit(f"codec {codec} let a bomb pass")
"""


@pytest.mark.slow
def test_S18_bombs_are_refused_under_a_memory_limit_that_their_content_exceeds():
    writer = zlib.compressobj(9, zlib.DEFLATED, 31)
    content = bytes(256 * MIB)
    bombs = [
        writer.compress(content) + writer.flush(),
        bytes(snappy.compress_raw(content)),
        lz4.frame.compress(content),
        zstandard.ZstdCompressor().compress(content),
        bytes.fromhex("ffffffff0f00"),
        bytes.fromhex("28b52ffde0") + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00",
    ]
    done = subprocess.run(
        [sys.executable, "-c", BOMBS_UNDER_A_MEMORY_LIMIT],
        input="\n".join(bomb.hex() for bomb in bombs),
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_codec_library_is_imported_before_its_codec_is_used():
    code = (
        "import sys, tidemill.wire.records; "
        "sys.exit(any(name in sys.modules for name in ('cramjam', 'lz4', 'zstandard')))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_every_codec_has_a_name():
    assert sorted(CODEC_NAMES) == [NONE, GZIP, SNAPPY, LZ4, ZSTD]
