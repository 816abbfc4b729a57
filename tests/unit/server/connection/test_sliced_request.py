"""A request in slices: others are served between them, its own connection keeps its order."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.memory_peer import Server, listening, settle, simulated
from tidemill.core.limits import TURN_S
from tidemill.core.loop.deferred import Deferred
from tidemill.server.connection.receive_buffer import KEPT_VIEW_BYTES, SCRATCH_BYTES
from tidemill.server.request.handler import Progress, Unfinished
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

SHARED = 10_000
"""A request that lies in the shared reading area."""
OWN = SCRATCH_BYTES + 10_000
"""A request that has a buffer of its own."""


class Slices:
    """Reads the request's records in `steps`; the last of them gives `reply`."""

    def __init__(self, server, request, steps, reply):
        self.server = server
        self.data = request.topic_data[0].partition_data[0]
        self.steps = list(steps)
        self.reply = reply
        self.seen = []

    def keep(self, keep):
        self.data.records = keep(self.data.records)

    def run_slice(self):
        self.server.loop._now += self.server.handler_cost_s
        self.seen.append(bytes(self.data.records))
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def run_away(self):
        self.seen.append("away")
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        await step.wait()

    def answer(self):
        return self.reply


MORE, AWAY, DONE = Progress.MORE, Progress.AWAY, Progress.DONE


def _sliced(server, *steps, reply=None):
    """Let Produce work in `steps`; the list of works that were started."""
    started = []

    def answer(request):
        started.append(Slices(server, request, steps, reply))
        return Unfinished(started[-1])

    server.produce_answer = answer
    return started


def _produce(client, size=SHARED):
    data = PartitionProduceData(index=0, records=b"r" * size)
    topic = TopicProduceData(name="t", partition_data=[data])
    return client.frame(ApiKey.PRODUCE, ProduceRequest(topic_data=[topic]), version=9)


async def _turns(count=300):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [SHARED, OWN])
@simulated
async def test_S11_others_are_served_between_two_slices(size):
    server = Server()
    server.handler_cost_s = TURN_S
    works = _sliced(server, MORE, MORE, MORE, DONE, reply=ProduceResponse())
    greedy, modest = server.connect(), server.connect(address="192.0.2.2")
    greedy.send(_produce(greedy, size))
    (work,) = works
    served_after = set()
    """Slices that had run when the other client was served."""
    while work.steps:
        served_after.add(len(work.seen))
        modest.send(modest.quick())
        assert len(modest.answers()) == 1
        await asyncio.sleep(0)
    assert served_after == {0, 1, 2, 3}
    assert greedy.answers() == [1]


@pytest.mark.parametrize("size", [SHARED, OWN])
@simulated
async def test_the_records_stay_as_they_were_while_others_read(size):
    server = Server()
    works = _sliced(server, *[MORE] * 5, DONE, reply=ProduceResponse())
    one, other = server.connect(), server.connect(address="192.0.2.2")
    one.send(_produce(one, size))
    for _ in range(6):
        other.send(other.quick() * 20)
        await _turns(10)
    (work,) = works
    assert work.seen == [b"r" * size] * 6
    assert one.answers() == [1]


@simulated
async def test_I5_later_requests_of_the_connection_start_after_the_last_slice():
    server = Server()
    works = _sliced(server, MORE, MORE, DONE, reply=ProduceResponse())
    client = server.connect()
    client.send(_produce(client) + client.quick() + client.quick())
    (work,) = works
    while work.steps:
        assert server.started == ["ProduceRequest"]
        assert not client.transport.reading
        await asyncio.sleep(0)
    await settle()
    assert client.answers() == [1, 2, 3]
    assert client.transport.reading


@simulated
async def test_an_acknowledgement_that_comes_later_does_not_hold_up_later_requests():
    server = Server()
    later = Deferred()
    _sliced(server, MORE, DONE, reply=later)
    client = server.connect()
    client.send(_produce(client) + client.quick())
    await _turns()
    assert server.started == ["ProduceRequest", "DescribeGroupsRequest"]
    assert client.answers() == []
    later.resolve(ProduceResponse())
    assert client.answers() == [1, 2]


@simulated
async def test_T9_a_request_without_an_answer_leaves_no_gap():
    server = Server()
    _sliced(server, MORE, DONE, reply=None)
    client = server.connect()
    client.send(_produce(client) + client.quick())
    await _turns()
    assert client.answers() == [2]
    assert client.connection.is_drained


@pytest.mark.parametrize("size", [SHARED, OWN])
@simulated
async def test_S2_what_is_kept_between_slices_is_counted_until_the_end(size):
    server = Server()
    pool = server.resources.request_memory
    _sliced(server, MORE, DONE, reply=ProduceResponse())
    client = server.connect()
    client.send(_produce(client, size))
    assert pool.used_bytes >= size + KEPT_VIEW_BYTES
    await _turns()
    assert client.answers() == [1]
    assert pool.used_bytes == 0


@simulated
async def test_the_rest_of_a_read_is_kept_while_a_request_runs_in_slices():
    server = Server()
    _sliced(server, MORE, DONE, reply=ProduceResponse())
    client = server.connect()
    client.send(_produce(client, OWN) + client.quick() * 3 + client.quick()[:10])
    await _turns()
    assert client.answers()[0] == 1
    assert len(server.started) == 4
    assert server.resources.request_memory.used_bytes > 0  # the request that came in part


@simulated
async def test_a_step_in_a_thread_lets_everything_else_run():
    server = Server()
    ready = asyncio.Event()
    works = _sliced(server, AWAY, ready, DONE, reply=ProduceResponse())
    client, other = server.connect(), server.connect(address="192.0.2.2")
    client.send(_produce(client))
    await _turns()
    (work,) = works
    assert work.seen[-1] == "away"
    other.send(other.quick())
    assert other.answers() == [1]
    assert client.answers() == []
    ready.set()
    await _turns()
    assert client.answers() == [1]


@pytest.mark.parametrize("steps", [(RuntimeError("bug"),), (AWAY, RuntimeError("bug"))])
@simulated
async def test_a_bug_in_a_slice_costs_one_connection(steps):
    server = Server()
    _sliced(server, *steps)
    client, other = server.connect(), server.connect(address="192.0.2.2")
    client.send(_produce(client))
    await _turns()
    assert client.is_closed
    assert server.failures == []
    assert server.resources.request_memory.used_bytes == 0
    other.send(other.quick())
    assert other.answers() == [1]


@simulated
async def test_T9_a_request_runs_to_its_end_after_its_client_has_gone():
    server = Server()
    works = _sliced(server, MORE, MORE, DONE, reply=None)
    client = server.connect()
    client.send(_produce(client))
    client.transport.close()
    await _turns()
    (work,) = works
    assert work.steps == []
    assert server.resources.request_memory.used_bytes == 0


@simulated
async def test_a_broker_that_stops_finishes_the_slices():
    server = Server()
    _sliced(server, MORE, MORE, DONE, reply=ProduceResponse())
    client = server.connect()
    client.send(_produce(client))
    client.connection.drain()
    assert not client.connection.is_drained
    await _turns()
    assert client.answers() == [1]
    assert client.connection.is_drained


@simulated
async def test_no_slice_runs_after_the_listener_has_stopped():
    server = Server()
    works = _sliced(server, *[MORE] * 1000)
    listener, _ = await listening(server)
    client = server.connect()
    client.send(_produce(client))
    client.transport.abort()
    await _turns(20)
    await listener.stop()
    (work,) = works
    assert work.steps
    left = len(work.steps)
    await _turns()
    assert len(work.steps) == left  # the logs are closed by now


@simulated
async def test_a_step_that_ends_after_the_listener_has_stopped_is_the_last():
    server = Server()
    ready = asyncio.Event()
    works = _sliced(server, AWAY, ready, DONE, reply=ProduceResponse())
    listener, _ = await listening(server)
    client = server.connect()
    client.send(_produce(client))
    client.transport.abort()
    await _turns()
    await listener.stop()
    ready.set()
    await _turns()
    (work,) = works
    assert work.steps == [DONE]
