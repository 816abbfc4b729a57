"""The broker refuses a request with bytes after its last field (S7): stock clients send none.

The brokers that other tests share are checked too, when they stop (`conftest.py`), and so is every
client of `make interop`.
"""

from __future__ import annotations

import socket
import struct

import pytest

from tests.support.clients import DEADLINE_S, Message, Sending
from tests.support.topics import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""The shortest request: version 0, correlation id 1, no client id."""


def test_S7_a_request_with_a_byte_too_many_is_found_by_the_check(new_broker):
    broker = new_broker()
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
        stranger.sendall(struct.pack(">i", len(API_VERSIONS) + 1) + API_VERSIONS + b"\0")
        assert stranger.recv(1) == b""
    (fault,) = broker.connection_faults()
    assert "1 bytes after the message's end" in fault


def test_S7_clients_send_no_bytes_after_a_request(new_broker, topic, client):
    broker = new_broker()
    create_topic(broker.bootstrap, topic)
    for idempotent in (False, True):
        how = Sending(idempotent=idempotent)
        client.produce(broker.bootstrap, topic, [Message(b"value", key=b"key")], how)
    client.offsets_for_times(broker.bootstrap, topic, [0])
    assert len(client.consume(broker.bootstrap, topic, 2)) == 2
    assert broker.stop() == 0
    assert broker.connection_faults() == []
