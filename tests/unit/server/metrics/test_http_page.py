"""The monitoring page: three paths, two methods, ten seconds per connection."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.memory_peer import MemoryTransport, settle, simulated
from tidemill.core.config.broker_config import Endpoint
from tidemill.server.metrics.http_page import (
    CONNECTIONS_MAX,
    DEADLINE_S,
    REQUEST_BYTES_MAX,
    HttpPage,
)


class MemoryNet:
    async def listen(self, factory, host, port):
        self.factory = factory
        self.address = (host, port)
        self.is_open = True
        return self

    async def start_serving(self):
        pass

    def close(self):
        self.is_open = False


class Client:
    def __init__(self, net, **transport):
        self.transport = MemoryTransport(**transport)
        self.transport.protocol = self.protocol = net.factory()
        self.protocol.connection_made(self.transport)

    def send(self, data):
        if not self.transport.closing:
            self.protocol.data_received(data)

    @property
    def status(self):
        line, _, _ = bytes(self.transport.received).partition(b"\r\n")
        return int(line.split()[1]) if line else None

    @property
    def body(self):
        return bytes(self.transport.received).partition(b"\r\n\r\n")[2]


async def served():
    net = MemoryNet()
    page = HttpPage(
        net,
        {
            "/metrics": lambda: (200, "up 1\n"),
            "/healthz": lambda: (200, "ok\n"),
            "/readyz": lambda: (503, "not ready\n"),
        },
    )
    await page.start(Endpoint("127.0.0.1", 9100))
    return page, net


def request(target, method="GET", headers=b""):
    return b"%s %s HTTP/1.1\r\nhost: x\r\n%s\r\n" % (method.encode(), target.encode(), headers)


async def answer(data):
    _, net = await served()
    client = Client(net)
    client.send(data)
    assert client.transport.closing or client.status is None
    return client


@simulated
async def test_the_paths_are_served_and_the_connection_closed():
    client = await answer(request("/metrics"))
    assert (client.status, client.body) == (200, b"up 1\n")
    assert client.transport.closing
    assert (await answer(request("/healthz?x=1"))).status == 200
    assert (await answer(request("/readyz"))).status == 503


@simulated
async def test_HEAD_gets_the_headers_alone():
    client = await answer(request("/metrics", "HEAD"))
    assert (client.status, client.body) == (200, b"")
    assert b"content-length: 5" in client.transport.received


@pytest.mark.parametrize(
    "target",
    ["/", "//metrics", "/metrics/", "/metrics/x", "/%6detrics", "/../metrics", "http://x/metrics"],
)
def test_S50_every_other_path_is_not_found(target):
    @simulated
    async def run():
        assert (await answer(request(target))).status == 404

    run()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_S50_every_other_method_is_refused(method):
    @simulated
    async def run():
        assert (await answer(request("/metrics", method))).status == 405

    run()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\0\0\0\x10\0\x12\0\0\0\0\0\x01\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics FTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: x\r\n bad: folded\r\n\x00: y\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 1, 2\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
    ],
)
def test_S51_bad_requests_are_refused_and_closed(data):
    @simulated
    async def run():
        client = await answer(data)
        assert client.transport.closing
        assert client.status is None or client.status >= 400

    run()


@simulated
async def test_S51_endless_headers_are_cut_off():
    _, net = await served()
    client = Client(net)
    client.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n")
    sent = 0
    while not client.transport.closing and sent < 10 * REQUEST_BYTES_MAX:
        client.send(b"x-filler: " + b"y" * 1000 + b"\r\n")
        sent += 1012
    assert client.transport.closing
    assert sent <= 2 * REQUEST_BYTES_MAX
    assert client.status == 431


@simulated
async def test_S51_a_body_is_not_waited_for():
    client = await answer(request("/metrics", "POST", b"content-length: 99999999\r\n"))
    assert client.status == 405
    assert client.transport.closing


@simulated
async def test_S51_a_client_that_sends_slowly_is_dropped():
    _, net = await served()
    client = Client(net)
    for byte in request("/metrics")[:9]:
        client.send(bytes([byte]))
        await asyncio.sleep(1)
    assert not client.transport.aborted
    await asyncio.sleep(DEADLINE_S)
    assert client.transport.aborted


@simulated
async def test_S51_a_client_that_does_not_read_is_dropped():
    _, net = await served()
    client = Client(net, window=3)
    client.send(request("/metrics"))
    assert client.transport.closing
    assert not client.transport.aborted
    await asyncio.sleep(DEADLINE_S + 1)
    assert client.transport.aborted


@simulated
async def test_S12_connections_are_limited_and_closed_ones_make_room():
    _, net = await served()
    clients = [Client(net) for _ in range(CONNECTIONS_MAX)]
    assert Client(net).transport.aborted
    clients[0].send(request("/metrics"))
    await settle()
    assert not Client(net).transport.aborted


@simulated
async def test_stopping_closes_the_listener_and_drops_its_connections():
    page, net = await served()
    client = Client(net)
    page.stop()
    assert not net.is_open
    assert client.transport.aborted
