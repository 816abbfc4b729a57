"""The listener for brokers beside the one for clients: what they share, and what they do not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.support.memory_peer import (
    Client,
    MemoryNet,
    MemoryTransport,
    Server,
    listening,
    settle,
    simulated,
)
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.limits import INTERNAL_DRAIN_DEADLINE_S, SLOW_REQUESTS_MAX
from tidemill.server.connection.listener import Listener
from tidemill.server.connection.listener_resources import ClientDeadlines, ListenerResources


def _internal(server: Server, connections_max: int = 100) -> ListenerResources:
    return ListenerResources(
        server.services,
        server.resources.dispatcher,
        server.services.supervisor,
        connections_max=connections_max,
        deadlines=ClientDeadlines(),
        failed=lambda part, error: server.failures.append(error),
        clients=server.resources,
    )


def _broker(internal: ListenerResources, **transport) -> Client:
    return Client(SimpleNamespace(resources=internal), MemoryTransport(**transport))


@simulated
async def test_S31_a_connection_knows_by_which_listener_it_came():
    server = Server()
    assert not server.connect().connection.is_internal
    assert _broker(_internal(server)).connection.is_internal


@simulated
async def test_S12_clients_cannot_use_up_the_connections_of_brokers():
    server = Server(connections_max=2)
    internal = _internal(server)
    clients = [server.connect() for _ in range(3)]
    assert clients[-1].is_closed
    assert not _broker(internal).is_closed


@simulated
async def test_S12_limits_per_address_are_for_clients_alone():
    keys = ("max.connections", "max.connections.per.ip", "max.connection.creation.rate.per.ip")
    server = Server(**dict.fromkeys(keys, 1))
    internal = _internal(server)
    assert not any(_broker(internal, address="192.0.2.1").is_closed for _ in range(5))


@simulated
async def test_S12_connections_of_brokers_are_limited_as_well():
    server = Server()
    internal = _internal(server, connections_max=2)
    assert [_broker(internal).is_closed for _ in range(3)] == [False, False, True]
    assert server.services.telemetry.connections_refused == 1


@simulated
async def test_S12_clients_cannot_use_up_the_turns_of_long_requests():
    server = Server()
    internal = _internal(server)
    for _ in range(SLOW_REQUESTS_MAX):
        await server.resources.slow_requests.acquire()
    assert server.resources.slow_requests.locked()
    assert not internal.slow_requests.locked()


@simulated
async def test_S12_clients_cannot_use_up_the_memory_for_requests_of_brokers():
    server = Server()
    internal = _internal(server)
    server.resources.request_memory.take(1 << 40)
    assert server.resources.request_memory.is_exhausted
    assert not internal.request_memory.is_exhausted


@simulated
async def test_S40_a_broker_does_not_wait_for_memory_that_clients_hold():
    server = Server()
    internal = _internal(server)
    server.services.response_memory.take(1 << 40)
    async with asyncio.timeout(1):
        await internal.wait_response_memory()


def test_the_second_listener_brings_no_second_reading_area(run):
    async def scenario():
        server = Server()
        assert _internal(server).scratch is server.resources.scratch

    run(scenario())


@simulated
async def test_brokers_are_served_until_the_last_client_has_its_answer():
    server = Server()
    listener, _ = await listening(server)
    internal = _internal(server)
    internal_listener = Listener(MemoryNet())
    await internal_listener.bind(Endpoint("192.0.2.9", 0))
    await internal_listener.serve(internal)
    client, broker = server.connect(), _broker(internal)
    client.send(client.waiting())

    server.services.supervisor.spawn("stop", listener.stop())
    await settle()
    broker.send(broker.quick())
    await settle()
    assert broker.answers() == [1]
    assert not broker.is_closed

    await internal_listener.stop(INTERNAL_DRAIN_DEADLINE_S)
    assert broker.is_closed
    await server.services.supervisor.stop()
