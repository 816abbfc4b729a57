"""Requests start in order and answers leave in order; a lost connection gives all memory back."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from tests.support.memory_peer import Server, settle, simulated
from tidemill.core.errors import InvariantViolation
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.heartbeat import HeartbeatResponse
from tidemill.wire.generated.produce import ProduceRequest

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
async def test_T46_a_commit_behind_a_produce_does_not_count_without_it():
    server = Server()
    sent_all, sent_none = server.connect(), server.connect()
    for client, produce in (
        (sent_all, b""),
        (sent_none, sent_none.frame(ApiKey.PRODUCE, ProduceRequest(acks=1), 9)),
    ):
        client.send(client.slow() + produce + client.commit())
        await settle()
        client.connection.connection_lost(None)
    assert server.started.count("OffsetCommitRequest") == 1
    assert "ProduceRequest" not in server.started


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
        assert server.resources.request_memory.used_bytes == 0
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
def test_S7_T7_an_unknown_api_or_version_closes_the_connection(api_key, version):
    @simulated
    async def run():
        server = Server()
        client = server.connect()
        client.send(struct.pack(">ihhih", 10, api_key, version, 7, -1))
        assert client.is_closed
        assert client.answers() == []

    run()


@simulated
async def test_S7_bytes_after_the_last_field_close_the_connection():
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
async def test_T9_a_failed_request_that_wants_no_answer_closes_the_connection():
    server = Server()
    client = server.connect()
    client.send(client.waiting() + client.quick())
    server.waiting[0].resolve(None)
    assert client.is_closed
    assert client.answers() == []


def test_S52_a_peer_gets_one_log_line_per_minute(caplog):
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
async def test_S40_a_client_that_reads_no_answers_is_dropped_sooner_when_memory_for_them_is_short():
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


@simulated
async def test_S40_a_lost_connection_abandons_its_parked_fetches():
    server = Server()
    parked = server.services.parked
    client = server.connect()
    client.send(client.waiting())
    server.watchers = {}
    client.send(client.waiting())
    assert (len(server.watchers), len(parked), parked.parked_partitions) == (1, 1, 1)
    client.transport.abort()
    await settle()
    assert (len(server.watchers), len(parked), parked.parked_partitions) == (0, 0, 0)
    assert not server.waiting[1].resolved


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
    assert server.resources.request_memory.used_bytes > 0
    client.transport.abort()
    await settle()
    assert server.resources.request_memory.used_bytes == 0
    assert not server.resources.admission.connections


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
async def test_an_answer_that_cannot_be_encoded_closes_the_connection_and_nothing_else():
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
