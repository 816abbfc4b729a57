from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.support.fake_cluster import FIRST_PORT, HOST, FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.network.broker_link import CONNECT_S_MAX
from tidemill.client.network.controller_link import ControllerLink
from tidemill.client.network.peer_links import PeerLinks
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.metadata import MetadataRequest, MetadataResponse

DEAD, ALIVE = Endpoint("dead.test", 1), Endpoint(HOST, FIRST_PORT)


class DeafNet:
    """Connecting to the dead host never ends, as after a power loss; others are reached."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._net = cluster.net
        self.connecting = asyncio.Event()
        self.transports = []

    async def connect(self, factory, host, port):
        self.connecting.set()
        if host == DEAD.host:
            await asyncio.Event().wait()
        transport, protocol = await self._net.connect(factory, host, port)
        self.transports.append(transport)
        return transport, protocol


class Bench:
    """A link whose controller is dead at first."""

    refusal = ErrorCode.NOT_CONTROLLER

    def __init__(self) -> None:
        self.controller = DEAD
        self.net = DeafNet(FakeCluster())
        self.link = ControllerLink(self.net, lambda: self.controller, client_id="test")

    async def ask(self) -> MetadataResponse:
        return await self.link.request(
            MetadataRequest(topics=[]), MetadataResponse, version=12, timeout_s=30
        )


class PeerBench(Bench):
    """The same of the links to other brokers, of which one is asked."""

    refusal = ErrorCode.BROKER_NOT_AVAILABLE

    def __init__(self) -> None:
        super().__init__()
        self.link = PeerLinks(self.net, lambda _broker_id: self.controller, client_id="test")

    async def ask(self) -> MetadataResponse:
        return await self.link.request(
            1, MetadataRequest(topics=[]), MetadataResponse, version=12, timeout_s=30
        )


both_links = pytest.mark.parametrize("make_bench", [Bench, PeerBench])


def test_a_controller_that_does_not_accept_holds_nobody_up_for_long():
    async def scenario():
        bench = Bench()
        began = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*(bench.ask() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, KafkaError) for one in outcomes)
        assert {one.code for one in outcomes} == {ErrorCode.NOT_CONTROLLER}
        return asyncio.get_running_loop().time() - began

    assert run_virtually(scenario()) <= CONNECT_S_MAX + 0.1


def test_the_next_controller_is_asked_soon_after_one_that_does_not_accept():
    async def scenario():
        bench = Bench()
        first = asyncio.create_task(bench.ask())
        await asyncio.sleep(0)
        bench.controller = ALIVE
        began = asyncio.get_running_loop().time()
        while True:
            with suppress(KafkaError):  # as its callers do
                answer = await bench.ask()
                break
        took_s = asyncio.get_running_loop().time() - began
        await asyncio.gather(first, return_exceptions=True)
        assert isinstance(answer, MetadataResponse)
        return took_s

    assert run_virtually(scenario()) <= CONNECT_S_MAX + 0.1


@both_links
def test_a_link_that_is_closed_while_it_connects_leaves_no_connection_open(make_bench):
    async def scenario():
        bench = make_bench()
        bench.controller = ALIVE
        asked = asyncio.create_task(bench.ask())
        await bench.net.connecting.wait()
        bench.link.close()
        (outcome,) = await asyncio.gather(asked, return_exceptions=True)
        assert isinstance(outcome, KafkaError)
        assert outcome.code is bench.refusal
        assert [one.is_closing() for one in bench.net.transports] == [True]

    run_virtually(scenario())


@both_links
def test_a_closed_link_asks_nobody(make_bench):
    async def scenario():
        bench = make_bench()
        bench.controller = ALIVE
        bench.link.close()
        (outcome,) = await asyncio.gather(bench.ask(), return_exceptions=True)
        assert isinstance(outcome, KafkaError)
        assert outcome.code is bench.refusal
        assert bench.net.transports == []

    run_virtually(scenario())
