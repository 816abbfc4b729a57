"""A routed client's connection to one owner: what happens to requests that cannot be sent."""

from __future__ import annotations

import asyncio

from tests.support.memory_peer import MemoryTransport, simulated
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import KafkaError
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.server.routing.upstream import CONNECT_S_MAX, Upstream, UpstreamBudget
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


class Nowhere:
    """A network that drops what is sent to the owner."""

    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, _factory, _host, _port):
        self.attempts += 1
        await asyncio.Event().wait()


def ask(upstream):
    return upstream.ask(HeartbeatRequest(), HeartbeatResponse, version=4, timeout_s=1.0)


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


@simulated
async def test_what_an_owner_does_not_read_is_not_kept_for_ever(monkeypatch):
    """Without acks nothing is answered, so no answer is late: the room itself must come in time."""

    async def negotiated(_self, _timeout_s):
        """As if the owner had stopped only afterwards."""

    monkeypatch.setattr(BrokerConnection, "_negotiate", negotiated)
    net, budget = StoppedOwner(), UpstreamBudget(10)
    supervisor = Supervisor(lambda _name, _error: None)
    upstream = Upstream(net, supervisor, budget, lambda: Endpoint("there", 1), client_id="c")
    long = ProduceRequest(
        acks=0,
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=bytes(100_000))]
            )
        ],
    )
    sent, kept = (upstream.ask(long, None, version=9, timeout_s=60.0) for _ in range(2))
    await asyncio.sleep(1.0)
    assert sent.done()
    assert not kept.done()
    await asyncio.sleep(60.0)
    assert isinstance(kept.exception(), KafkaError)
    assert net.transports[0].aborted
    upstream.close()
    assert budget.open == 0
