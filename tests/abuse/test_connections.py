"""Connections that stall, pipeline or flood (S9, S10, S12, S13), on live sockets."""

from __future__ import annotations

import asyncio
import resource
import struct
import threading
import time
from contextlib import contextmanager

import pytest

from tests.abuse.requests import (
    CREATE_TOPICS,
    FETCH,
    PRODUCE,
    batch,
    code_of,
    create,
    fetch,
    produce,
)
from tests.abuse.stranger import Stranger, wait_until
from tidemill.broker import Broker
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import UserError
from tidemill.server.connection.listener_resources import ClientDeadlines
from tidemill.testing import broker
from tidemill.wire.generated.api_versions import ApiVersionsRequest
from tidemill.wire.generated.produce import ProduceRequest

# --- S9: deadlines -------------------------------------------------------------------------------


class HastyBroker:
    """A broker in this process with very short deadlines."""

    def __init__(self, running):
        self.running = running
        self.resources = running.broker.serving.resources
        self.resources.deadlines = ClientDeadlines(
            frame_s=0.2, write_stall_s=0.2, write_stall_pressed_s=0.2, idle_s=60.0
        )

    @property
    def bootstrap(self):
        return self.running.bootstrap

    def sweep(self):
        loop = self.running._loop
        loop.call_soon_threadsafe(self.running.broker.serving.listener.sweep)

    def wait_until_dropped(self):
        def all_are_dropped():
            self.sweep()
            return not self.resources.admission.connections

        wait_until(all_are_dropped, "the connection is dropped")


@pytest.fixture
def hasty():
    with broker(num_partitions=1) as running:
        yield HastyBroker(running)


def _trickle(hasty, stranger, frame):
    for byte in frame:
        stranger.send(bytes([byte]))
        hasty.sweep()
        time.sleep(0.005)


@pytest.mark.slow
def test_S9_a_request_that_arrives_byte_by_byte_is_dropped(hasty):
    with Stranger(hasty.bootstrap) as stranger:
        frame = stranger.frame(produce("t", batch(b"x" * 1000)), PRODUCE)
        with pytest.raises(ConnectionError):
            _trickle(hasty, stranger, frame)
    hasty.wait_until_dropped()
    assert hasty.resources.request_memory.used_bytes == 0


@pytest.mark.slow
def test_S9_a_client_that_never_reads_is_dropped_and_its_answers_with_it(hasty):
    pool = hasty.resources.services.response_memory
    with Stranger(hasty.bootstrap) as stranger, Stranger(hasty.bootstrap) as producer:
        producer.call(create("t"), CREATE_TOPICS)
        assert code_of(producer.call(produce("t", batch(b"v" * 30_000)), PRODUCE)) == 0
        producer.close()
        greedy = fetch("t", partitions=[0] * 200, max_bytes=2**31 - 1)
        stranger.try_send(stranger.frame(greedy, FETCH) * 20)
        wait_until(lambda: pool.used_bytes > 0, "answers wait")
        hasty.wait_until_dropped()
    assert pool.used_bytes == 0


# --- S10: pipelining -----------------------------------------------------------------------------


def _send_in_background(stranger, data):
    sender = threading.Thread(target=stranger.send, args=(data,))
    sender.start()
    return sender


@pytest.mark.slow
def test_S10_T8_ten_thousand_pipelined_requests_are_answered_in_order(victim):
    with victim.connect() as stranger:
        frames = b"".join(stranger.frame(ApiVersionsRequest(), 0) for _ in range(10_000))
        sender = _send_in_background(stranger, frames)
        for number in range(1, 10_001):
            assert struct.unpack_from(">i", stranger.read_frame())[0] == number
            if number % 2500 == 0:
                victim.check_canary()
        sender.join()


@pytest.mark.slow
def test_S10_T8_requests_that_wait_for_the_disk_are_answered_in_order(victim):
    with victim.connect() as stranger:
        one = produce("canary", batch(b"x"), acks=-1)
        frames = b"".join(stranger.frame(one, PRODUCE) for _ in range(2_000))
        sender = _send_in_background(stranger, frames)
        last = -1
        for number in range(1, 2_001):
            answer = stranger.answer(ProduceRequest, PRODUCE)
            offset = answer.responses[0].partition_responses[0].base_offset
            assert (stranger.last_correlation_id, code_of(answer)) == (number, 0)
            assert offset > last
            last = offset
        sender.join()


def test_S10_T8_a_parked_fetch_holds_back_later_answers(victim):
    with victim.connect() as stranger:
        end = victim.end_offset("canary")
        stranger.send(
            stranger.frame(fetch("canary", offset=end, max_wait_ms=30_000), FETCH)
            + stranger.frame(ApiVersionsRequest(), 0)
        )
        assert not stranger.is_closed(within_s=0.05)
        victim.check_canary()
        assert struct.unpack_from(">i", stranger.read_frame())[0] == 1
        assert struct.unpack_from(">i", stranger.read_frame())[0] == 2


def test_T9_a_failed_acks_0_closes_the_connection_and_a_good_one_is_silent(victim):
    with victim.connect() as stranger:
        stranger.send(stranger.frame(produce("canary", batch(b"x"), acks=0), PRODUCE))
        assert code_of(stranger.call(produce("canary", batch(b"y")), PRODUCE)) == 0
        stranger.send(stranger.frame(produce("canary", batch(b"x"), acks=0, partition=9), PRODUCE))
        assert stranger.is_closed()


# --- S12: floods ---------------------------------------------------------------------------------


def _survivors(strangers):
    alive = []
    for stranger in strangers:
        try:
            stranger.socket.sendall(stranger.frame(ApiVersionsRequest(), 0))
            stranger.read_frame()
        except OSError:
            continue
        alive.append(stranger)
    return alive


@contextmanager
def _flood(bootstrap, sources):
    strangers = [Stranger(bootstrap, source) for source in sources]
    try:
        yield strangers
    finally:
        for stranger in strangers:
            stranger.close()


def test_S12_connections_beyond_the_limit_are_closed_and_room_comes_back(caplog):
    with broker(max_connections=8) as running:
        with _flood(running.bootstrap, ["127.0.0.1"] * 50) as strangers:
            assert len(_survivors(strangers)) == 8
        wait_until(
            lambda: not running.broker.serving.resources.admission.connections, "they are gone"
        )
        with Stranger(running.bootstrap) as stranger:
            stranger.call(ApiVersionsRequest(), 0)
    assert len(caplog.records) == 1


def test_S12_the_connections_of_one_address_are_limited():
    with broker(max_connections=20, max_connections_per_ip=5) as running:
        sources = ["127.0.0.1"] * 30 + ["127.0.0.2"] * 3
        with _flood(running.bootstrap, sources) as strangers:
            assert [one.source for one in _survivors(strangers)] == sources[:5] + sources[-3:]


# --- S13: descriptors ----------------------------------------------------------------------------


def test_S13_without_descriptors_connections_are_refused_and_the_others_served(victim):
    pid = victim.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with victim.connect() as before:
        code_of(before.call(produce("canary", batch(b"x")), PRODUCE))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (victim.descriptors() + 5, limits[1]))
        try:
            cpu_s, started = victim.cpu_s(), time.monotonic()
            with _flood(victim.bootstrap, ["127.0.0.1"] * 60):
                while time.monotonic() - started < 0.5:
                    assert code_of(before.call(produce("canary", batch(b"x")), PRODUCE)) == 0
                    time.sleep(0.01)
                assert victim.cpu_s() - cpu_s < 0.4
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: victim.gauges()["tidemill_connections"] == 0, "they are gone")
    victim.check_canary()


def _config(tmp_path):
    return broker_config(values={"listeners": "127.0.0.1:0", "data.dir": str(tmp_path)})


def test_S13_connections_leave_descriptors_for_files(run, tmp_path):
    async def scenario():
        limited = Broker(_config(tmp_path), descriptors_max=400)
        endpoint = await limited.start()
        pairs = [await asyncio.open_connection(*endpoint) for _ in range(80)]
        for _, writer in pairs:
            writer.write(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        answers = [await reader.read(4) for reader, _ in pairs]
        for _, writer in pairs:
            writer.close()
        await limited.stop()
        return sum(map(bool, answers))

    assert run(scenario()) == 400 - 100 - 256 - 5  # for other brokers


def test_S12_clients_that_take_every_connection_leave_those_of_other_brokers(run, tmp_path):
    async def scenario():
        limited = Broker(_config(tmp_path), descriptors_max=400)
        endpoint = await limited.start()
        clients = [await asyncio.open_connection(*endpoint) for _ in range(60)]
        internal = limited.cluster.image.brokers[0].internal
        assert internal not in (None, endpoint)
        reader, broker = await asyncio.open_connection(*internal)
        broker.write(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        answer = await reader.read(4)
        for _, writer in [*clients, (reader, broker)]:
            writer.close()
        await limited.stop()
        return len(answer)

    assert run(scenario()) == 4


def test_S13_a_descriptor_limit_that_is_too_low_is_reported_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match="ulimit"):
        Broker(_config(tmp_path), descriptors_max=300)
