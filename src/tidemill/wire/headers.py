"""HOT PATH: request and response headers, and whole frames made of header and message.

Request header, version 1 and 2 (the API's flexible versions use 2):

    int16 api_key | int16 api_version | int32 correlation_id | nullable string client_id | v2: tags

The client id keeps its classic int16 length in both (T5). A response starts with its correlation
id, and with tags in flexible versions, except for ApiVersions (T1).

A header is parsed before anything is known about the peer, under the same bounds as a body.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, final

from tidemill.core.errors import ProtocolViolation
from tidemill.wire.api_keys import API_SPECS, ApiSpec
from tidemill.wire.message import Message
from tidemill.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "REQUEST_HEADER_BYTES_MIN",
    "RESPONSE_HEADER_BYTES_MIN",
    "RequestHeader",
    "UnsupportedVersion",
    "encode_request",
    "encode_response",
    "parse_request_header",
    "parse_response_header",
]

_REQUEST_HEAD: Final = Struct(">hhih")
_REQUEST_PREFIX: Final = Struct(">ihhi")
_RESPONSE_PREFIX: Final = Struct(">ii")
_FRAME_LENGTH: Final = Struct(">i")

REQUEST_HEADER_BYTES_MIN: Final = _REQUEST_HEAD.size
RESPONSE_HEADER_BYTES_MIN: Final = 4


class UnsupportedVersion(ProtocolViolation):
    """A request that cannot be read further than its header.

    ApiVersions is answered all the same, with a version 0 body (T2); for any other API the
    connection is closed (T7).
    """

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        super().__init__(f"API {api_key} in version {api_version} is not supported")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


@final
class RequestHeader:
    """The fields of a request's header; the body starts at `body_offset` of the frame."""

    __slots__ = ("api_key", "api_version", "body_offset", "client_id", "correlation_id", "spec")

    def __init__(
        self,
        spec: ApiSpec,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        body_offset: int,
    ) -> None:
        self.spec = spec
        self.api_key = spec.key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_offset = body_offset


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Parse the start of a frame (without its length); raises `UnsupportedVersion`."""
    try:
        api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(frame)
    except StructError:
        raise ProtocolViolation(f"a frame of {len(frame)} bytes has no header") from None
    spec = API_SPECS.get(api_key)
    if spec is None or not spec.version_min <= version <= spec.version_max:
        raise UnsupportedVersion(api_key, version, correlation_id)
    r = Reader(frame, pos=REQUEST_HEADER_BYTES_MIN)
    client_id = None if length == -1 else r.text(length)
    if version >= spec.flexible_from:
        r.skip_tags()
    return RequestHeader(spec, version, correlation_id, client_id, r.pos)


def encode_request(
    request: Message, *, spec: ApiSpec, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """A whole frame, length included."""
    w = Writer()
    w.buf += _REQUEST_PREFIX.pack(0, spec.key, version, correlation_id)
    w.nullable_string(client_id)
    if version >= spec.flexible_from:
        w.buf.append(0)
    request.write(w, version)
    return _finish_frame(w)


def parse_response_header(frame: Buffer, *, spec: ApiSpec, version: int) -> tuple[int, int]:
    """Correlation id, and where the body starts."""
    r = Reader(frame)
    correlation_id = r.int32()
    if spec.response_header_version(version):
        r.skip_tags()
    return correlation_id, r.pos


def encode_response(
    response: Message, *, spec: ApiSpec, version: int, correlation_id: int
) -> list[Buffer]:
    """A whole frame, length included."""
    w = Writer()
    w.buf += _RESPONSE_PREFIX.pack(0, correlation_id)
    if spec.response_header_version(version):
        w.buf.append(0)
    response.write(w, version)
    return _finish_frame(w)


def _finish_frame(w: Writer) -> list[Buffer]:
    # The length goes into room left at the start: no extra chunk and no copy.
    _FRAME_LENGTH.pack_into(w.buf, 0, w.size - _FRAME_LENGTH.size)
    return w.chunks()
