"""A topic is copied exactly once, whenever its driver is killed, frozen or replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from tests.spark.exactly_once_driver import BATCH_ROWS, POINTS, USUAL_POINTS, copying
from tests.spark.pipeline_runs import enrich_values, log_values, run_once, send, traffic
from tests.spark.queries import load_stream, put
from tests.support.clients import Message
from tests.support.spark_topics import values_of
from tests.support.topics import create_topic, end_offset, wait_until_decided
from tidemill.spark import write_topic
from tidemill.testing.broker_process import BrokerProcess

CHECKOUT = Path(__file__).parents[2]
DEADLINE_S = 300.0
START_MS = 1_700_000_000_000 // 60_000 * 60_000


class Driver:
    """A copying query in a process of its own, with its JVM in the same process group."""

    def __init__(
        self, *args: str, folder: Path, at: str, how: str = "SIGKILL", **told: str
    ) -> None:
        self._folder = folder
        (folder / "reached").unlink(missing_ok=True)
        self.log = folder / f"{at}.log"
        told |= {"KILL_AT": at, "KILL_BATCH": "2", "KILL_HOW": how}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.exactly_once_driver", *args, str(folder)],
                cwd=CHECKOUT,
                env={
                    **os.environ,
                    **told,
                    "KILL_FOLDER": str(folder),
                    "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'src'}",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *failure: object) -> None:
        """The JVM may live on when the driver has ended: end the whole group."""
        for number in (signal.SIGKILL, signal.SIGCONT):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
        self.process.wait()

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def wait_for(self, reached: Callable[[], bool]) -> None:
        late = threading.Event()
        timer = threading.Timer(DEADLINE_S, late.set)
        timer.start()
        while not reached():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert not late.wait(0.1), self.log.read_text()[-3000:]
        timer.cancel()

    def wait_until_frozen(self) -> int:
        """The Python process that has reached the point."""
        frozen = self._folder / "frozen"
        self.wait_for(lambda: frozen.exists() and bool(frozen.read_text()))
        return int(frozen.read_text())


def numbers(bootstrap: str, topic: str, level: str = "read_committed") -> list[int]:
    return sorted(int(value) for value in values_of(bootstrap, topic, level))


def markers(bootstrap: str, topic: str) -> int:
    """How many offsets of the first partition hold no record."""
    count = len(values_of(bootstrap, topic, "read_uncommitted"))
    return end_offset(bootstrap, topic) - count


@pytest.fixture
def broker(new_broker) -> BrokerProcess:
    return new_broker("num.partitions=1")


@pytest.fixture
def copy(broker):
    """Bootstrap, input and output of a copy; both topics have two partitions."""
    bootstrap = broker.bootstrap
    source, target = (f"{name}-{uuid4().hex[:8]}" for name in ("in", "out"))
    for topic in (source, target):
        create_topic(bootstrap, topic, 2)
    return bootstrap, source, target


def fill(bootstrap: str, source: str, count: int) -> None:
    for partition in (0, 1):
        put(bootstrap, source, range(partition, count, 2), partition=partition)


def send_in_vain(bootstrap: str, topic: str, value: bytes) -> None:
    """A record in a transaction that is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(DEADLINE_S)
    producer.abort_transaction(DEADLINE_S)
    wait_until_decided(bootstrap, topic)


@pytest.fixture
def points(request) -> tuple[str, ...]:
    """Where drivers are killed: a JVM for each takes its time."""
    return POINTS if request.config.getoption("--kill-points") == "all" else USUAL_POINTS


@pytest.mark.e2e
def test_F73_a_driver_killed_at_any_point_writes_every_row_once(spark, copy, tmp_path, points):
    # Given enough records for two batches of each driver
    bootstrap, source, target = copy
    count = BATCH_ROWS * 2 * len(points)
    fill(bootstrap, source, count)

    # When each driver finishes a batch, perhaps a repeated one, and is killed in the next
    for point in points:
        with Driver(*copy, folder=tmp_path, at=point) as driver:
            assert driver.wait() == -signal.SIGKILL, (point, driver.log.read_text()[-3000:])
    query = copying(spark, bootstrap, source, target, tmp_path / "checkpoint").start()
    assert query.awaitTermination(int(DEADLINE_S))

    # Then rows that were written in vain are there, and readers of committed records see none
    assert numbers(bootstrap, target) == list(range(count))
    assert len(numbers(bootstrap, target, "read_uncommitted")) > count


@pytest.mark.e2e
def test_F73_a_driver_that_was_frozen_and_replaced_commits_nothing(spark, copy, tmp_path):
    # Given a driver that is frozen when its second batch is about to be committed
    bootstrap, source, target = copy
    count = BATCH_ROWS * 4
    fill(bootstrap, source, count)
    with Driver(*copy, folder=tmp_path, at="before end", how="SIGSTOP") as old:
        worker = old.wait_until_frozen()

        # When another driver takes over and finishes, and then the first one wakes up
        query = copying(spark, bootstrap, source, target, tmp_path / "checkpoint").start()
        assert query.awaitTermination(int(DEADLINE_S))
        done = numbers(bootstrap, target)
        os.kill(worker, signal.SIGCONT)
        os.killpg(old.process.pid, signal.SIGCONT)
        assert old.wait() != 0

        # Then it has failed, because it is fenced, and has changed nothing
        assert "ProducerFenced" in old.log.read_text()
    assert done == list(range(count))
    assert numbers(bootstrap, target) == done


@pytest.mark.e2e
def test_F73_a_broker_killed_in_a_commit_neither_loses_nor_repeats_rows(broker, copy, tmp_path):
    # Given a driver that kills the broker when its second batch is about to be committed
    bootstrap, source, target = copy
    count = BATCH_ROWS * 3
    fill(bootstrap, source, count)
    told = {"KILL_BROKER": str(broker.pid)}
    with Driver(*copy, folder=tmp_path, at="before end", **told) as driver:
        # When the broker comes back
        reached = tmp_path / "reached"
        driver.wait_for(lambda: reached.exists() and reached.stat().st_size == 2)
        broker.kill()
        broker.start()
        assert driver.wait() == 0, driver.log.read_text()[-3000:]

    # Then the same driver has gone on, and every row is there once
    assert numbers(bootstrap, target) == list(range(count))


# --- foreachBatch and pipelines ------------------------------------------------------------------


@pytest.mark.e2e
def test_F73_a_result_in_update_mode_is_written_once_though_its_batch_fails_and_is_repeated(
    spark, copy, tmp_path
):
    # Given counts by key, written in update mode, and a second batch that fails after its commit
    bootstrap, source, target = copy
    fill(bootstrap, source, BATCH_ROWS * 2)
    failures = [1]

    def write(rows, batch_id: int) -> None:
        counts = rows.select(F.col("kind").cast("string").alias("key"), F.col("value"))
        options = {"kafka.bootstrap.servers": bootstrap}
        write_topic(counts, target, transactional_id=f"{target}-counts", options=options)
        if batch_id in failures:
            failures.remove(batch_id)
            raise OSError("after the commit")

    def start():
        rows = load_stream(
            spark, bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger="40"
        )
        kind = (F.col("value").cast("string").cast("int") % 2).alias("kind")
        counts = rows.groupBy(kind).count().withColumn("value", F.col("count").cast("string"))
        writer = counts.writeStream.outputMode("update").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    # When the query is started again
    with pytest.raises(StreamingQueryException, match="after the commit"):
        start().awaitTermination(int(DEADLINE_S))
    assert start().awaitTermination(int(DEADLINE_S))

    # Then each batch is there once
    assert numbers(bootstrap, target) == [20, 20, 40, 40]


@pytest.mark.e2e
def test_F74_a_pipeline_reads_and_writes_exactly_once_by_one_word(spark, copy, tmp_path):
    bootstrap, source, target = copy
    (tmp_path / "table.csv").write_text("id,name\n1,Ann\n")
    send(bootstrap, source, [Message(b'{"who": {"id": 1}}'), Message(b"broken")])
    send_in_vain(bootstrap, source, b'{"who": {"id": 1}, "aborted": true}')
    chosen = enrich_values(bootstrap, source, tmp_path) | {"output.topic": target}
    chosen |= {"delivery": "exactly_once"}
    run_once(spark, "enrich", chosen)

    [enriched] = values_of(bootstrap, target, "read_committed")
    [dead] = values_of(bootstrap, f"{source}.dead", "read_committed")
    assert json.loads(enriched)["customer"] == {"id": "1", "name": "Ann"}
    assert dead == b"broken"
    assert markers(bootstrap, f"{source}.dead") == 1


@pytest.mark.e2e
def test_F74_the_minutes_of_a_log_are_written_exactly_once_by_one_word(spark, copy, tmp_path):
    bootstrap, source, _ = copy
    made = traffic(200, START_MS, 1_000, partitions=2)
    send(bootstrap, source, made.messages)
    chosen = log_values(bootstrap, source, tmp_path) | {"delivery": "exactly_once"}
    run_once(spark, "logs", chosen)

    topic = f"{source}.minutes"
    windows = [json.loads(value) for value in values_of(bootstrap, topic, "read_committed")]
    assert [window["requests"] for window in windows] == [
        made.requests[minute] for minute in sorted(made.requests)[: len(windows)]
    ]
    assert len(windows) >= 2
    assert markers(bootstrap, topic) >= 1
