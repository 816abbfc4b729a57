"""Start time, memory, and recovery after a crash; these rows have their own brokers."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.wire_client import end_offset_sum

__all__ = ["memory", "recovery", "start_up"]

START_BAR = Bar("<=", 0.6, Held.VALUE)
IDLE_BAR = Bar("<=", 80, Held.VALUE)
LOADED_BAR = Bar("<=", 150, Held.VALUE)
RECOVERY_BAR = Bar("<=", 3, Held.VALUE)
RECORD_BYTES = 1_000
TAIL_MEGABYTES = 100
"""Written right before each kill, so that no background flush has covered it."""
SETTLE_S = 3.0
RECOVERY_SECONDS_MAX = 300.0
_POLL_S = 0.005


def start_up(lab: Lab, row: str, title: str) -> list[Outcome]:
    """From the start of the process to an open port and to the first answer; no data."""

    def measuring(name: str) -> Callable[[], Sample]:
        def measure() -> Sample:
            with lab.own(name) as (broker,):
                times = broker.start()
            return {"port_s": times.port_open_s, "answer_s": times.answer_s}

        return measure

    ours, theirs = lab.beside_rival(measuring)
    return [
        _outcome(lab, row, title, "s", (ours, theirs), "port_s", START_BAR),
        _outcome(lab, row, f"{title}: first answer", "s", (ours, theirs), "answer_s", None),
    ]


def memory(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Memory when idle and after producing and consuming: anonymous, and with mapped files."""
    ours = [_memory_sample(lab, "tidemill")]
    theirs = [_memory_sample(lab, lab.rival)] if lab.rival else []
    outcomes = []
    for state, bar in (("idle", IDLE_BAR), ("loaded", LOADED_BAR)):
        outcomes += [
            _outcome(
                lab, row, f"{title} {state}, RssAnon", "MB", (ours, theirs), f"{state}_anon", bar
            ),
            _outcome(lab, row, f"{title} {state}, RSS", "MB", (ours, theirs), f"{state}_rss", None),
        ]
    return outcomes


def recovery(lab: Lab, row: str, title: str, *, gigabytes: float) -> list[Outcome]:
    """kill -9 with a log of this size; the time until every acknowledged record is served again."""
    names = ["tidemill", *([lab.rival] if lab.rival else [])]
    lab.need_disk(gigabytes * len(names))
    with lab.own(*names) as brokers:
        crashes = [_crashing(lab, broker, gigabytes) for broker in brokers]
        ours, theirs = lab.compare(crashes[0], crashes[1] if lab.rival else None)
    return [
        _outcome(lab, row, f"{title}, {gigabytes:g} GB", "s", (ours, theirs), "s", RECOVERY_BAR)
    ]


def _memory_sample(lab: Lab, name: str) -> Sample:
    with lab.own(name) as (broker,):
        broker.start()
        time.sleep(SETTLE_S)
        idle = broker.memory()
        topic = lab.new_topic(broker)
        count = lab.sizes.consume_megabytes * 1_000_000 // RECORD_BYTES
        lab.qbench(broker, topic, "produce", count, RECORD_BYTES, 1)
        lab.qbench(broker, topic, "consume", count)
        loaded = broker.memory()
    return {
        "idle_anon": idle.anon_mb,
        "idle_rss": idle.resident_mb,
        "loaded_anon": loaded.anon_mb,
        "loaded_rss": loaded.resident_mb,
    }


def _crashing(lab: Lab, broker: MeasuredBroker, gigabytes: float) -> Callable[[], Sample]:
    broker.start()
    topic = lab.new_topic(broker)
    expected = _fill(lab, broker, topic, int(gigabytes * 1000))

    def measure() -> Sample:
        nonlocal expected
        expected += _fill(lab, broker, topic, TAIL_MEGABYTES)
        broker.kill()
        began = time.monotonic()
        broker.spawn()
        _wait_until_served(broker, topic, expected)
        return {"s": time.monotonic() - began}

    return measure


def _fill(lab: Lab, broker: MeasuredBroker, topic: str, megabytes: int) -> int:
    count = megabytes * 1_000_000 // RECORD_BYTES
    lab.qbench(broker, topic, "produce", count, RECORD_BYTES, 1)
    return count


def _wait_until_served(broker: MeasuredBroker, topic: str, expected: int) -> None:
    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    found = None
    while time.monotonic() < deadline:
        broker.check_alive()
        found = end_offset_sum(broker.address, topic, PARTITIONS)
        if found == expected:
            return
        time.sleep(_POLL_S)
    raise MeasurementFailed(
        f"{broker.name} serves {found} of {expected} acknowledged records after kill -9"
    )


def _outcome(
    lab: Lab,
    row: str,
    title: str,
    unit: str,
    samples: tuple[list[Sample], list[Sample]],
    name: str,
    bar: Bar | None,
) -> Outcome:
    ours, theirs = samples
    return Outcome(
        row=row,
        title=title,
        unit=unit,
        ours=column(ours, name),
        theirs=column(theirs, name),
        against=lab.rival if theirs else "",
        bar=bar,
    )
