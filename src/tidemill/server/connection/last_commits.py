"""Which requests of a client that is gone still count: its last commits (T46)."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.core.limits import REQUESTS_IN_FLIGHT_MAX
from tidemill.server.connection.receive_buffer import LENGTH_BYTES, ReceiveBuffer
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.headers import parse_request_header

__all__ = ["last_commits"]


def last_commits(receive: ReceiveBuffer) -> Iterator[memoryview]:
    """The commits that the client sent behind a slow request, as frames. ProtocolViolation.

    Only these: it has done its work, and nobody repeats it if the commit is lost. One behind a
    Produce is left out: it may say that what the Produce brings is done.
    """
    data = receive.received(0)
    position = 0
    for _ in range(REQUESTS_IN_FLIGHT_MAX):
        end = receive.next_request_end(data, position)
        if not end:
            return
        frame = data[position + LENGTH_BYTES : end]
        api_key = parse_request_header(frame).api_key
        if api_key == ApiKey.PRODUCE:
            return
        if api_key == ApiKey.OFFSET_COMMIT:
            yield frame
        position = end
