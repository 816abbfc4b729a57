"""Request and response headers, and the frames made with them."""

from __future__ import annotations

import random

import pytest

from tests.wire.messages import Case, decode, sample
from tidemill.core.errors import ProtocolViolation
from tidemill.wire.api_keys import API_SPECS, ApiKey, load
from tidemill.wire.generated.api_versions import ApiVersionsRequest
from tidemill.wire.generated.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.headers import (
    UnsupportedVersion,
    encode_request,
    encode_response,
    parse_request_header,
    parse_response_header,
)

METADATA = API_SPECS[ApiKey.METADATA]


def head(key: int, version: int, correlation_id: int = 7, rest: str = "ffff") -> bytes:
    fixed = (
        key.to_bytes(2, "big", signed=True)
        + version.to_bytes(2, "big", signed=True)
        + correlation_id.to_bytes(4, "big", signed=True)
    )
    return fixed + bytes.fromhex(rest)


def test_header_1_ends_with_the_client_id():
    header = parse_request_header(head(3, 8, rest="0003 616263") + b"body")
    assert (header.api_key, header.api_version) == (ApiKey.METADATA, 8)
    assert (header.correlation_id, header.client_id) == (7, "abc")
    assert header.body_offset == 13


def test_header_2_has_tags_which_are_skipped():
    header = parse_request_header(head(3, 9, rest="0001 61 02 05 01ff 06 00") + b"body")
    assert header.client_id == "a"
    assert header.body_offset == 17


def test_the_client_id_may_be_null_or_empty():
    assert parse_request_header(head(3, 8)).client_id is None
    assert parse_request_header(head(3, 8, rest="0000")).client_id == ""


def test_a_correlation_id_may_be_negative():
    assert parse_request_header(head(3, 8, correlation_id=-5)).correlation_id == -5


@pytest.mark.parametrize("cut", range(15))
def test_a_header_cut_anywhere_is_a_violation(cut):
    whole = head(3, 9, rest="0003 616263 01 05 00")
    parse_request_header(whole)
    with pytest.raises(ProtocolViolation):
        parse_request_header(whole[:cut])


@pytest.mark.parametrize("rest", ["fffe", "8000", "0005 61", "0001 ff"])
def test_S8_a_bad_client_id_is_a_violation(rest):
    with pytest.raises(ProtocolViolation):
        parse_request_header(head(3, 8, rest=rest))


def test_S5_a_header_of_twenty_million_tags_is_refused_at_its_count():
    frame = head(18, 3, rest="ffff 80dac409") + bytes(1000)
    with pytest.raises(ProtocolViolation, match="20000000 tagged fields"):
        parse_request_header(frame)


@pytest.mark.parametrize(
    ("key", "version"), [(18, 5), (18, -1), (3, 14), (1, 3), (4, 0), (999, 0), (-1, 0)]
)
def test_T7_an_unknown_key_or_version_is_named_with_its_correlation_id(key, version):
    with pytest.raises(UnsupportedVersion) as caught:
        parse_request_header(head(key, version, correlation_id=42))
    error = caught.value
    assert (error.api_key, error.api_version, error.correlation_id) == (key, version, 42)
    assert isinstance(error, ProtocolViolation)


def test_T2_an_api_versions_request_from_the_future_is_recognised_by_its_first_bytes():
    with pytest.raises(UnsupportedVersion) as caught:
        parse_request_header(head(18, 99, rest="ffff") + b"\xff" * 40)
    assert caught.value.api_key == ApiKey.API_VERSIONS


@pytest.mark.parametrize("version", [0, 1, 2])
def test_T3_produce_below_3_is_advertised_but_not_read(version):
    spec = API_SPECS[ApiKey.PRODUCE]
    assert spec.advertised_min <= version < spec.version_min
    with pytest.raises(UnsupportedVersion):
        parse_request_header(head(0, version))


def test_requests_of_every_api_are_read_back_from_their_frames():
    for key in ApiKey:
        spec = API_SPECS[key]
        for version in (spec.version_min, spec.version_max):
            request = sample(Case(f"{spec.name}Request", version), random.Random(version))
            frame = b"".join(
                encode_request(
                    request, spec=spec, version=version, correlation_id=3, client_id="me"
                )
            )
            header = parse_request_header(frame[4:])
            body = frame[4 + header.body_offset :]
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            assert (header.api_key, header.api_version) == (key, version)
            assert decode(load(key)[0], body, version) == request


@pytest.mark.parametrize("version", [8, 9])
def test_response_headers_are_read_back(version):
    response = MetadataResponse(cluster_id="c")
    frame = b"".join(encode_response(response, spec=METADATA, version=version, correlation_id=-3))[
        4:
    ]
    correlation_id, offset = parse_response_header(frame, spec=METADATA, version=version)
    assert correlation_id == -3
    assert decode(MetadataResponse, frame[offset:], version) == response


def test_T14_a_null_topic_list_is_distinguished_from_an_empty_one():
    assert MetadataRequest().topics == []
    assert MetadataRequest(topics=None).topics is None


def test_a_field_that_an_old_version_lacks_is_dropped_or_refused():
    spec = API_SPECS[ApiKey.API_VERSIONS]
    named = ApiVersionsRequest(client_software_name="x")  # ignorable
    encode_request(named, spec=spec, version=0, correlation_id=0, client_id=None)

    strict = MetadataRequest(allow_auto_topic_creation=False)  # would change the meaning
    with pytest.raises(ValueError, match="allow_auto_topic_creation"):
        encode_request(strict, spec=METADATA, version=3, correlation_id=0, client_id=None)


def test_null_is_not_written_where_the_version_has_none():
    with pytest.raises(ValueError, match="null"):
        encode_request(
            MetadataRequest(topics=None), spec=METADATA, version=0, correlation_id=0, client_id=None
        )
