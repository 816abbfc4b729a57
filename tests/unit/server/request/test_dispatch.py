"""Dispatch finds the handler of a request and turns a refusal into an answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemill.core.errors import ErrorCode, KafkaError, ProtocolViolation
from tidemill.core.telemetry import Telemetry
from tidemill.server.request.context import RequestContext
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.handler import Handler, refuse_with_error_code
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.headers import UnsupportedVersion, encode_request, parse_request_header

SERVICES = SimpleNamespace(telemetry=Telemetry())


def dispatcher(handle):
    return Dispatcher(
        (
            Handler(
                api_key=ApiKey.HEARTBEAT,
                versions=(0, 2),
                handle=handle,
                refuse=refuse_with_error_code(HeartbeatResponse),
            ),
        )
    )


def frame_of(version=0, api_key=ApiKey.HEARTBEAT, tail=b""):
    request = HeartbeatRequest(group_id="g", member_id="m")
    spec = API_SPECS[api_key]
    chunks = encode_request(request, spec=spec, version=version, correlation_id=1, client_id="c")
    return memoryview(b"".join(chunks)[4:] + tail)


def start(handle, frame):
    header = parse_request_header(frame)
    bound = dispatcher(handle).find(header)
    context = RequestContext(SERVICES, None, header.api_version, "c")
    return bound.start(context, frame, header.body_offset)


def refuse(_context, _request):
    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)


def test_the_request_reaches_its_handler():
    answer = start(
        lambda _, request: HeartbeatResponse(error_code=len(request.group_id)), frame_of()
    )
    assert answer.error_code == 1


def test_a_refusal_becomes_the_answer():
    assert start(refuse, frame_of()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_S7_trailing_bytes_are_a_violation():
    with pytest.raises(ProtocolViolation):
        start(refuse, frame_of(tail=b"x"))


@pytest.mark.parametrize("version", [3, 4])
def test_T7_a_version_that_the_handler_does_not_understand_is_unsupported(version):
    frame = frame_of(version)
    with pytest.raises(UnsupportedVersion):
        dispatcher(refuse).find(parse_request_header(frame))


def test_T7_an_api_without_a_handler_is_unsupported():
    frame = memoryview(b"\0\x03\0\0\0\0\0\x01\xff\xff\0\0\0\0")
    with pytest.raises(UnsupportedVersion):
        dispatcher(refuse).find(parse_request_header(frame))
