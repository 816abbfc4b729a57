"""A driver that copies a topic exactly once and is stopped at a point: BOOTSTRAP FROM TO FOLDER.

The environment says where. KILL_AT is the name of a point, KILL_BATCH how often this run has to
reach it, KILL_HOW the signal: SIGKILL ends the driver and its JVM, SIGSTOP freezes them and the
Python worker that has reached the point. With KILL_BROKER, a process id, it is the broker instead.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from tests.spark.queries import load_stream
from tidemill.client.producing.transaction import TransactionClient
from tidemill.spark import session, stream_to_topic
from tidemill.spark.data_source import TidemillSource

POINTS = ("opened", "enlisted", "written", "before offsets", "before end", "ended")
"""In the order of a batch: in the driver, in a task (two), in the driver."""
USUAL_POINTS = ("written", "ended")
"""A task that dies, and a driver that dies when its batch is committed but not noted. `make kills`
runs all points; one that is frozen "before end" has a test of its own."""
BATCH_ROWS = 40


def copying(spark, bootstrap: str, source: str, target: str, checkpoint: Path):
    """The query, not started."""
    rows = load_stream(
        spark,
        bootstrap,
        source,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(BATCH_ROWS),
        kafka_isolation_level="read_committed",
    ).select("key", "value")
    writer = stream_to_topic(rows, target, options={"kafka.bootstrap.servers": bootstrap})
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True)


def reach(point: str) -> None:
    """Stop everything if this is the point, and this run has reached it often enough."""
    if os.environ["KILL_AT"] != point:
        return
    count = Path(os.environ["KILL_FOLDER"]) / "reached"
    with count.open("ab") as file:
        file.write(b".")
    if count.stat().st_size != int(os.environ["KILL_BATCH"]):
        return
    how = signal.Signals[os.environ["KILL_HOW"]]
    if how is signal.SIGSTOP:
        (Path(os.environ["KILL_FOLDER"]) / "frozen").write_text(str(os.getpid()))
    if "KILL_BROKER" in os.environ:
        os.kill(int(os.environ["KILL_BROKER"]), how)
        return
    os.killpg(int(os.environ["DRIVER_GROUP"]), how)
    os.kill(os.getpid(), how)  # Spark gives its Python processes groups of their own


def arm() -> None:
    """Let the steps of a transaction in this process report where they are."""
    if getattr(TransactionClient, "is_armed", False):
        return
    TransactionClient.is_armed = True
    for name, before, after in (
        ("open", "", "opened"),
        ("enlist", "", "enlisted"),
        ("commit_offsets", "before offsets", ""),
        ("end", "before end", "ended"),
    ):
        setattr(
            TransactionClient, name, _reporting(getattr(TransactionClient, name), before, after)
        )


def _reporting(step, before: str, after: str):
    async def reporting(*args, **options):
        reach(before)
        result = await step(*args, **options)
        reach(after)
        return result

    return reporting


class StoppedWriter(DataSourceStreamArrowWriter):
    """A writer that reports where it is."""

    def __init__(self, real) -> None:
        self._real = real

    def write(self, iterator):
        arm()
        message = self._real.write(iterator)
        if message.rows:
            reach("written")
        return message

    def commit(self, messages, batchId: int) -> None:
        self._real.commit(messages, batchId)

    def abort(self, messages, batchId: int) -> None:
        self._real.abort(messages, batchId)


class StoppedSource(TidemillSource):
    """The data source under another name."""

    @classmethod
    def name(cls) -> str:
        return "stopped"

    def streamWriter(self, schema, overwrite):
        arm()
        return StoppedWriter(super().streamWriter(schema, overwrite))


def main(bootstrap: str, source: str, target: str, folder: Path) -> None:
    os.environ["DRIVER_GROUP"] = str(os.getpgid(0))
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
    settings |= {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = session("driver", master="local[2]", settings=settings, quiet=True, brief=True)
    spark.dataSource.register(StoppedSource)
    query = copying(spark, bootstrap, source, target, folder / "checkpoint").format("stopped")
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
