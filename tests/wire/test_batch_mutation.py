"""Damage, byte by byte: a batch is either refused or decodes (S23, S55)."""

from __future__ import annotations

import random

import pytest

from tests.support.flavours import FLAVOURS, load
from tidemill.core.errors import KafkaError
from tidemill.wire import compression, produced_batch, records
from tidemill.wire.batch import HEADER_BYTES, write_checksum
from tidemill.wire.produced_batch import BatchPolicy, validate_produced
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS = 1_700_000_000_000
POLICY = BatchPolicy()


@pytest.fixture(params=FLAVOURS)
def flavour(request, monkeypatch):
    module = load(request.param, "record_walk")
    for name in ("walk", "keyless", "timestamps_outside"):
        monkeypatch.setattr(produced_batch, name, getattr(module, name))
    monkeypatch.setattr(records, "record_walk", module)
    return request.param


def original(codec: int) -> bytearray:
    return build_batch(
        [
            Record(b"value", b"key", timestamp=NOW_MS, headers=[("h", b"x"), ("", None)]),
            Record(None, None, timestamp=NOW_MS - 5),
            Record(b"0123456789" * 8, b"", timestamp=NOW_MS + 5),
        ],
        codec=codec,
    )


def accepts(data: bytearray) -> bool:
    """Whether the batch passes; one that passes must also open and hold its record count."""
    try:
        header = validate_produced(memoryview(data), POLICY, NOW_MS)
    except KafkaError:
        return False
    assert len(list(iter_records(data))) == header.record_count
    return True


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_S23_every_truncation_is_refused(flavour, codec):
    data = original(codec)
    assert not any(accepts(data[:size]) for size in range(len(data)))


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_S23_every_truncation_with_corrected_length_and_checksum_is_refused(flavour, codec):
    data = original(codec)
    for size in range(HEADER_BYTES, len(data)):
        cut = data[:size]
        cut[8:12] = (size - 12).to_bytes(4, "big")
        write_checksum(cut)
        assert not accepts(cut), size


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_S23_every_changed_byte_under_the_checksum_is_refused(flavour, codec):
    data = original(codec)
    for position in range(16, len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x41
        assert not accepts(changed), position


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_S55_every_changed_byte_with_corrected_checksum_is_refused_or_decodes(flavour, codec):
    data = original(codec)
    for position in range(12, len(data)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= flip
            write_checksum(changed)
            accepts(changed)


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_S55_many_random_changes_are_refused_or_decode(flavour, codec):
    chance = random.Random(codec)
    data = original(codec)
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            changed[chance.randrange(HEADER_BYTES, len(changed))] = chance.randrange(256)
        write_checksum(changed)
        accepts(changed)
