"""A client without rules: raw bytes, or requests and their answers, on one socket."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

from tidemill.wire.api_keys import API_SPECS, load
from tidemill.wire.headers import encode_request, parse_response_header
from tidemill.wire.primitives import Reader

DEADLINE_S = 10.0
POLL_S = 0.005

_SPECS = {f"{spec.name}Request": spec for spec in API_SPECS.values()}


class Stranger:
    """One connection. `source` is its address: each 127.x.y.z counts as another peer."""

    def __init__(self, bootstrap, source="127.0.0.1", timeout_s=DEADLINE_S):
        host, _, port = bootstrap.rpartition(":")
        self.source = source
        self.socket = socket.socket()
        self.socket.bind((source, 0))
        self.socket.settimeout(timeout_s)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset_on_close(self):
        """Close without waiting for anything that was sent: the broker sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    # --- sending ---------------------------------------------------------------------------------

    def send(self, data):
        self.socket.sendall(data)

    def try_send(self, data):
        """Send until the broker stops reading; returns the number of bytes sent."""
        self.socket.settimeout(0.05)
        sent = 0
        try:
            while sent < len(data):
                sent += self.socket.send(data[sent : sent + 65536])
        except OSError:
            pass
        self.socket.settimeout(DEADLINE_S)
        return sent

    def frame(self, request, version, client_id="stranger"):
        self._correlation_id += 1
        return b"".join(
            encode_request(
                request,
                spec=_SPECS[type(request).__name__],
                version=version,
                correlation_id=self._correlation_id,
                client_id=client_id,
            )
        )

    # --- reading ---------------------------------------------------------------------------------

    def read_frame(self):
        """The next answer without its length."""
        return self._read(struct.unpack(">i", self._read(4))[0])

    def _read(self, size):
        chunks = []
        while size:
            chunk = self.socket.recv(min(size, 1 << 20))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def answer(self, request_class, version):
        """The next answer, decoded; its correlation id is in `last_correlation_id`."""
        spec = _SPECS[request_class.__name__]
        frame = self.read_frame()
        self.last_correlation_id, start = parse_response_header(frame, spec=spec, version=version)
        reader = Reader(frame, budget=10**9, pos=start)
        response = load(spec.key)[1].read(reader, version)
        reader.finish()
        return response

    def call(self, request, version, **options):
        self.send(self.frame(request, version, **options))
        response = self.answer(type(request), version)
        assert self.last_correlation_id == self._correlation_id
        return response

    def is_closed(self, within_s=DEADLINE_S):
        """Whether the broker closes the connection within the time, without sending a byte."""
        self.socket.settimeout(within_s)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(DEADLINE_S)


def wait_until(condition: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
    """Poll `condition`: another process offers no event to wait on."""
    ends_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends_at:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(POLL_S)
