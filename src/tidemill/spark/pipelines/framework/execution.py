"""From settings to a finished run: first the topics, then the Spark session, then the runner."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships none

from tidemill.core.clock import Clock
from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.pipelines.framework.config_file import ConfiguredPipeline
from tidemill.spark.pipelines.framework.jvm_output import JvmOutput
from tidemill.spark.pipelines.framework.runner import RunListener, Runner
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
"""Defaults that the file may override. Dates and hours in folder names are in UTC."""
_VERBOSE_SETTINGS: Final = {"spark.log.level": "WARN"}
_FAILURE_LINES: Final = 40
"""Lines of the JVM's output that a failed run shows."""


class Screen(RunListener, Protocol):
    """The listener of a command, which also shows what happens before the first stage runs."""

    def show(self, line: str) -> None: ...


def execute(
    configured: ConfiguredPipeline, screen: Screen, clock: Clock, *, once: bool, verbose: bool
) -> None:
    """Run the pipeline to its end. TidemillError says what stopped it.

    The JVM's output stays hidden unless `verbose`; after a failure its last lines are shown.
    """
    created = prepare_topics(configured.run.bootstrap, configured.pipeline.topics())
    if created:
        screen.show(f"made {', '.join(created)}")
    screen.show(f"starting Spark on {configured.run.master}")
    with contextlib.closing(JvmOutput()) as output:
        try:
            spark = _session(configured, output, verbose=verbose)
            try:
                Runner(configured, spark, screen, clock, once=once, between_polls=output.trim).run()
            finally:
                _stop(spark)
        except UserError:
            raise
        except TidemillError:
            for line in output.last_lines(_FAILURE_LINES):
                screen.show(line)
            raise


def _session(configured: ConfiguredPipeline, output: JvmOutput, *, verbose: bool) -> SparkSession:
    run = configured.run
    settings = {
        **_SPARK_SETTINGS,
        **(_VERBOSE_SETTINGS if verbose else {}),
        "spark.sql.shuffle.partitions": str(run.state_partitions),
        **configured.spark,
    }
    if run.master.startswith("local"):
        # The name of this machine may resolve to an address that does not answer.
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    name = f"tidemill {configured.kind.name}"
    try:
        with contextlib.nullcontext() if verbose else output.captured():
            return session(name, master=run.master, settings=settings, quiet=True)
    except Exception as error:
        raise TidemillError(f"Spark did not start on {run.master}: {error}") from error


def _stop(spark: SparkSession) -> None:
    """The JVM may already have ended: it can receive the same signal as this process."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()
