"""An error in a callback has no task to fail and no request to refuse."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.coroutines import run
from tidemill.broker import Broker
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import invariant
from tidemill.core.loop.event_loop import new_event_loop, report_broken_invariants


def violate():
    invariant(False, "an offset went back")


def stumble():
    raise ValueError("a bug that endangers nothing")


def reports_of(loop_factory, *callbacks, brokers=1, stopped=0):
    """The reports that brokers on one loop get; the first `stopped` brokers have stopped."""
    reports = []

    async def scenario():
        loop = asyncio.get_running_loop()
        ends = [
            report_broken_invariants(
                loop, lambda part, error, n=n: reports.append((n, part, str(error)))
            )
            for n in range(brokers)
        ]
        for end in ends[:stopped]:
            end()
        for callback in callbacks:
            loop.call_soon(callback)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(scenario(), loop_factory)
    return reports


@pytest.mark.parametrize("loop_factory", [new_event_loop, asyncio.new_event_loop])
def test_R15_an_invariant_that_breaks_in_a_callback_is_reported_and_logged(loop_factory, caplog):
    assert reports_of(loop_factory, violate) == [(0, "a callback", "an offset went back")]
    assert "an offset went back" in caplog.text


def test_other_errors_of_callbacks_are_only_logged(caplog):
    assert reports_of(new_event_loop, stumble) == []
    assert "endangers nothing" in caplog.text


def test_each_broker_on_a_loop_is_told_until_it_stops():
    reports = reports_of(new_event_loop, violate, brokers=3, stopped=1)
    assert [number for number, _part, _error in reports] == [1, 2]


def test_R15_a_broker_whose_callback_broke_an_invariant_stops(tmp_path, run, caplog):
    async def scenario():
        values = {"data.dir": str(tmp_path), "listeners": "127.0.0.1:0"}
        broker, failed = Broker(broker_config(values=values)), asyncio.Event()
        broker.on_failure(failed.set)
        await broker.start()
        asyncio.get_running_loop().call_soon(violate)
        await failed.wait()
        await broker.stop()
        return broker.failed

    with caplog.at_level(logging.CRITICAL):
        assert run(scenario())
    assert "the broker stops" in caplog.text
