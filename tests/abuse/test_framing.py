"""Bytes that are not a Kafka request (S1 to S8), on a live socket."""

from __future__ import annotations

import struct

import pytest

from tests.abuse.requests import (
    CREATE_TOPICS,
    METADATA,
    PRODUCE,
    batch,
    code_of,
    create,
    metadata,
    produce,
)
from tests.abuse.stranger import wait_until
from tests.abuse.victim import MIB, REQUEST_BYTES_MAX, REQUEST_MEMORY_BYTES
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import KIB

CONNECTION_BYTES = 16 * KIB
"""What a connection costs beside its share of the pools, at most."""
HEADER_V1 = struct.pack(">hhih", 3, 1, 7, -1)
METADATA_V1 = HEADER_V1


def framed(body):
    return struct.pack(">i", len(body)) + body


# --- S1, S2: sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, "TLS"),
        (struct.pack(">i", -1), "frame of -1 bytes"),
        (struct.pack(">i", 0), "frame of 0 bytes"),
        (struct.pack(">i", 2**31 - 1), "frame of 2147483647 bytes"),
        (struct.pack(">i", REQUEST_BYTES_MAX + 1), f"frame of {REQUEST_BYTES_MAX + 1} bytes"),
    ],
    ids=["http", "tls", "negative", "zero", "largest", "one_too_many"],
)
def test_S1_T10_bytes_that_cannot_begin_a_request_close_the_connection(victim, start, hint):
    peer = victim.new_peer()
    for _ in range(3):
        with victim.connect(peer) as stranger:
            stranger.send(start)
            assert stranger.is_closed()
    (line,) = victim.lines_about(peer)
    assert hint in line


def test_S2_large_lengths_with_few_bytes_on_many_connections_take_bounded_memory(victim):
    before = victim.memory_bytes()
    strangers = [victim.connect() for _ in range(200)]
    try:
        for stranger in strangers:
            stranger.send(struct.pack(">i", REQUEST_BYTES_MAX))
        for stranger in strangers:
            stranger.try_send(b"x" * 400_000)
        for stranger in strangers[:40]:  # one of them may exceed the limit, to make progress
            stranger.try_send(b"x" * (REQUEST_BYTES_MAX - 400_001))
        peak = victim.peak_memory_bytes()
        assert peak - before < REQUEST_MEMORY_BYTES + 200 * CONNECTION_BYTES
        victim.check_canary()
    finally:
        for stranger in strangers:
            stranger.close()


def test_S2_reading_continues_when_memory_is_given_back(victim):
    strangers = [victim.connect() for _ in range(40)]
    with victim.connect() as honest:
        for stranger in strangers:
            stranger.send(struct.pack(">i", REQUEST_BYTES_MAX))
            stranger.try_send(b"x" * MIB)
        large = honest.frame(produce("canary", batch(b"v" * 900_000)), PRODUCE)
        honest.send(large)
        for stranger in strangers:
            stranger.close()
        assert code_of(honest.answer(type(produce("", b"")), PRODUCE)) == 0


# --- S3 to S7: bodies ----------------------------------------------------------------------------


def flexible(api_key, version, body, tags=b"\0"):
    return struct.pack(">hhih", api_key, version, 7, -1) + tags + body


BAD_BODIES = {
    "S3_array_longer_than_the_message": METADATA_V1 + struct.pack(">i", 2**31 - 1),
    "S3_array_of_negative_length": METADATA_V1 + struct.pack(">i", -2),
    "S3_string_longer_than_the_message": METADATA_V1 + struct.pack(">ih", 1, 500) + b"abc",
    "S3_client_id_longer_than_the_message": struct.pack(">hhih", 3, 1, 7, 9999) + b"abc",
    "S3_records_longer_than_the_message": struct.pack(">hhihhhi", 0, 3, 7, -1, -1, 1, 5000)
    + struct.pack(">ihsiii", 1, 1, b"t", 1, 0, 2**31 - 1),
    "S4_a_million_empty_names": METADATA_V1 + struct.pack(">i", 500_000) + b"\0\0" * 500_000,
    "S4_a_million_partitions": flexible(2, 6, struct.pack(">ib", -1, 0))
    + b"\x02\x02t"
    + b"\xc1\x84\x3d"
    + b"\0" * 17_000_00,
    "S5_65_tags_in_a_header": flexible(18, 3, b"\x02a\x02b\0", b"\x41" + bytes(200)),
    "S5_many_tags_in_a_header": flexible(
        18, 3, b"\x02a\x02b\0", b"\xff\xff\x3f" + b"\x01\0" * 1_000_000
    ),
    "S5_a_tag_longer_than_the_message": flexible(18, 3, b"", b"\x01\x05\xff\xff\xff\xff\x0f"),
    "S6_null_where_none_is_allowed": flexible(18, 3, b"\0\x02b\0"),
    "S6_null_name_in_a_classic_string": METADATA_V1 + struct.pack(">ih", 1, -1),
    "S6_varint_of_six_bytes": flexible(18, 3, b"\x82\x80\x80\x80\x80\x01a\x02b\0"),
    "S6_varint_with_padding": flexible(18, 3, b"\x82\0a\x02b\0"),
    "S7_bytes_after_the_end": METADATA_V1 + struct.pack(">i", 0) + b"more",
    "S7_the_same_tag_twice": flexible(18, 3, b"\x02a\x02b\0", b"\x02\x01\0\x01\0"),
    "S7_a_body_of_another_version": flexible(18, 3, b""),
    "S7_T7_unknown_api": struct.pack(">hhih", 9999, 0, 7, -1),
    "S7_T7_negative_api": struct.pack(">hhih", -5, 0, 7, -1),
    "S7_T7_unknown_version": struct.pack(">hhih", 3, 200, 7, -1),
    "S7_T7_a_version_that_is_no_longer_spoken": struct.pack(">hhih", 0, 2, 7, -1),
    "S7_an_api_that_is_not_served": struct.pack(">hhih", 36, 0, 7, -1),
    "S8_client_id_that_is_no_text": struct.pack(">hhih", 3, 1, 7, 4) + b"\xff\xfe\xfd\xfc",
    "S8_name_that_is_no_text": METADATA_V1 + struct.pack(">ih", 1, 2) + b"\xc3\x28",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_S3_S4_S5_S6_S7_S8_a_body_that_breaks_the_rules_closes_its_connection(victim, body):
    peer = victim.new_peer()
    with victim.connect(peer) as stranger:
        stranger.send(framed(body))
        assert stranger.is_closed()
    wait_until(lambda: victim.lines_about(peer), "the closing is logged")
    assert len(victim.lines_about(peer)) == 1


def test_S7_T2_ApiVersions_in_an_unknown_version_is_answered_in_version_0(victim):
    with victim.connect() as stranger:
        stranger.send(framed(struct.pack(">hhih", 18, 77, 7, -1)))
        assert stranger.read_frame() == struct.pack(">ihihhh", 7, 35, 1, 18, 0, 4)
        stranger.send(framed(struct.pack(">hhih", 18, 0, 8, -1)))
        assert struct.unpack_from(">ih", stranger.read_frame()) == (8, 0)


# --- S8: names -----------------------------------------------------------------------------------

BAD_NAMES = ["..", ".", "../../etc/passwd", "a/b", "a\0b", "a\nb", "\x1b[31m", "é", "n" * 250, ""]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_S8_bad_topic_names_are_refused_everywhere(victim, name):
    directories = sorted(path.name for path in victim.process.data_dir.rglob("*"))
    with victim.connect() as stranger:
        (created,) = stranger.call(create(name), CREATE_TOPICS).topics
        assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        produced = stranger.call(produce(name, batch(b"x")), PRODUCE)
        assert code_of(produced) == ErrorCode.INVALID_TOPIC_EXCEPTION
        (described,) = stranger.call(metadata(name), METADATA).topics
        assert described.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert sorted(path.name for path in victim.process.data_dir.rglob("*")) == directories


def test_S8_a_name_of_32_KiB_is_refused_and_not_kept(victim):
    with victim.connect() as stranger:
        (described,) = stranger.call(metadata("n" * 32_000), METADATA).topics
        assert described.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
