"""The monitoring page under attack (S50, S51), on live sockets."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack

import pytest

from tests.abuse.stranger import wait_until


def _connect(victim):
    (host, port) = re.search(
        r"metrics on http://([^:]+):(\d+)/", victim.process.log_path.read_text()
    ).groups()
    return socket.create_connection((host, int(port)), 5)


def _answer(victim, data):
    with _connect(victim) as connection:
        connection.sendall(data)
        received = b""
        try:
            while chunk := connection.recv(1 << 16):
                received += chunk
        except ConnectionResetError:
            pass
        return received


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n", b"200"),
        (b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"200"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nhost: x\r\n" + b"x: " + b"y" * 100_000, b"431"),
    ],
)
def test_S50_S51_requests_of_all_kinds_get_one_answer(victim, data, status):
    received = _answer(victim, data)
    assert not received or received.split()[1] == status
    assert received or len(data) > 50_000  # closed while still sending: the answer may be lost


def test_S51_idle_connections_do_not_shut_others_out(victim):
    with ExitStack() as stack:
        for _ in range(63):
            stack.enter_context(_connect(victim))
        assert b"200" in _answer(victim, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    wait_until(lambda: victim.metrics(), "the page is back")
