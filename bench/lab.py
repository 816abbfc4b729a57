"""The lab that rows measure in: the brokers, their directories, the sizes of this run.

Rows that compare rates share one broker of each kind, started on first use, so that a JVM warms up
only once. Rows about starting, memory, crashes or many partitions have their own brokers; the
shared ones are stopped first, so that nothing else uses the machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bench import qbench
from bench.judgement import Sample, alternate
from bench.processes import Measured, MeasuredBroker, MeasurementFailed, Subject
from bench.topics import create_topics, delete_topic

__all__ = ["PARTITIONS", "Lab", "Sizes"]

PARTITIONS = 4
SMALL_RECORD_BYTES = 1_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The load of one sample."""

    rounds: int
    small_megabytes: int
    """Payload of one throughput sample of small records, which take longer per byte."""
    large_megabytes: int
    consume_megabytes: int
    latency_records: int
    e2e_seconds: int
    raw_seconds: float
    backlog_gb: tuple[float, float]
    idle_topics: int
    idle_connections: int
    spark_records: int
    """Small records of one sample through Spark; a fifth as many large ones."""

    def records(self, size: int) -> int:
        """The number of records of this size in one throughput sample."""
        small = size < SMALL_RECORD_BYTES
        return (self.small_megabytes if small else self.large_megabytes) * 1_000_000 // size


@final
class Lab:
    """Owns every broker that a run starts, and every byte it writes; `close` removes them all."""

    def __init__(
        self,
        subjects: list[Subject],
        sizes: Sizes,
        scratch: Path,
        tick: Callable[[], None],
        *,
        rival: str = "",
    ) -> None:
        self.sizes = sizes
        scratch.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="run-", dir=scratch))
        self._subjects = {subject.name: subject for subject in subjects}
        self.rival = rival
        """The subject that ours is compared with: Kafka, another revision, or nothing."""
        self._shared: dict[str, MeasuredBroker] = {}
        self._numbers = itertools.count(1)
        self.tick = tick
        """Called after each sample, to show progress."""

    @property
    def has_kafka(self) -> bool:
        return self.rival == "kafka"

    # --- brokers ---------------------------------------------------------------------------------

    def shared(self, name: str) -> MeasuredBroker:
        """The shared running broker of this kind, for rows that compare rates."""
        if name not in self._shared:
            self._shared[name] = self._new(name)
            self._shared[name].start()
        return self._shared[name]

    @contextmanager
    def own(self, *names: str) -> Iterator[list[MeasuredBroker]]:
        """Brokers for one row alone, not started; their data is removed afterwards."""
        self.stop_shared()
        with ExitStack() as stack:
            brokers = []
            for name in names:
                broker = self._new(name)
                stack.callback(self._remove, broker)
                brokers.append(broker)
            yield brokers

    def stop_shared(self) -> None:
        for broker in self._shared.values():
            self._remove(broker)
        self._shared.clear()

    def close(self) -> None:
        self.stop_shared()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _new(self, name: str) -> MeasuredBroker:
        return MeasuredBroker(
            self._subjects[name], self.directory / f"{name}-{next(self._numbers)}"
        )

    def _remove(self, broker: MeasuredBroker) -> None:
        broker.stop()
        shutil.rmtree(broker.data_dir, ignore_errors=True)

    # --- samples ---------------------------------------------------------------------------------

    def beside_rival(
        self, measuring: Callable[[str], Callable[[], Sample]]
    ) -> tuple[list[Sample], list[Sample]]:
        """Compare ours with the rival, by name; without one, ours alone."""
        return self.compare(measuring("tidemill"), measuring(self.rival) if self.rival else None)

    def compare(
        self, ours: Callable[[], Sample], theirs: Callable[[], Sample] | None
    ) -> tuple[list[Sample], list[Sample]]:
        """Warm both up with a sample that does not count, then take rounds of A B B A."""
        for warm_up in (ours, theirs):
            if warm_up is not None:
                self._ticking(warm_up)()
        return alternate(
            self.sizes.rounds, self._ticking(ours), self._ticking(theirs) if theirs else None
        )

    def _ticking(self, measure: Callable[[], Sample]) -> Callable[[], Sample]:
        def ticking() -> Sample:
            sample = measure()
            self.tick()
            return sample

        return ticking

    @contextmanager
    def topic(self, broker: MeasuredBroker, *, flush: str = "os") -> Iterator[str]:
        """A new topic of four partitions; afterwards it is deleted and its pages are written."""
        name = self.new_topic(broker, flush=flush)
        try:
            yield name
        finally:
            delete_topic(broker.address, name)
            os.sync()

    def unused_name(self) -> str:
        """A name for a topic."""
        return f"bench-{next(self._numbers)}"

    def new_topic(self, broker: MeasuredBroker, *, flush: str = "os") -> str:
        name = self.unused_name()
        config = broker.subject.topic_config(flush=flush)
        create_topics(broker.address, [name], partitions=PARTITIONS, config=config)
        return name

    def qbench(
        self, broker: Measured, topic: str, mode: str, *arguments: str | int
    ) -> dict[str, float]:
        """One run of the driver; `cpu_s` is the broker's CPU time during the run."""
        before_s = broker.cpu_seconds()
        sample = dict(qbench.run(broker.address, topic, mode, *arguments))
        sample["cpu_s"] = broker.cpu_seconds() - before_s
        return sample

    def need_disk(self, gigabytes: float) -> None:
        """Refuse a row that would fill the disk."""
        free_gb = shutil.disk_usage(self.directory).free / 1e9
        if free_gb < gigabytes * 1.2 + 5:
            raise MeasurementFailed(f"needs {gigabytes:g} GB of disk, {free_gb:.0f} GB are free")
