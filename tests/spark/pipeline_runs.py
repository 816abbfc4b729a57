"""Log lines with a known outcome, settings for a test, and runs in the session of the tests."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet

from tests.support.clients import Confluent, Message, Record
from tidemill.cli.demo.shop_day import DemoLog
from tidemill.core.clock import SystemClock
from tidemill.core.rng import SeededRng
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.config_file import configure
from tidemill.spark.pipelines.framework.progress import StageProgress
from tidemill.spark.pipelines.framework.runner import Runner
from tidemill.spark.pipelines.framework.topic_check import prepare_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATUS = re.compile(rb'" (\d{3}) (\d+) "|"status": (\d+), "bytes": (\d+)')


@dataclass
class Traffic:
    """The messages that were sent, and their figures, counted without Spark."""

    messages: list[Message] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    """Indexes of messages."""
    requests: Counter[int] = field(default_factory=Counter)
    """By minute since 1970; so are the others."""
    errors: Counter[int] = field(default_factory=Counter)
    size_bytes: Counter[int] = field(default_factory=Counter)

    @property
    def good(self) -> int:
        return len(self.messages) - len(self.broken)


def traffic(lines: int, start_ms: int, step_ms: int, *, partitions: int, seed: int = 7) -> Traffic:
    """Lines of the demo's log, one every `step_ms`, round-robin over the partitions."""
    log = DemoLog(SeededRng(seed))
    made = Traffic()
    for index in range(lines):
        event_ms = start_ms + index * step_ms
        line = log.line(event_ms, index / lines)
        made.messages.append(Message(line.value, key=line.key, partition=index % partitions))
        if line.broken:
            made.broken.add(index)
            continue
        found = STATUS.search(line.value)
        assert found is not None
        status, size = (int(group) for group in found.groups() if group is not None)
        minute = event_ms // 60_000
        made.requests[minute] += 1
        made.errors[minute] += status >= 500
        made.size_bytes[minute] += size
    return made


def send(bootstrap: str, topic: str, messages: Iterable[Message]) -> None:
    Confluent().produce(bootstrap, topic, list(messages))


def rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def offsets_in(folder: Path) -> list[tuple[int, int]]:
    """Partition and offset of every event in finished Parquet files; a batch may be running."""
    places: list[tuple[int, int]] = []
    for file in _finished_files(folder):
        with contextlib.suppress(FileNotFoundError):
            rows = parquet.read_table(file, columns=["partition", "offset"], partitioning=None)
            places += [(row["partition"], row["offset"]) for row in rows.to_pylist()]
    return places


def _finished_files(folder: Path) -> Iterator[Path]:
    """os.walk ignores folders that vanish meanwhile; folders of a running batch are hidden."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in names if not name.startswith("."))
        yield from (Path(place, name) for name in visible if name.endswith(".parquet"))


class RunRecorder:
    """A listener that records failures and the last progress."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.stages: list[StageProgress] = []

    def started(self, stages) -> None: ...

    def progressed(self, stages) -> None:
        self.stages = list(stages)

    def failed(self, reason, pause_s) -> None:
        self.failures.append(reason)


def run_once(spark: SparkSession, name: str, values: dict[str, object]) -> list[StageProgress]:
    """Process what is in the topic now; the stages after their last batches."""
    configured = configure(pipeline_kind(name), {"restart.max": 0} | values)
    prepare_topics(configured.kafka.address, configured.pipeline.topics())
    listener = RunRecorder()
    Runner(configured, spark, listener, SystemClock(), once=True).run()
    assert listener.failures == []
    return listener.stages


def log_values(bootstrap: str, topic: str, folder: Path) -> dict[str, object]:
    return {
        "bootstrap": bootstrap,
        "input.topic": topic,
        "minutes.topic": f"{topic}.minutes",
        "dead.topic": f"{topic}.dead",
        "output.dir": str(folder / "out"),
        "checkpoint.dir": str(folder / "checkpoints"),
        "window.late.s": 0,
    }


def written(path: Path, name: str, values: dict[str, object]) -> str:
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    path.write_text(f'pipeline = "{name}"\n' + "".join(lines))
    return str(path)


def headers_of(record: Record) -> dict[str, str]:
    return {key: (value or b"").decode() for key, value in record.headers}


def enrich_values(bootstrap: str, topic: str, folder: Path) -> dict[str, object]:
    return {
        "bootstrap": bootstrap,
        "input.topic": topic,
        "input.key": "who.id",
        "output.topic": f"{topic}.out",
        "dead.topic": f"{topic}.dead",
        "table.file": str(folder / "table.csv"),
        "checkpoint.dir": str(folder / "checkpoints"),
    }
