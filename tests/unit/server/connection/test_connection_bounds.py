"""The work and memory that one client can cause are bounded, and other clients are served."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.support.memory_peer import Server, settle, simulated
from tidemill.core.limits import (
    REQUEST_BYTES_IN_FLIGHT_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    SLOW_REQUESTS_MAX,
    TURN_S,
)
from tidemill.server.connection.listener_resources import ClientDeadlines
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_groups import DescribeGroupsRequest
from tidemill.wire.generated.heartbeat import HeartbeatResponse
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

MIB = 1 << 20


@simulated
async def test_S10_at_most_64_requests_are_outstanding_and_reading_stops():
    server = Server()
    client = server.connect()
    client.send(b"".join(client.waiting() for _ in range(10_000)))
    assert len(server.waiting) == REQUESTS_IN_FLIGHT_MAX
    assert not client.transport.reading


@pytest.mark.slow
@simulated
async def test_S10_ten_thousand_pipelined_requests_are_all_answered_in_order():
    server = Server()
    client = server.connect()
    client.send(b"".join(client.waiting() for _ in range(10_000)))
    while server.waiting:
        assert len(server.waiting) <= REQUESTS_IN_FLIGHT_MAX
        server.waiting.pop(0).resolve(HeartbeatResponse())
        client.deliver()
    assert client.answers() == list(range(1, 10_001))
    assert client.transport.reading


@simulated
async def test_S10_others_get_a_turn_while_one_client_pipelines():
    server = Server()
    server.handler_cost_s = TURN_S / 5
    greedy, modest = server.connect(address="192.0.2.1"), server.connect(address="192.0.2.2")
    greedy.send(b"".join(greedy.quick() for _ in range(100)))
    assert len(greedy.answers()) < 10
    assert not greedy.transport.reading
    modest.send(modest.quick())
    assert modest.answers() == [1]
    for _ in range(300):
        await asyncio.sleep(0)
    assert len(server.started) == 101
    assert greedy.transport.reading


@simulated
async def test_S10_greedy_clients_share_one_slice_of_each_turn():
    server = Server()
    server.handler_cost_s = TURN_S / 5
    clients = [server.connect(address=f"192.0.2.{n}") for n in range(20)]
    for client in clients:
        client.send(b"".join(client.quick() for _ in range(50)))
    await asyncio.sleep(0)
    before = len(server.started)
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(server.started) - before <= 7
    for _ in range(3000):
        await asyncio.sleep(0)
    assert len(server.started) == 1000
    assert all(client.answers() == list(range(1, 51)) for client in clients)


@simulated
async def test_S11_a_turn_serves_one_client_with_a_costly_request():
    server = Server()
    server.handler_cost_s = 0.1
    clients = [server.connect(address=f"192.0.2.{n}") for n in range(10)]
    for client in clients:
        client.send(client.quick())
        assert client.answers() == [1]
    await settle()
    for client in clients:
        client.send(client.quick())
    await asyncio.sleep(0)
    assert len(server.started) <= 12
    server.handler_cost_s = 0.0
    modest = server.connect(address="192.0.2.99")
    modest.send(modest.quick())
    assert modest.answers() == [1]
    for _ in range(200):
        await asyncio.sleep(0)
    assert all(client.answers() == [2] for client in clients)


@simulated
async def test_S11_a_turn_serves_one_long_request():
    server = Server()
    server.handler_cost_s = 0.1
    clients = [server.connect(address=f"192.0.2.{n}") for n in range(10)]
    for client in clients:
        long = DescribeGroupsRequest(groups=["g" * 100] * 50)
        client.send(client.frame(ApiKey.DESCRIBE_GROUPS, long))
    assert len(server.started) == 1
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(server.started) == 10


@simulated
async def test_S11_reads_of_a_busy_producer_in_one_turn_share_its_slice():
    server = Server()
    server.handler_cost_s = TURN_S / 4
    client = server.connect()
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=bytes(10_000))]
    )
    for _ in range(32):
        client.send(client.frame(ApiKey.PRODUCE, ProduceRequest(topic_data=[data]), version=9))
    assert len(server.started) <= 6
    assert not client.transport.reading
    for _ in range(300):
        await asyncio.sleep(0)
    assert len(server.started) == 32


@simulated
async def test_S10_answers_behind_a_waiting_one_are_bounded_in_bytes():
    server = Server()
    server.group_ids = ["x" * 30_000] * 40
    client = server.connect()
    client.send(client.waiting() + b"".join(client.quick() for _ in range(60)))
    held = server.services.response_memory.used_bytes
    assert REQUEST_BYTES_IN_FLIGHT_MAX <= held < REQUEST_BYTES_IN_FLIGHT_MAX + 2 * MIB
    assert not client.transport.reading
    server.waiting[0].resolve(HeartbeatResponse())
    client.deliver()
    assert client.answers() == list(range(1, 62))
    assert server.services.response_memory.used_bytes == 0


@simulated
async def test_S11_the_number_of_requests_in_several_steps_at_once_is_limited():
    server = Server()
    clients = [server.connect() for _ in range(SLOW_REQUESTS_MAX + 8)]
    for client in clients:
        client.send(client.slow())
    await settle()
    assert len(server.started) == SLOW_REQUESTS_MAX
    server.step_ends.set()
    await settle()
    assert all(client.answers() == [1] for client in clients)


@simulated
async def test_S11_clients_find_leaders_while_many_requests_wait_for_others():
    server = Server()
    for _ in range(SLOW_REQUESTS_MAX):
        client = server.connect()
        client.send(client.slow())
    await settle()
    client = server.connect()
    client.send(client.metadata())
    await settle()
    assert client.answers() == [1]
    server.step_ends.set()
    await settle()


@simulated
async def test_S2_a_request_in_several_steps_is_counted_until_it_has_ended():
    server = Server()
    pool = server.resources.request_memory
    client = server.connect()
    client.send(client.slow())
    await settle()
    assert pool.used_bytes > 0
    server.step_ends.set()
    await settle()
    assert client.answers() == [1]
    assert pool.used_bytes == 0


@simulated
async def test_S40_requests_in_several_steps_wait_while_answers_fill_the_memory():
    server = Server()
    server.services.response_memory = pool = MemoryPool(1000)
    server.step_ends.set()
    pool.take(1000)
    client = server.connect()
    client.send(client.slow())
    await settle()
    assert server.started == []
    pool.give(1)
    await settle()
    assert client.answers() == [1]


def _large(size, sent):
    return struct.pack(">i", size) + b"x" * sent


@simulated
async def test_S2_a_client_without_memory_is_read_again_when_there_is_some():
    server = Server()
    pool = server.resources.request_memory
    pool.take(pool.limit_bytes)
    debtor, client = server.connect(), server.connect()
    debtor.send(_large(200_000, 10_000))
    client.send(_large(200_000, 100_000))
    assert debtor.transport.reading
    assert not client.transport.reading
    assert pool.used_bytes <= pool.limit_bytes + 64 * 1024
    pool.give(pool.limit_bytes)
    assert client.transport.reading
    await settle()
    assert not client.unread


@simulated
async def test_S2_small_requests_are_served_while_the_memory_is_used_up():
    server = Server()
    pool = server.resources.request_memory
    pool.take(pool.limit_bytes)
    client = server.connect()
    client.send(client.quick() + client.quick())
    assert client.answers() == [1, 2]


@simulated
async def test_S2_clients_that_starve_each_other_make_progress_one_after_the_other():
    server = Server()
    server.resources.request_memory.limit_bytes = MIB
    one, other = server.connect(), server.connect()
    for client in (one, other):
        client.send(_large(1_000_000, 70_000))
    for client in (one, other):
        client.send(b"x" * 600_000)
    assert one.transport.reading
    assert not other.transport.reading
    one.transport.abort()
    await settle()
    assert other.transport.reading


@simulated
async def test_S2_S9_a_starved_client_is_spared_when_dropping_another_gave_it_memory():
    server = Server(deadlines=ClientDeadlines(frame_s=30.0))
    server.resources.request_memory.limit_bytes = MIB
    one, other = server.connect(), server.connect()
    for client in (one, other):
        client.send(_large(1_000_000, 70_000))
    for client in (one, other):
        client.send(b"x" * 600_000)
    await asyncio.sleep(31)
    server.sweep()
    assert one.transport.aborted
    assert not other.is_closed
    assert other.transport.reading
