"""The four codecs of a record batch, each under a cap that cannot be exceeded (S18-S22, T62).

Theory of operation. A compressed batch comes from an untrusted client: it may claim to hold a
terabyte, or hold one. Nothing here allocates what a header claims. gzip, lz4 and zstd are
decompressed in slices of `DECOMPRESSION_SLICE_BYTES` until the stream ends or the cap is exceeded.
snappy has no streaming form: its claimed length is compared with the cap and with what its ratio of
64:3 can yield before the output is allocated. Costs per block or member rather than per byte (empty
gzip members, tiny snappy blocks) have bounds of their own, and a caller that must not take long
refuses blocks that are small on average. Damage and excess are both
INVALID_RECORD: the batch's checksum was right, so sending it again cannot help.

Each library is imported when its codec is first used. ADR 0002 explains the choice, with numbers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    DECOMPRESSED_BATCH_BYTES_MAX,
    DECOMPRESSION_SLICE_BYTES,
    GZIP_MEMBERS_MAX,
    SNAPPY_BLOCKS_MAX,
    ZSTD_BLOCKS_MAX,
    ZSTD_FRAMES_MAX,
    ZSTD_WINDOW_BYTES_MAX,
)

if TYPE_CHECKING:
    from zstandard import ZstdDecompressor

__all__ = [
    "CODEC_IDS",
    "CODEC_NAMES",
    "GZIP",
    "LZ4",
    "NONE",
    "SNAPPY",
    "ZSTD",
    "DecompressedTooLarge",
    "compress",
    "decompress",
    "is_known",
]

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
CODEC_IDS = {name: codec for codec, name in CODEC_NAMES.items()} | {"uncompressed": NONE}
"""Codec by the word in `compression.type`."""

_GZIP_WINDOW_BITS = 31  # zlib: 15 bits of window, and a gzip header
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")  # magic, version, lowest version that can read it
_XERIAL_VERSION = 1
_XERIAL_BLOCK_BYTES = 32 * 1024  # what snappy-java writes
_BLOCK_LENGTH = struct.Struct(">i")
_SNAPPY_RATIO_MAX = 22
"""Snappy's best element copies 64 bytes for 3: no block yields more than this times its input."""
_BLOCKS_FREE = 16
"""So many blocks cost nothing to speak of, however small."""
_IDLE_DECOMPRESSORS_MAX = 4
_ZSTD_LEVEL = 3
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_BYTES_MAX = 18


class DecompressedTooLarge(KafkaError):
    """The data holds more bytes, or smaller blocks, than the caller allows."""


def is_known(codec: int) -> bool:
    """Whether these attribute bits name a codec."""
    return codec in CODEC_NAMES


def decompress(
    codec: int,
    data: bytes | memoryview,
    bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
    block_bytes_min: int = 0,
) -> bytes | bytearray:
    """`data` decompressed; KafkaError if it is damaged, DecompressedTooLarge beyond `bytes_max`.

    The latter also if there are more blocks than a few, and they hold less than `block_bytes_min`
    on average: each costs microseconds (snappy, zstd), however little it holds.
    """
    opener = _DECOMPRESS.get(codec)
    if opener is None:
        raise _unknown(codec)
    return opener(data, bytes_max, block_bytes_min)


def _blocks_max(most: int, size: int, block_bytes_min: int) -> int:
    """How many blocks may hold `size` bytes."""
    return min(most, _BLOCKS_FREE + size // block_bytes_min) if block_bytes_min else most


def compress(codec: int, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """`data` as the Java client would compress it."""
    if codec == NONE:
        return data
    writer = _COMPRESS.get(codec)
    if writer is None:
        raise _unknown(codec)
    return writer(data)


# --- gzip ----------------------------------------------------------------------------------------


def _open_gzip(data: bytes | memoryview, bytes_max: int, _block_bytes_min: int) -> bytes:
    """All members in turn: RFC 1952 allows several, and Java reads them (T62)."""
    slices: list[bytes] = []
    left = bytes_max
    rest: bytes | memoryview = data
    for _ in range(GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        while not member.eof:
            try:
                piece = member.decompress(rest, min(left + 1, DECOMPRESSION_SLICE_BYTES))
            except zlib.error as err:
                raise _damaged("gzip", err) from None
            left -= len(piece)
            if left < 0:
                raise _too_large("gzip", bytes_max)
            rest = member.unconsumed_tail
            if not piece and not rest and not member.eof:
                raise _damaged("gzip", "the stream is cut")
            slices.append(piece)
        rest = member.unused_data
        if not rest:
            return slices[0] if len(slices) == 1 else b"".join(slices)
    raise _damaged("gzip", f"more than {GZIP_MEMBERS_MAX} members")


def _write_gzip(data: bytes | bytearray | memoryview) -> bytes:
    writer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return writer.compress(data) + writer.flush()


# --- snappy --------------------------------------------------------------------------------------


def _open_snappy(data: bytes | memoryview, bytes_max: int, block_bytes_min: int) -> bytearray:
    if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
        blocks_max = _blocks_max(SNAPPY_BLOCKS_MAX, bytes_max, block_bytes_min)
        blocks = _xerial_blocks(memoryview(data), blocks_max)
    else:
        blocks = [memoryview(data)]
    sizes: list[int] = []
    left = bytes_max
    for block in blocks:
        size = _snappy_size(block)
        left -= size
        if left < 0:
            raise _too_large("snappy", bytes_max)
        sizes.append(size)
    blocks_max = _blocks_max(SNAPPY_BLOCKS_MAX, bytes_max - left, block_bytes_min)
    if len(blocks) > blocks_max:
        raise _too_many_blocks("snappy", blocks_max)
    return _snappy_blocks(blocks, sizes)


def _xerial_blocks(data: memoryview, blocks_max: int) -> list[memoryview]:
    """The raw blocks of snappy-java's framing: a 32-bit length before each."""
    blocks: list[memoryview] = []
    position = _XERIAL_HEADER.size
    end = len(data)
    if end < position:
        raise _damaged("snappy", "the header is cut")
    while position < end:
        if end - position < _BLOCK_LENGTH.size:
            raise _damaged("snappy", "a block length is cut")
        size = _BLOCK_LENGTH.unpack_from(data, position)[0]
        position += _BLOCK_LENGTH.size
        if not 0 < size <= end - position:
            raise _damaged("snappy", "a block goes beyond the batch")
        if len(blocks) == blocks_max:
            raise _too_many_blocks("snappy", blocks_max)
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    """The block's claimed size, if plausible: the decoder would allocate it unchecked (S21)."""
    from cramjam import DecompressionError, snappy

    try:
        size: int = snappy.decompress_raw_len(block)
    except DecompressionError as err:
        raise _damaged("snappy", err) from None
    if size > _SNAPPY_RATIO_MAX * len(block):
        raise _damaged("snappy", f"{len(block)} bytes cannot hold {size}")
    return size


def _snappy_blocks(blocks: list[memoryview], sizes: list[int]) -> bytearray:
    from cramjam import DecompressionError, snappy

    out = bytearray(sum(sizes))
    view = memoryview(out)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            written: int = snappy.decompress_raw_into(block, view[position : position + size])
        except DecompressionError as err:
            raise _damaged("snappy", err) from None
        if written != size:
            raise _damaged("snappy", "a block is shorter than it says")
        position += size
    return out


def _write_snappy(data: bytes | bytearray | memoryview) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


# --- lz4 -----------------------------------------------------------------------------------------


def _open_lz4(data: bytes | memoryview, bytes_max: int, _block_bytes_min: int) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    frame = LZ4FrameDecompressor()
    slices: list[bytes] = []
    left = bytes_max
    feed: bytes | memoryview = data
    while not frame.eof:
        try:
            piece: bytes = frame.decompress(feed, min(left + 1, DECOMPRESSION_SLICE_BYTES))
        except RuntimeError as err:
            raise _damaged("lz4", err) from None
        left -= len(piece)
        if left < 0:
            raise _too_large("lz4", bytes_max)
        if not piece and not frame.eof:
            raise _damaged("lz4", "the frame is cut")
        slices.append(piece)
        feed = b""
    if frame.unused_data:
        raise _damaged("lz4", "bytes after the frame")
    return slices[0] if len(slices) == 1 else b"".join(slices)


def _write_lz4(data: bytes | bytearray | memoryview) -> bytes:
    """Independent blocks of 64 KiB: the only kind of frame that Java's reader accepts."""
    from lz4 import frame

    packed: bytes = frame.compress(
        data, block_size=frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return packed


# --- zstd ----------------------------------------------------------------------------------------

# A decompressor takes 15 us to make and must not be shared by two threads: idle ones are kept here.
_idle_decompressors: list[ZstdDecompressor] = []


def _open_zstd(data: bytes | memoryview, bytes_max: int, block_bytes_min: int) -> bytes:
    from zstandard import ZstdDecompressor, ZstdError

    try:
        context = _idle_decompressors.pop()
    except IndexError:
        context = ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        return _zstd_slices(context, data, bytes_max, block_bytes_min)
    except ZstdError as err:
        raise _damaged("zstd", err) from None
    finally:
        if len(_idle_decompressors) < _IDLE_DECOMPRESSORS_MAX:
            _idle_decompressors.append(context)


def _check_zstd_frames(data: bytes | memoryview, blocks_max: int) -> int:
    """Check by the lengths of its blocks that every frame is complete: the reader does not.

    Java's reader fails on a cut frame, so storing one would stop its consumers. Returns the number
    of blocks.
    """
    position = 0
    frames = 0
    blocks = 0
    while position < len(data) or not frames:
        position, count = _zstd_frame_end(data, position, blocks_max)
        frames += 1
        blocks += count
        if blocks > blocks_max:
            raise _too_many_blocks("zstd", blocks_max)
        if position > len(data):
            raise _damaged("zstd", "the frame is cut")
        if frames > ZSTD_FRAMES_MAX:
            raise _damaged("zstd", "too many frames")
    return blocks


def _zstd_frame_end(data: bytes | memoryview, start: int, blocks_max: int) -> tuple[int, int]:
    """Where the frame at `start` ends (beyond `data` if cut), and its number of blocks (RFC 8878).

    A block header has 3 bytes, least significant first: last block (1 bit), kind (2), size (21).
    """
    from zstandard import frame_header_size

    if data[start : start + len(_ZSTD_MAGIC)] != _ZSTD_MAGIC:
        raise _damaged("zstd", "not a frame")
    position = start + frame_header_size(data[start : start + _ZSTD_HEADER_BYTES_MAX])
    blocks = 0
    word = 0
    while not word & 1:
        if position + 3 > len(data) or blocks > blocks_max:
            return len(data) + 1, blocks
        word = int.from_bytes(data[position : position + 3], "little")
        is_run = word >> 1 & 3 == 1  # one byte, `size` times
        position += 3 + (1 if is_run else word >> 3)
        blocks += 1
    has_checksum = data[start + len(_ZSTD_MAGIC)] & 4
    return position + (4 if has_checksum else 0), blocks


def _zstd_slices(
    context: ZstdDecompressor, data: bytes | memoryview, bytes_max: int, block_bytes_min: int
) -> bytes:
    """Uses a reader, not `decompress`, which allocates what the frame claims to hold (S20)."""
    blocks = _check_zstd_frames(data, _blocks_max(ZSTD_BLOCKS_MAX, bytes_max, block_bytes_min))
    reader = context.stream_reader(data, read_across_frames=True)
    slices: list[bytes] = []
    left = bytes_max
    while True:
        piece = reader.read(min(left + 1, DECOMPRESSION_SLICE_BYTES))
        if not piece:
            break
        left -= len(piece)
        if left < 0:
            raise _too_large("zstd", bytes_max)
        slices.append(piece)
    blocks_max = _blocks_max(ZSTD_BLOCKS_MAX, bytes_max - left, block_bytes_min)
    if blocks > blocks_max:
        raise _too_many_blocks("zstd", blocks_max)
    return slices[0] if len(slices) == 1 else b"".join(slices)


def _write_zstd(data: bytes | bytearray | memoryview) -> bytes:
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


# --- errors and tables ---------------------------------------------------------------------------


def _damaged(name: str, why: object) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"damaged {name} data: {why}")


def _too_large(name: str, bytes_max: int) -> DecompressedTooLarge:
    detail = f"{name} data holds more than {bytes_max} bytes"
    return DecompressedTooLarge(ErrorCode.INVALID_RECORD, detail)


def _too_many_blocks(name: str, blocks_max: int) -> DecompressedTooLarge:
    detail = f"damaged {name} data: more than {blocks_max} blocks"
    return DecompressedTooLarge(ErrorCode.INVALID_RECORD, detail)


def _unknown(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has the number {codec}")


_DECOMPRESS: dict[int, Callable[[bytes | memoryview, int, int], bytes | bytearray]] = {
    GZIP: _open_gzip,
    SNAPPY: _open_snappy,
    LZ4: _open_lz4,
    ZSTD: _open_zstd,
}
_COMPRESS: dict[int, Callable[[bytes | bytearray | memoryview], bytes]] = {
    GZIP: _write_gzip,
    SNAPPY: _write_snappy,
    LZ4: _write_lz4,
    ZSTD: _write_zstd,
}
