"""Requests start in order, answers leave in order, and nothing that a client does is unbounded."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from tests.unit.server.memory_peer import Server, settle, simulated
from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import (
    REQUEST_BYTES_IN_FLIGHT_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    SLOW_REQUESTS_MAX,
    TURN_S,
)
from tidemill.server.listener_state import Deadlines
from tidemill.server.memory_pool import MemoryPool
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_groups import DescribeGroupsRequest
from tidemill.wire.generated.heartbeat import HeartbeatResponse
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

MIB = 1 << 20
HUGE = 1 << 40


# --- order ---------------------------------------------------------------------------------------


@simulated
async def test_T8_answers_leave_in_the_order_of_their_requests():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + client.quick() + client.waiting() + client.quick())
    first, second = server.waiting
    second.resolve(HeartbeatResponse())
    assert client.answers() == []
    first.resolve(HeartbeatResponse())
    assert client.answers() == [1, 2, 3, 4]


@simulated
async def test_T8_pipelined_requests_start_before_older_ones_are_answered():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + client.waiting() + client.waiting())
    assert len(server.waiting) == 3


@simulated
async def test_T8_nothing_starts_while_a_request_in_several_steps_runs():
    server = Server()
    client = server.connect()
    client.send(client.slow() + client.quick())
    await settle()
    assert server.started == ["ListGroupsRequest"]
    server.step_ends.set()
    await settle()
    assert client.answers() == [1, 2]


@simulated
async def test_T8_a_request_in_several_steps_behind_a_waiting_one_lets_later_ones_start():
    server = Server()
    client = server.connect()
    server.step_ends.set()
    client.send(client.waiting() + client.slow() + client.quick())
    await settle()
    assert len(server.started) == 3
    assert client.answers() == []
    server.waiting[0].resolve(HeartbeatResponse())
    assert client.answers() == [1, 2, 3]


@simulated
async def test_requests_that_arrive_byte_by_byte_are_answered():
    server = Server()
    client = server.connect()
    for byte in client.quick() + client.quick():
        client.send(bytes([byte]))
    assert client.answers() == [1, 2]


@simulated
async def test_small_answers_of_one_read_leave_in_one_write():
    server = Server()
    client = server.connect()
    client.send(b"".join(client.quick() for _ in range(50)))
    assert client.answers() == list(range(1, 51))
    assert client.transport.writes == 1


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 9, 2**31 - 1, 0x47455420, 0x16030100])
def test_S1_T10_a_senseless_size_closes_before_anything_is_kept(size, caplog):
    @simulated
    async def run():
        server = Server()
        client = server.connect()
        client.send(struct.pack(">i", size))
        assert client.is_closed
        assert server.state.request_memory.used_bytes == 0
        assert server.services.telemetry.connections_closed_by_fault == 1

    run()
    assert len(caplog.records) == 1


@simulated
async def test_T2_ApiVersions_in_an_unknown_version_is_answered_in_version_0():
    server = Server()
    client = server.connect()
    client.send(struct.pack(">ihhih", 10, 18, 99, 7, -1))
    assert bytes(client.transport.received) == struct.pack(">iihihhh", 16, 7, 35, 1, 18, 0, 4)
    assert not client.is_closed


@simulated
async def test_T2_T8_the_answer_for_an_unknown_version_waits_for_older_ones():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + struct.pack(">ihhih", 10, 18, 99, 7, -1))
    assert client.answers() == []
    server.waiting[0].resolve(HeartbeatResponse())
    assert client.answers() == [1, 7]


@pytest.mark.parametrize(("api_key", "version"), [(12, 99), (999, 0), (-1, 0), (0, 9), (12, -1)])
def test_S7_T7_an_unknown_api_or_version_closes(api_key, version):
    @simulated
    async def run():
        server = Server()
        client = server.connect()
        client.send(struct.pack(">ihhih", 10, api_key, version, 7, -1))
        assert client.is_closed
        assert client.answers() == []

    run()


@simulated
async def test_S7_bytes_after_the_last_field_close():
    server = Server()
    client = server.connect()
    frame = bytearray(client.quick() + b"\0")
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    client.send(frame)
    assert client.is_closed


@simulated
async def test_what_was_answered_before_a_violation_still_leaves():
    server = Server()
    client = server.connect()
    client.send(client.quick() + struct.pack(">i", -1))
    assert client.answers() == [1]
    assert client.is_closed


@simulated
async def test_a_refusal_is_an_answer():
    server = Server()
    client = server.connect()
    client.send(client.refused())
    assert client.answers() == [1]


@simulated
async def test_T9_no_answer_but_a_closed_connection_for_a_failed_request_that_wants_none():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + client.quick())
    server.waiting[0].resolve(None)
    assert client.is_closed
    assert client.answers() == []


def test_S52_one_line_per_peer_and_minute_whatever_it_does(caplog):
    @simulated
    async def run():
        server = Server()
        for _ in range(20):
            server.connect(address="192.0.2.1").send(b"GET / HTTP/1.1\r\n")
        server.connect(address="192.0.2.2").send(b"\x16\x03\x01\x02\x00")
        assert server.services.telemetry.connections_closed_by_fault == 21
        await asyncio.sleep(61)
        server.connect(address="192.0.2.1").send(b"GET / HTTP/1.1\r\n")

    run()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "looks like HTTP" in lines[0]
    assert "looks like TLS" in lines[1]


# --- bounds --------------------------------------------------------------------------------------


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
async def test_S11_of_clients_with_costly_requests_one_is_served_in_a_turn():
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
async def test_S11_of_long_requests_one_is_served_in_a_turn():
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
async def test_S11_only_so_many_requests_in_several_steps_run_at_once():
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
async def test_S2_a_client_without_memory_is_not_read_until_there_is_some():
    server = Server()
    pool = server.state.request_memory
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
    pool = server.state.request_memory
    pool.take(pool.limit_bytes)
    client = server.connect()
    client.send(client.quick() + client.quick())
    assert client.answers() == [1, 2]


@simulated
async def test_S2_of_clients_that_starve_each_other_one_goes_on_and_then_the_next():
    server = Server()
    server.state.request_memory.limit_bytes = MIB
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
    server = Server(deadlines=Deadlines(frame_s=30.0))
    server.state.request_memory.limit_bytes = MIB
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
    client.transport.take(299_000)  # the rest is little enough to go on
    client.send(struct.pack(">i", -1))
    assert client.is_closed
    assert not client.transport.aborted
    await asyncio.sleep(61)
    server.sweep()
    await settle()
    assert client.transport.aborted
    assert not server.state.connections


def test_an_idle_client_is_closed_without_a_line(caplog):
    @simulated
    async def run():
        server = Server(deadlines=Deadlines(idle_s=600.0))
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
async def test_T11_nobody_is_throttled_for_longer_than_30_seconds():
    server = Server()
    client = server.connect()
    server.throttle_ms = 10**9
    client.send(client.quick())
    client.send(client.quick())
    await asyncio.sleep(31)
    assert client.answers() == [1, 2]


# --- memory of answers ---------------------------------------------------------------------------


@simulated
async def test_S40_answers_that_the_client_has_not_taken_are_accounted_for():
    server = Server()
    server.group_ids = ["x" * 30_000] * 10
    pool = server.services.response_memory
    client = server.connect(window=0)
    client.send(client.quick())
    assert pool.used_bytes >= 300_000
    client.transport.take(HUGE)
    assert pool.used_bytes == 0


@simulated
async def test_S40_answers_of_a_client_that_reads_cost_nothing():
    server = Server()
    server.group_ids = ["x" * 30_000] * 10
    client = server.connect()
    client.send(client.quick())
    assert client.answers() == [1]
    assert server.services.response_memory.used_bytes == 0


@simulated
async def test_S40_a_lost_connection_gives_the_memory_of_its_answers_back():
    server = Server()
    server.group_ids = ["x" * 30_000] * 10
    client = server.connect(window=100_000)
    client.send(client.quick() + client.waiting() + client.quick())
    client.transport.abort()
    await settle()
    assert server.services.response_memory.used_bytes == 0


@simulated
async def test_S40_who_takes_no_answers_is_dropped_sooner_when_memory_for_them_is_short():
    server = Server()
    server.services.response_memory = pool = MemoryPool(MIB)
    server.group_ids = ["x" * 30_000] * 10
    clients = [server.connect(window=0) for _ in range(4)]
    for client in clients:
        client.send(client.quick())
    assert pool.is_exhausted
    await asyncio.sleep(11)
    server.sweep()
    assert [client.transport.aborted for client in clients] == [True, False, False, False]
    assert not pool.is_exhausted


# --- losing a connection -------------------------------------------------------------------------


class Parked:
    watched_partitions = 3

    def __init__(self):
        self.abandoned = 0

    def look(self):
        raise AssertionError("nobody poked")

    def finish(self):
        raise AssertionError("nobody wants it")

    def abandon(self):
        self.abandoned += 1


@simulated
async def test_S40_a_lost_connection_takes_its_parked_fetches_along():
    server = Server()
    ready = server.services.ready
    client = server.connect()
    client.send(client.waiting() + client.waiting())
    parked = Parked()
    assert ready.try_park(server.waiting[1], parked)
    client.transport.abort()
    await settle()
    assert (parked.abandoned, len(ready), ready.parked_partitions) == (1, 0, 0)


@simulated
async def test_an_answer_that_comes_after_the_connection_was_lost_is_harmless():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + client.slow())
    await settle()
    client.transport.abort()
    await settle()
    server.waiting[0].resolve(HeartbeatResponse())
    server.step_ends.set()
    await settle()
    assert server.failures == []
    assert client.answers() == []


@simulated
async def test_a_lost_connection_is_forgotten_and_gives_its_request_memory_back():
    server = Server()
    client = server.connect()
    client.send(struct.pack(">i", 1000) + b"x" * 500)
    assert server.state.request_memory.used_bytes > 0
    client.transport.abort()
    await settle()
    assert server.state.request_memory.used_bytes == 0
    assert not server.state.connections


# --- our own bugs --------------------------------------------------------------------------------


def test_a_bug_in_a_handler_costs_one_connection_and_one_line(caplog):
    @simulated
    async def run():
        server = Server()
        server.bug = ZeroDivisionError("oh")
        for _ in range(3):
            client = server.connect()
            client.send(client.quick())
            assert client.is_closed
        slow = server.connect()
        slow.send(slow.slow())
        await settle()
        assert slow.is_closed
        assert server.services.telemetry.unhandled_errors == 4
        assert server.failures == []

    run()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@simulated
async def test_an_answer_that_cannot_be_written_closes_and_spares_whoever_resolved_it():
    server = Server()
    client = server.connect()
    client.send(client.waiting())
    server.waiting[0].resolve(HeartbeatResponse(error_code="no number"))
    assert client.is_closed
    assert server.services.telemetry.unhandled_errors == 1


@simulated
async def test_a_broken_invariant_stops_the_broker():
    server = Server()
    server.bug = InvariantViolation("offsets went back")
    client = server.connect()
    with pytest.raises(InvariantViolation):
        client.send(client.quick())
    assert [str(error) for error in server.failures] == ["offsets went back"]


# --- stopping ------------------------------------------------------------------------------------


@simulated
async def test_draining_starts_nothing_new_and_answers_what_was_started():
    server = Server()
    client = server.connect()
    client.send(client.waiting())
    client.connection.drain()
    client.send(client.quick())
    assert not client.connection.is_drained
    server.waiting[0].resolve(HeartbeatResponse())
    assert client.answers() == [1]
    assert client.connection.is_drained
