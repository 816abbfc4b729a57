"""Clients that exceed a deadline are dropped; throttled ones are not read."""

from __future__ import annotations

import asyncio
import struct

from tests.support.memory_peer import Server, settle, simulated
from tidemill.server.connection.listener_resources import ClientDeadlines
from tidemill.wire.generated.heartbeat import HeartbeatResponse

MIB = 1 << 20


# --- deadlines -----------------------------------------------------------------------------------


@simulated
async def test_S9_a_request_that_trickles_in_is_dropped_30_seconds_after_its_first_byte():
    server = Server()
    client = server.connect()
    client.send(struct.pack(">i", 100))
    for _ in range(29):
        client.send(b"x")
        await asyncio.sleep(1)
        server.sweep()
    assert not client.is_closed
    client.send(b"x")
    await asyncio.sleep(2)
    server.sweep()
    assert client.transport.aborted
    assert server.services.telemetry.connections_closed_by_fault == 1


@simulated
async def test_S9_each_request_has_its_own_deadline():
    server = Server()
    client = server.connect()
    for _ in range(20):
        frame = client.quick()
        client.send(frame[:9])
        await asyncio.sleep(20)
        server.sweep()
        client.send(frame[9:])
    assert len(client.answers()) == 20


@simulated
async def test_S9_time_in_which_we_did_not_read_is_not_held_against_the_client():
    server = Server()
    client = server.connect()
    part = client.quick()
    client.send(client.slow() + part[:10])
    await asyncio.sleep(100)
    server.sweep()
    server.step_ends.set()
    await settle()
    await asyncio.sleep(20)
    server.sweep()
    assert not client.is_closed
    client.send(part[10:])
    assert len(client.answers()) == 2


@simulated
async def test_S9_a_client_that_does_not_read_is_no_longer_read_and_dropped_after_60_seconds():
    server = Server()
    server.group_ids = ["x" * 30_000] * 10
    client = server.connect(window=0)
    client.send(b"".join(client.quick() for _ in range(10)))
    assert len(server.started) == 1
    assert not client.transport.reading
    await asyncio.sleep(59)
    server.sweep()
    assert not client.is_closed
    await asyncio.sleep(2)
    server.sweep()
    assert client.transport.aborted
    await settle()
    assert server.services.response_memory.used_bytes == 0


@simulated
async def test_S9_a_client_that_reads_slowly_is_kept():
    server = Server()
    server.group_ids = ["x" * 30_000] * 200
    client = server.connect(window=0)
    client.send(client.quick())
    for _ in range(5):
        await asyncio.sleep(50)
        client.transport.take(MIB + 100_000)
        server.sweep()
    assert not client.is_closed
    client.transport.take(10 * MIB)
    assert client.answers() == [1]


@simulated
async def test_S9_a_client_that_reads_a_little_now_and_then_is_dropped():
    server = Server()
    server.group_ids = ["x" * 30_000] * 200
    client = server.connect(window=0)
    client.send(client.quick())
    for _ in range(13):
        await asyncio.sleep(5)
        client.transport.take(1000)
        server.sweep()
    assert client.transport.aborted


@simulated
async def test_S9_a_closed_connection_whose_client_does_not_read_is_aborted():
    server = Server()
    server.group_ids = ["x" * 30_000] * 10
    client = server.connect(window=0)
    client.send(client.quick())
    client.transport.take(299_000)  # the rest is below the low water mark
    client.send(struct.pack(">i", -1))
    assert client.is_closed
    assert not client.transport.aborted
    await asyncio.sleep(61)
    server.sweep()
    await settle()
    assert client.transport.aborted
    assert not server.resources.admission.connections


def test_an_idle_client_is_closed_without_a_log_line(caplog):
    @simulated
    async def run():
        server = Server(deadlines=ClientDeadlines(idle_s=600.0))
        idle, parked = server.connect(), server.connect()
        parked.send(parked.waiting())
        await asyncio.sleep(601)
        server.sweep()
        assert idle.is_closed
        assert not parked.is_closed
        assert server.services.telemetry.connections_closed_by_fault == 0

    run()
    assert not caplog.records


# --- throttling ----------------------------------------------------------------------------------


@simulated
async def test_T11_a_throttled_client_is_answered_at_once_and_then_not_read():
    server = Server()
    client = server.connect()
    server.throttle_ms = 500
    client.send(client.quick())
    assert client.answers() == [1]
    server.throttle_ms = 0
    client.send(client.quick())
    assert not client.transport.reading
    await asyncio.sleep(0.4)
    assert client.answers() == []
    await asyncio.sleep(0.2)
    assert client.answers() == [2]
    assert client.transport.reading


@simulated
async def test_T11_a_shorter_throttle_does_not_end_a_longer_one():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + client.waiting())
    for context, throttle_ms in zip(server.contexts, (1000, 100), strict=True):
        context.throttle_ms = throttle_ms
    for answer in server.waiting:
        answer.resolve(HeartbeatResponse())
    client.send(client.quick())
    await asyncio.sleep(0.9)
    assert client.answers() == [1, 2]
    await asyncio.sleep(0.2)
    assert client.answers() == [3]


@simulated
async def test_T11_no_client_is_throttled_for_longer_than_30_seconds():
    server = Server()
    client = server.connect()
    server.throttle_ms = 10**9
    client.send(client.quick())
    client.send(client.quick())
    await asyncio.sleep(31)
    assert client.answers() == [1, 2]
