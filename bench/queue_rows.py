"""Views and held records. Kafka has neither, so bars are absolute or against our own plain rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.topics import create_topics, delete_topic
from bench.wire_client import log_bytes

__all__ = [
    "delayed_produce",
    "lateness",
    "lateness_ms",
    "looked_mb_per_core_s",
    "release_rate",
    "releases",
    "view_look",
    "view_second_reader",
]

RECORD_BYTES = 100
CLASSES = 100
"""Values of the header that a view chooses one of: 1 %."""
CLUSTERED_RECORDS = 10_000
"""Records in a row of one class, where a later reader can jump over the others."""
VIEW_FILTER = "class = 7"
LOOK_BAR = Bar(">=", 300, Held.VALUE)
SECOND_READER_BAR = Bar(">=", 3)
DELAY_HEADER: Final = "tidemill.delay-ms"
FAR_MS = 3_600_000
"""A delay that does not end within the row."""
DELAYED_BAR = Bar(">=", 0.3)
RELEASE_DELAY_MS = 8_000
"""Longer than producing takes, shorter than the driver waits for its first record."""
RELEASE_BAR = Bar(">=", 50_000, Held.VALUE)
LATENESS_DELAY_MS = 1_000
LATENESS_RATE = 10_000
LATENESS_BAR = Bar("<=", 100, Held.VALUE)
HELD_MS_MIN = 500
"""A released record comes later than that after its reader has begun."""
CLOCK_MS_MAX = 2
"""Times in milliseconds are rounded twice."""


# --- views ---------------------------------------------------------------------------------------


def view_look(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Read a view that shows 1 % of the records, evenly spread: each batch must be looked at."""

    def measure(broker: MeasuredBroker, topic: str, count: int) -> Sample:
        size_mb = log_bytes(broker.address, topic, PARTITIONS) / 1e6
        sample = _read_view(lab, broker, topic, count // CLASSES)
        return {"mb_per_core_s": looked_mb_per_core_s(size_mb, sample["cpu_s"])}

    ours = _with_classes(lab, every=1, measure=measure)
    return [
        Outcome(
            row=row,
            title=title,
            unit="MB/s per core",
            ours=column(ours, "mb_per_core_s"),
            bar=LOOK_BAR,
            note="stored bytes looked at, by the CPU time of the broker",
        )
    ]


def view_second_reader(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Read a view again whose matches lie together: what had no match is jumped over."""

    def measure(broker: MeasuredBroker, topic: str, count: int) -> Sample:
        size_mb = log_bytes(broker.address, topic, PARTITIONS) / 1e6
        shown = count // CLASSES
        name = _make_view(lab, broker, topic)
        try:
            readers = [lab.qbench(broker, name, "consume", shown) for _ in range(2)]
        finally:
            delete_topic(broker.address, name)
        rates = [looked_mb_per_core_s(size_mb, one["cpu_s"]) for one in readers]
        return {"first": rates[0], "second": rates[1]}

    samples = _with_classes(lab, every=CLUSTERED_RECORDS, measure=measure)
    return [
        Outcome(
            row=row,
            title=title,
            unit="MB/s per core",
            ours=column(samples, "second"),
            theirs=column(samples, "first"),
            against="first reader",
            bar=SECOND_READER_BAR,
        )
    ]


def _with_classes(
    lab: Lab, *, every: int, measure: Callable[[MeasuredBroker, str, int], Sample]
) -> list[Sample]:
    """Samples on one topic whose records have a class each, the same for `every` in a row."""
    cycle_records = CLASSES * every
    count = max(1, lab.sizes.records(RECORD_BYTES) // cycle_records) * cycle_records
    broker = lab.shared("tidemill")
    with lab.topic(broker) as topic:
        header = f"header=class:0:{CLASSES}:{every}"
        lab.qbench(broker, topic, "produce", count, RECORD_BYTES, 1, header)
        samples, _ = lab.compare(lambda: measure(broker, topic, count), None)
    return samples


def _make_view(lab: Lab, broker: MeasuredBroker, topic: str) -> str:
    """A view that nobody has read: what has no match is remembered by its name and filter."""
    name = lab.unused_name()
    # Another text for each view: ranges are kept by the selector, for all views that have it.
    number = int(name.rpartition("-")[2])
    keys = {"tidemill.view.of": topic, "tidemill.view.filter": f"{VIEW_FILTER} AND {number} > 0"}
    create_topics(broker.address, [name], partitions=PARTITIONS, config=keys)
    return name


def _read_view(lab: Lab, broker: MeasuredBroker, topic: str, shown: int) -> dict[str, float]:
    name = _make_view(lab, broker, topic)
    try:
        return lab.qbench(broker, name, "consume", shown)
    finally:
        delete_topic(broker.address, name)


def looked_mb_per_core_s(size_mb: float, cpu_s: float) -> float:
    """What one core looks at in a second."""
    return size_mb / max(cpu_s, 0.01)  # CPU time comes in ticks of 10 ms


# --- held records --------------------------------------------------------------------------------


def delayed_produce(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Produce records that are held for long, against the same records without a delay."""
    count = lab.sizes.records(RECORD_BYTES) // 2

    def producing(header: str) -> Callable[[], Sample]:
        def measure() -> Sample:
            broker = lab.shared("tidemill")
            with lab.topic(broker) as topic:
                return lab.qbench(broker, topic, "produce", count, RECORD_BYTES, "all", header)

        return measure

    _check_held(lab)
    held = producing(f"header={DELAY_HEADER}:{FAR_MS}:1:1")
    plain = producing(f"header=plain.delay-ms:{FAR_MS}:1:1")  # as many bytes, and no meaning
    of_held, of_plain = lab.compare(held, plain)
    return [
        Outcome(
            row=row,
            title=title,
            unit="M rec/s",
            ours=column(of_held, "records_per_s", 1e-6),
            theirs=column(of_plain, "records_per_s", 1e-6),
            against="without a delay",
            bar=DELAYED_BAR,
        )
    ]


def _check_held(lab: Lab) -> None:
    """Fail if a record with a delay is shown: its rate would be that of a plain one."""
    broker = lab.shared("tidemill")
    with lab.topic(broker) as topic:
        header = f"header={DELAY_HEADER}:{FAR_MS}:1:1"
        lab.qbench(broker, topic, "produce", 1, RECORD_BYTES, "all", header)
        try:
            lab.qbench(broker, topic, "consume", 1)
        except MeasurementFailed:
            return  # as it should be: there was nothing to read
    raise MeasurementFailed("records with a delay are not held")


def releases(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Records that become due one after the other as fast as they were produced."""
    count = lab.sizes.latency_records * 100
    header = f"header={DELAY_HEADER}:{RELEASE_DELAY_MS}:1:1"

    def measure() -> Sample:
        broker = lab.shared("tidemill")
        with lab.topic(broker) as topic:
            lab.qbench(broker, topic, "produce", count, RECORD_BYTES, "all", header)
            sample = lab.qbench(broker, topic, "consume", count)
        return {"per_s": release_rate(sample)}

    ours, _ = lab.compare(measure, None)
    return [
        Outcome(row=row, title=title, unit="rec/s", ours=column(ours, "per_s"), bar=RELEASE_BAR)
    ]


def release_rate(consumed: Sample) -> float:
    """Records per second from the first that came to the last.

    Fails if it came at once: then the broker has not held it.
    """
    if consumed["first_ms"] < HELD_MS_MIN:
        raise MeasurementFailed("records came at once: they were not held")
    took_s = consumed["seconds"] - consumed["first_ms"] / 1e3
    return consumed["got"] / max(took_s, 1e-3)


def lateness(lab: Lab, row: str, title: str) -> list[Outcome]:
    """How long after its time a record comes, at a steady rate."""
    header = f"header={DELAY_HEADER}:{LATENESS_DELAY_MS}:1:1"

    def measure() -> Sample:
        broker = lab.shared("tidemill")
        with lab.topic(broker) as topic:
            seconds = lab.sizes.e2e_seconds
            sample = lab.qbench(
                broker, topic, "e2e", LATENESS_RATE, seconds, RECORD_BYTES, "all", header
            )
        return {share: lateness_ms(sample[f"{share}_us"]) for share in ("p50", "p99")}

    ours, _ = lab.compare(measure, None)
    return [
        Outcome(row=row, title=f"{title} {share}", unit="ms", ours=column(ours, share), bar=bar)
        for share, bar in (("p50", None), ("p99", LATENESS_BAR))
    ]


def lateness_ms(latency_us: float) -> float:
    """Of a record that took so long from its sender to its reader; fails if it came early."""
    late_ms = latency_us / 1e3 - LATENESS_DELAY_MS
    if late_ms < -CLOCK_MS_MAX:
        raise MeasurementFailed(f"a record came {-late_ms:.0f} ms early")
    return late_ms
