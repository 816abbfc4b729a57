"""Result files of `logs` that are merged while it runs, as Spark and the report read them."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import dataset

from tests.spark.pipeline_runs import log_values, run_once, send, traffic
from tests.support.clients import Message
from tests.support.spark_topics import create_topic
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.config_file import configure
from tidemill.spark.pipelines.merging.batch_folders import BatchFolder
from tidemill.spark.pipelines.merging.file_merging import FileMerging
from tidemill.testing.manual_clock import SimClock

TOPIC = "merged-files"
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS + 20 * HOUR_MS
LINES = 1_600
STEP_MS = 15_000
"""6.7 hours, over midnight."""
PARTS = ("events", "minutes")
HANG_S = 120.0


def far_line(hours: int) -> Message:
    """A line so late that all hours and days before it are over."""
    time_s = (START_MS + hours * HOUR_MS) // 1000
    return Message(b'{"time": %d, "status": 200, "path": "/far"}' % time_s)


def files(output: Path, part: str = "events") -> list[Path]:
    return list((output / part).rglob("*.parquet"))


def batches(output: Path) -> set[BatchFolder]:
    return {BatchFolder.try_parse(path.parent.name) for path in files(output)}


def state(spark, output: Path, part: str):
    """Columns and rows as Spark reads them, without the column of the batch folders."""
    frame = spark.read.parquet(str(output / part)).drop("batch")
    rows = frame.where(f"time < timestamp_millis({START_MS + 48 * HOUR_MS})").collect()
    return frame.schema, sorted(map(repr, rows))


@pytest.fixture(scope="module")
def small_files(spark, running, tmp_path_factory):
    """The folder of a pipeline that has written many small files and merged none."""
    folder = tmp_path_factory.mktemp("small-files")
    create_topic(running.bootstrap, TOPIC)
    send(running.bootstrap, TOPIC, traffic(LINES, START_MS, STEP_MS, partitions=1).messages)
    send(running.bootstrap, TOPIC, [far_line(60), far_line(61)])
    run_once(spark, "logs", settings(running, folder) | {"output.merge": False})
    return folder


@pytest.fixture
def copied(small_files, tmp_path):
    shutil.copytree(small_files, tmp_path, dirs_exist_ok=True)
    return tmp_path


def settings(running, folder: Path) -> dict[str, object]:
    return log_values(running.bootstrap, TOPIC, folder) | {"batch.rows.max": 200}


def test_merged_files_have_the_rows_and_types_that_spark_and_the_report_read_before(
    spark, running, copied
):
    output = copied / "out"
    values = settings(running, copied)
    pipeline = configure(pipeline_kind("logs"), values | {"report.minutes": 10_000}).pipeline
    before = {part: state(spark, output, part) for part in PARTS}
    windows = set(map(repr, pipeline.table().rows))
    assert len(files(output)) >= 20
    assert len(files(output, "minutes")) >= 8

    send(running.bootstrap, TOPIC, [far_line(62)])
    run_once(spark, "logs", values)

    assert {part: state(spark, output, part) for part in PARTS} == before
    assert windows <= set(map(repr, pipeline.table().rows))
    closed = {path.parent for path in files(output) if "date=2023-11-17" not in str(path)}
    assert len(closed) == len({folder.parent for folder in closed}) == 7
    assert len([path for path in files(output, "minutes") if "11-17" not in str(path)]) == 2


def test_a_batch_that_is_repeated_after_its_files_were_merged_adds_no_row(spark, running, copied):
    output = copied / "out"
    values = settings(running, copied)
    send(running.bootstrap, TOPIC, [far_line(62)])
    run_once(spark, "logs", values)
    before = {part: state(spark, output, part) for part in PARTS}
    repeated = 6
    assert any(made.has_merged(BatchFolder(made.query, 6, 6)) for made in batches(output))

    for log, kept in (("offsets", repeated), ("commits", repeated - 1)):
        for path in (copied / "checkpoints/logs/events" / log).iterdir():
            if path.name.isdecimal() and int(path.name) > kept:
                path.unlink()
    run_once(spark, "logs", values)

    assert {part: state(spark, output, part) for part in PARTS} == before


class Reader:
    """Reads a folder with Arrow, over and over, on a thread of its own."""

    def __init__(self, folder: str) -> None:
        self.counts: list[int] = []
        """Of rows, in the readings that met no error."""
        self._folder = folder
        self._finished = 0
        self._changed = threading.Condition()
        self._is_ended = False
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended = True
        self._thread.join()

    def _read(self) -> None:
        while not self._is_ended:
            with contextlib.suppress(FileNotFoundError):
                rows = dataset.dataset(self._folder, format="parquet").count_rows()
                self.counts.append(rows)
            with self._changed:
                self._finished += 1
                self._changed.notify()

    def time_s(self) -> float:
        """A minute passes with each reading, so whoever waits for it waits for one to finish."""
        return 60.0 * self._finished

    def finish_one(self) -> None:
        """Wait until the reading that is under way is finished."""
        with self._changed:
            before = self._finished
            assert self._changed.wait_for(lambda: self._finished > before, HANG_S)


def test_whoever_reads_while_files_are_merged_gets_every_row_or_an_error(spark, copied):
    output = copied / "out"
    events = str(output / "events")
    expected = dataset.dataset(events, format="parquet").count_rows()
    listed = spark.read.parquet(events)
    [query] = {made.query for made in batches(output)}
    counts: list[int] = []

    with Reader(events) as reader:
        clock = SimClock(reader.time_s)
        merging = FileMerging(str(output), {"events": True}, is_active=True, clock=clock)
        merging.batch_written(BatchFolder.of_batch(query, 1_000), START_MS + 48 * HOUR_MS)

        def step() -> bool:
            if merging.step():
                return True
            reader.finish_one()
            return merging.step()

        steps = 0
        while step():
            steps += 1
            if steps % 8 == 0:
                counts.append(spark.read.parquet(events).count())

    assert set(counts) == set(reader.counts) == {expected}
    assert any(made.is_merged for made in batches(output))
    with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
        listed.agg({"offset": "sum"}).collect()
    assert spark.read.parquet(events).count() == expected
