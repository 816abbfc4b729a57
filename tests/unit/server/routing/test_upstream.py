"""A routed client's connection to one owner: what happens to requests that cannot be sent."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.support.memory_peer import MemoryTransport, simulated
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ConnectionLost
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import KafkaError
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.server.routing.upstream import CONNECT_S_MAX, Upstream, UpstreamBudget
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

FAILURES = []


class Nowhere:
    """A network that drops what is sent to the owner."""

    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, _factory, _host, _port):
        self.attempts += 1
        await asyncio.Event().wait()


def ask(upstream, timeout_s=1.0):
    return upstream.ask(HeartbeatRequest(), HeartbeatResponse, version=4, timeout_s=timeout_s)


@simulated
async def test_all_that_wait_for_an_owner_that_cannot_be_reached_are_refused_together():
    net, budget = Nowhere(), UpstreamBudget(10)
    supervisor = Supervisor(lambda _name, _error: None)
    upstream = Upstream(net, supervisor, budget, lambda: Endpoint("there", 1), client_id="c")
    asked = [ask(upstream) for _ in range(1_000)]
    await asyncio.sleep(1.5 * CONNECT_S_MAX)
    assert all(isinstance(one.exception(), KafkaError) for one in asked)
    assert (net.attempts, budget.open) == (1, 0)
    later = ask(upstream)  # is tried again
    await asyncio.sleep(1.5 * CONNECT_S_MAX)
    assert isinstance(later.exception(), KafkaError)
    assert net.attempts == 2


class StoppedOwner:
    """Accepts a connection, and never reads from it."""

    def __init__(self) -> None:
        self.transports: list[MemoryTransport] = []

    async def connect(self, factory, _host, _port):
        transport = MemoryTransport(window=0)
        transport.protocol = factory()
        transport.protocol.connection_made(transport)
        self.transports.append(transport)


def stop_after_negotiation(monkeypatch):
    async def negotiated(_self, timeout_s):
        """As if the owner had stopped only afterwards."""
        await asyncio.sleep(timeout_s / 4)

    monkeypatch.setattr(BrokerConnection, "_negotiate", negotiated)


def ask_to_store(upstream, *, acks):
    """More than is written at once."""
    part = PartitionProduceData(index=0, records=bytes(100_000))
    request = ProduceRequest(
        acks=acks, topic_data=[TopicProduceData(name="t", partition_data=[part])]
    )
    response_type = ProduceResponse if acks else None
    return upstream.ask(request, response_type, version=9, timeout_s=60.0)


@simulated
async def test_what_an_owner_does_not_read_is_not_kept_for_ever(monkeypatch):
    """Without acks nothing is answered, so no answer is late: the room itself must come in time."""
    stop_after_negotiation(monkeypatch)
    net, budget = StoppedOwner(), UpstreamBudget(10)
    supervisor = Supervisor(lambda _name, _error: None)
    upstream = Upstream(net, supervisor, budget, lambda: Endpoint("there", 1), client_id="c")
    sent, kept = (ask_to_store(upstream, acks=0) for _ in range(2))
    await asyncio.sleep(1.0)
    assert sent.done()
    assert not kept.done()
    await asyncio.sleep(60.0)
    assert isinstance(kept.exception(), KafkaError)
    assert net.transports[0].aborted
    upstream.close()
    assert budget.open == 0


def upstream_to(net):
    def failed(_name, error):
        FAILURES.append(error)

    FAILURES.clear()
    supervisor = Supervisor(failed)
    find = partial(Endpoint, "there", 1)
    return Upstream(net, supervisor, UpstreamBudget(10), find, client_id="c")


@simulated
async def test_I1_what_waits_behind_a_lost_request_does_not_overtake_it(monkeypatch):
    stop_after_negotiation(monkeypatch)
    net = StoppedOwner()
    upstream = upstream_to(net)
    lost, *waiting = (ask_to_store(upstream, acks=-1) for _ in range(3))
    await asyncio.sleep(CONNECT_S_MAX)
    net.transports[0].abort()
    await asyncio.sleep(CONNECT_S_MAX)
    assert isinstance(lost.exception(), ConnectionLost)
    assert [type(one.exception()) for one in waiting] == [KafkaError, KafkaError]
    assert len(net.transports) == 1
    ask_to_store(upstream, acks=-1)  # by now the client may know
    await asyncio.sleep(CONNECT_S_MAX)
    assert len(net.transports) == 2
    upstream.close()


@simulated
async def test_I1_nor_does_what_comes_before_anybody_knows_of_the_loss(monkeypatch):
    stop_after_negotiation(monkeypatch)
    net = StoppedOwner()
    upstream = upstream_to(net)
    lost = ask(upstream, 60.0)
    await asyncio.sleep(CONNECT_S_MAX)
    net.transports[0].protocol.connection_lost(None)
    behind = ask(upstream, 60.0)
    await asyncio.sleep(CONNECT_S_MAX)
    assert isinstance(lost.exception(), ConnectionLost)
    assert isinstance(behind.exception(), KafkaError)
    assert FAILURES == []
    upstream.close()


class ReturningOwner(StoppedOwner):
    """Refuses the first connection, and in that turn of the loop the client sends on."""

    def __init__(self) -> None:
        super().__init__()
        self.send_on = None

    async def connect(self, factory, host, port):
        if self.send_on is None:
            await super().connect(factory, host, port)
            return
        asyncio.get_running_loop().call_soon(self.send_on)
        self.send_on = None
        raise ConnectionRefusedError


@simulated
async def test_I1_nor_one_that_was_not_sent(monkeypatch):
    stop_after_negotiation(monkeypatch)
    net, behind = ReturningOwner(), []
    upstream = upstream_to(net)
    net.send_on = lambda: behind.append(ask(upstream, 60.0))
    first = ask(upstream, 60.0)
    await asyncio.sleep(CONNECT_S_MAX)
    assert isinstance(first.exception(), KafkaError)
    assert isinstance(behind[0].exception(), KafkaError)
    assert net.transports == []
    assert FAILURES == []
    upstream.close()


@simulated
async def test_a_request_after_an_idle_connection_has_ended_is_sent_over_another(monkeypatch):
    stop_after_negotiation(monkeypatch)
    net = StoppedOwner()
    upstream = upstream_to(net)
    upstream.ask(ProduceRequest(acks=0), None, version=9, timeout_s=1.0)
    await asyncio.sleep(CONNECT_S_MAX)
    net.transports[0].protocol.connection_lost(None)
    sent = ask(upstream, 60.0)
    await asyncio.sleep(CONNECT_S_MAX)
    assert len(net.transports) == 2
    assert not sent.done()
    upstream.close()
