"""Which connections a listener admits and drops, and how it stops."""

from __future__ import annotations

import asyncio
import errno
import struct

import pytest

from tests.support.memory_peer import MemoryNet, Server, listening, settle, simulated
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.limits import DRAIN_DEADLINE_S
from tidemill.server.connection.listener import Listener
from tidemill.wire.generated.heartbeat import HeartbeatResponse


@simulated
async def test_S12_connections_beyond_the_limit_are_refused():
    server = Server(connections_max=3)
    clients = [server.connect(address=f"192.0.2.{n}") for n in range(5)]
    assert [client.is_closed for client in clients] == [False, False, False, True, True]
    assert server.services.telemetry.connections_refused == 2


@simulated
async def test_S12_the_connections_of_one_address_are_limited():
    server = Server(**{"max.connections.per.ip": 2})
    mine = [server.connect(address="192.0.2.1") for _ in range(4)]
    assert [client.is_closed for client in mine] == [False, False, True, True]
    assert not server.connect(address="192.0.2.2").is_closed


@simulated
async def test_S12_a_lost_connection_makes_room_for_another():
    server = Server(connections_max=2, **{"max.connections.per.ip": 1})
    first = server.connect(address="192.0.2.1")
    first.transport.abort()
    await settle()
    assert not server.connect(address="192.0.2.1").is_closed
    assert len(server.resources.admission.connections) == 1


RATE = {"max.connection.creation.rate.per.ip": 2}


@simulated
async def test_S12_an_address_that_connects_too_often_is_refused_and_counted():
    server = Server(**RATE)
    mine = [server.connect(address="192.0.2.1") for _ in range(4)]
    assert [client.is_closed for client in mine] == [False, False, True, True]
    assert server.services.telemetry.connections_refused == 2


@simulated
async def test_S12_one_address_does_not_use_up_the_rate_of_another():
    server = Server(**RATE)
    for _ in range(4):
        server.connect(address="192.0.2.1")
    assert not server.connect(address="192.0.2.2").is_closed


@simulated
async def test_S12_an_address_that_waits_may_connect_again():
    server = Server(**RATE)
    for _ in range(3):
        server.connect(address="192.0.2.1")
    await asyncio.sleep(0.5)
    again = [server.connect(address="192.0.2.1") for _ in range(2)]
    assert [client.is_closed for client in again] == [False, True]


@simulated
async def test_a_closed_connection_does_not_give_its_token_back():
    server = Server(**RATE)
    for _ in range(2):
        server.connect(address="192.0.2.1").transport.abort()
    await settle()
    assert server.connect(address="192.0.2.1").is_closed


def test_S12_a_flood_from_one_address_is_one_log_line(caplog):
    @simulated
    async def run():
        server = Server(connections_max=1)
        for _ in range(100):
            server.connect()

    run()
    assert len(caplog.records) == 1


@simulated
async def test_S9_the_listener_drops_stalled_clients():
    server = Server()
    listener, _ = await listening(server)
    server.services.supervisor.spawn("listener", listener.run())
    client = server.connect()
    client.send(struct.pack(">i", 100))
    await asyncio.sleep(36)
    assert client.transport.aborted
    await server.services.supervisor.stop()


@simulated
async def test_an_address_in_use_is_a_user_error():
    listener = Listener(MemoryNet(OSError(errno.EADDRINUSE, "Address already in use")))
    with pytest.raises(UserError, match="the port is in use"):
        await listener.bind(Endpoint("192.0.2.9", 9092))


def test_stopping_answers_what_was_started_and_logs_nothing(caplog):
    @simulated
    async def run():
        server = Server()
        listener, net = await listening(server)
        idle, waiting = server.connect(), server.connect()
        waiting.send(waiting.waiting())
        started = server.clock.monotonic()
        asyncio.get_running_loop().call_later(1, server.waiting[0].resolve, HeartbeatResponse())
        await listener.stop()
        assert net.closed
        assert idle.is_closed
        assert waiting.is_closed
        assert waiting.answers() == [1]
        assert not server.resources.admission.connections
        assert server.clock.monotonic() - started < 2

    run()
    assert not caplog.records


@simulated
async def test_stopping_answers_parked_fetches_at_once():
    server = Server()
    listener, _ = await listening(server)
    clients = [server.connect() for _ in range(100)]
    server.watchers = {}
    for client in clients:
        client.send(client.waiting())
    assert len(server.services.parked) == 100
    started = server.clock.monotonic()
    await listener.stop()
    assert all(client.answers() == [1] for client in clients)
    assert server.clock.monotonic() - started < 0.1


@simulated
async def test_stopping_does_not_wait_for_ever_for_an_answer_or_a_client_that_does_not_read():
    server = Server()
    listener, _ = await listening(server)
    server.group_ids = ["x" * 30_000] * 10
    never, deaf = server.connect(), server.connect(window=0)
    never.send(never.waiting())
    deaf.send(deaf.quick())
    started = server.clock.monotonic()
    await listener.stop()
    assert server.clock.monotonic() - started <= DRAIN_DEADLINE_S + 1
    assert never.transport.aborted
    assert deaf.transport.aborted
    assert not server.resources.admission.connections


@simulated
async def test_busy_clients_do_not_keep_a_listener_from_stopping():
    server = Server()
    listener, _ = await listening(server)
    client = server.connect()
    client.send(b"".join(client.waiting() for _ in range(200)))
    server.services.supervisor.spawn("answers", _answer_for_ever(server))
    started = server.clock.monotonic()
    await listener.stop()
    assert len(client.answers()) == 64
    assert server.clock.monotonic() - started < 1
    await server.services.supervisor.stop()


async def _answer_for_ever(server):
    while True:
        for answer in server.waiting:
            if not answer.resolved:
                answer.resolve(HeartbeatResponse())
        await asyncio.sleep(0.001)


@simulated
async def test_a_connection_that_arrives_while_stopping_is_refused():
    server = Server()
    listener, _ = await listening(server)
    await listener.stop()
    assert server.connect().is_closed


@simulated
async def test_a_listener_that_never_served_stops():
    net = MemoryNet()
    listener = Listener(net)
    await listener.bind(Endpoint("192.0.2.9", 0))
    await listener.stop()
    assert net.closed
