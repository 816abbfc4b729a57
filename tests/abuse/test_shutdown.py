"""SIGTERM while clients wait: every client is answered, and the broker ends in time (L4)."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from tests.abuse.requests import FETCH, PRODUCE, batch, fetch, partition_of, produce
from tests.abuse.stranger import wait_until
from tests.abuse.victim import Victim
from tidemill.wire.generated.fetch import FetchRequest
from tidemill.wire.generated.produce import ProduceRequest

STOP_S_MAX = 10.0


@pytest.mark.slow
def test_L4_parked_fetches_are_answered_and_the_broker_ends(tmp_path):
    victim = Victim(tmp_path / "data").start()
    end = victim.end_offset("canary")
    with ExitStack() as stack:
        waiting = []
        for _ in range(100):
            stranger = stack.enter_context(victim.connect())
            stranger.send(stranger.frame(fetch("canary", offset=end, max_wait_ms=30_000), FETCH))
            waiting.append(stranger)
        producer = stack.enter_context(victim.connect())
        stalled = stack.enter_context(victim.connect())
        stalled.send(b"\0\0\0\x64half a request")
        parked = "tidemill_parked_fetches"
        wait_until(lambda: victim.gauges()[parked] == 100, "they are parked")
        lines = len(victim.log_lines())
        producer.send(producer.frame(produce("canary", batch(b"last"), acks=-1), PRODUCE))
        produced = producer.answer(ProduceRequest, PRODUCE)
        assert produced.responses[0].partition_responses[0].error_code == 0
        started = time.monotonic()
        assert victim.process.stop() == 0
        assert time.monotonic() - started < STOP_S_MAX
        for stranger in waiting:
            answer = stranger.answer(FetchRequest, FETCH)
            assert partition_of(answer).error_code == 0
            assert stranger.is_closed()
    assert victim.log_lines()[lines:] == []


@pytest.mark.slow
def test_L4_clients_that_never_read_do_not_keep_the_broker_alive(tmp_path):
    victim = Victim(tmp_path / "data").start()
    with ExitStack() as stack:
        for _ in range(5):
            stranger = stack.enter_context(victim.connect())
            frame = stranger.frame(produce("canary", batch(b"v" * 30_000)), PRODUCE)
            stranger.send(frame)
            greedy = fetch("canary", partitions=[0] * 500, max_bytes=2**31 - 1)
            stranger.try_send(stranger.frame(greedy, FETCH) * 5)
        started = time.monotonic()
        assert victim.process.stop() == 0
        assert time.monotonic() - started < STOP_S_MAX
