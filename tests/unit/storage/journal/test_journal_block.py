"""Blocks of the journal: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import zlib
from uuid import UUID

import pytest

from tidemill.core.ids import TopicId
from tidemill.storage.files.disk import Buffer
from tidemill.storage.files.gathered_write import CHECKSUM_BYTES
from tidemill.storage.journal.journal_block import (
    BlockHead,
    BlockPlace,
    encode_entry,
    encode_head,
    encode_log_name,
    iter_entries,
    next_sector,
    try_read_head,
)

DIRECTORY = UUID(int=7)
TOPIC = TopicId(UUID(int=9))
PLACE = BlockPlace(DIRECTORY, lap=3, number=5)


def block(*contents: bytes, place: BlockPlace = PLACE) -> bytes:
    name = encode_log_name("orders-1", TOPIC)
    entries = [encode_entry(name, 100 + at, 40, len(data)) for at, data in enumerate(contents)]
    body = encode_head(place, entries, sum(map(len, contents))) + b"".join(contents)
    return zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") + body


def head_at(data: Buffer, position: int) -> BlockHead | None:
    return try_read_head(data, position, DIRECTORY, PLACE.lap)


def test_a_block_gives_back_its_place_and_its_entries():
    data = b"x" * 8 + block(b"one", b"second")
    assert head_at(data, 8) == BlockHead(PLACE.number, len(data) - 8)
    entries = list(iter_entries(data, 8))
    assert [bytes(entry.data) for entry in entries] == [b"one", b"second"]
    assert [entry.base_offset for entry in entries] == [100, 101]
    assert {(entry.directory, entry.topic_id, entry.position) for entry in entries} == {
        ("orders-1", TOPIC, 40)
    }


@pytest.mark.parametrize("position", range(0, len(block(b"abc")), 7))
def test_I17_a_block_with_a_changed_byte_is_none(position):
    data = bytearray(block(b"abc"))
    data[position] ^= 1
    assert head_at(data, 0) is None


@pytest.mark.parametrize("cut", [0, 3, 4, 40, -1])
def test_a_block_that_is_cut_off_is_none(cut):
    assert head_at(block(b"abc")[:cut], 0) is None


def test_zeros_are_no_block():
    assert head_at(bytes(4096), 512) is None


@pytest.mark.parametrize(("lie", "count"), [(-1, 2), (1, 2), (0, 9)])
def test_entries_that_do_not_fill_their_block_are_refused(lie, count):
    name = encode_log_name("orders-1", TOPIC)
    entries = [encode_entry(name, 0, 0, 3 + lie), encode_entry(name, 0, 0, 3)]
    body = bytearray(encode_head(PLACE, entries, 6) + b"abcdef")
    body[36:40] = count.to_bytes(4, "big")
    data = zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") + body
    assert head_at(data, 0) is not None
    with pytest.raises(ValueError, match="block"):
        list(iter_entries(data, 0))


@pytest.mark.parametrize(("position", "expected"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_blocks_begin_at_sectors(position, expected):
    assert next_sector(position) == expected


@pytest.mark.parametrize(("directory", "lap"), [(DIRECTORY, 2), (DIRECTORY, 4), (UUID(int=8), 3)])
def test_a_block_of_another_lap_or_directory_is_none(directory, lap):
    assert try_read_head(block(b"abc"), 0, directory, lap) is None
