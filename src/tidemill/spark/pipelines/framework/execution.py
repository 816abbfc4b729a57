"""From settings to a finished run: topics, session, runner, in this order."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from tidemill.core.clock import Clock
from tidemill.core.errors import TidemillError
from tidemill.spark.pipelines.framework.config_file import ConfiguredPipeline
from tidemill.spark.pipelines.framework.runner import Listener, Runner
from tidemill.spark.pipelines.framework.topic_check import prepare_topics
from tidemill.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Screen", "execute"]

_SPARK_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
"""Unless the file says otherwise. Dates and hours in folder names are UTC's."""


class Screen(Listener, Protocol):
    """The listener of a command: it is also told what happens before the first stage runs."""

    def said(self, line: str) -> None: ...


def execute(configured: ConfiguredPipeline, screen: Screen, clock: Clock, *, once: bool) -> None:
    """Run the pipeline to its end. TidemillError says what stopped it."""
    made = prepare_topics(configured.run.bootstrap, configured.pipeline.topics())
    if made:
        screen.said(f"made {', '.join(made)}")
    screen.said(f"starting Spark on {configured.run.master}")
    spark = _session(configured)
    try:
        Runner(configured, spark, screen, clock, once=once).run()
    finally:
        _stop(spark)


def _session(configured: ConfiguredPipeline) -> SparkSession:
    run = configured.run
    settings = {
        **_SPARK_SETTINGS,
        "spark.sql.shuffle.partitions": str(run.state_partitions),
        **configured.spark,
    }
    if run.master.startswith("local"):
        # The name of this machine may resolve to an address that nobody answers.
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    name = f"tidemill {configured.kind.name}"
    try:
        return session(name, master=run.master, settings=settings, quiet=True)
    except Exception as error:
        raise TidemillError(f"Spark did not start on {run.master}: {error}") from error


def _stop(spark: SparkSession) -> None:
    """A JVM that was told to end as well may be gone."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships none

    with contextlib.suppress(Py4JError, OSError):
        spark.stop()
