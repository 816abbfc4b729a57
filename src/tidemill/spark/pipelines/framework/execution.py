"""From settings to a finished run: checkpoint, topics, Spark session, and then the runner."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships none
from pyspark.logger import PySparkLogger

from tidemill.core.clock import Clock
from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms, PipelineCheckpoint
from tidemill.spark.pipelines.framework.child_processes import leaving_no_process
from tidemill.spark.pipelines.framework.config_file import ConfiguredPipeline
from tidemill.spark.pipelines.framework.jvm_output import JvmOutput
from tidemill.spark.pipelines.framework.runner import RunListener, Runner
from tidemill.spark.pipelines.framework.stopping import StopRequest
from tidemill.spark.pipelines.framework.topic_check import prepare_topics
from tidemill.spark.session import session
from tidemill.spark.topic_writing import ONE_ATTEMPT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Screen", "execute", "quiet_loggers"]

_SPARK_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
"""Defaults that the file may override. Dates and hours in folder names are in UTC."""
_VERBOSE_SETTINGS: Final = {"spark.log.level": "WARN"}
_PY4J_LOGGERS: Final = ("py4j", "py4j.clientserver", "py4j.java_gateway")
_PYSPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
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
    checkpoint = PipelineCheckpoint(configured.run.checkpoint_dir, configured.kind.name)
    stop = StopRequest()
    with (
        stop.signals(),
        checkpoint.held(),
        contextlib.closing(JvmOutput()) as output,
        contextlib.nullcontext() if verbose else quiet_loggers(),
    ):
        checkpoint.bind(_terms(configured))
        try:
            spark = _started(configured, screen, output, stop, once=once, verbose=verbose)
            if spark is None:
                return
            try:
                runner = Runner(
                    configured,
                    spark,
                    screen,
                    clock,
                    once=once,
                    stop=stop,
                    between_polls=output.trim,
                )
                runner.run()
            finally:
                _stop(spark)
        except UserError:
            raise
        except TidemillError:
            for line in output.last_lines(_FAILURE_LINES):
                screen.show(line)
            raise


def _terms(configured: ConfiguredPipeline) -> CheckpointTerms:
    """Of the pipeline, and of Spark: it never changes the number of partitions of a state."""
    made = configured.pipeline.checkpoint_terms()
    state = {"state.partitions": str(configured.run.state_partitions)}
    return CheckpointTerms(made.version, {**made.settings, **state})


def _started(
    configured: ConfiguredPipeline,
    screen: Screen,
    output: JvmOutput,
    stop: StopRequest,
    *,
    once: bool,
    verbose: bool,
) -> SparkSession | None:
    """A session, and the topics; None if a stop was asked for meanwhile."""
    with stop.interrupting():
        created = prepare_topics(configured.kafka.address, configured.pipeline.topics())
        if created:
            screen.show(f"made {', '.join(created)}")
        screen.show(f"starting Spark on {configured.run.master}")
        try:
            return _session(configured, output, once=once, verbose=verbose)
        except TidemillError:
            if not stop.is_set:  # the JVM may have received the same signal
                raise
    return None


@contextlib.contextmanager
def quiet_loggers() -> Iterator[None]:
    """pyspark and py4j log every error that they also raise, some as a line of JSON."""
    # Whoever asks for a logger first decides its class, and pyspark needs its own.
    loggers: list[logging.Logger] = [
        *(logging.getLogger(name) for name in _PY4J_LOGGERS),
        *(PySparkLogger.getLogger(name) for name in _PYSPARK_LOGGERS),
    ]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _session(
    configured: ConfiguredPipeline, output: JvmOutput, *, once: bool, verbose: bool
) -> SparkSession:
    run = configured.run
    settings = {
        **_SPARK_SETTINGS,
        **(_VERBOSE_SETTINGS if verbose else {}),
        "spark.sql.shuffle.partitions": str(run.state_partitions),
        **(ONE_ATTEMPT if run.is_exactly_once else {}),
        **configured.spark,
    }
    if run.master.startswith("local"):
        # The name of this machine may resolve to an address that does not answer.
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    name = f"tidemill {configured.kind.name}"
    try:
        with leaving_no_process(), contextlib.nullcontext() if verbose else output.captured():
            return session(name, master=run.master, settings=settings, quiet=True, brief=once)
    except Exception as error:
        raise TidemillError(f"Spark did not start on {run.master}: {error}") from error


def _stop(spark: SparkSession) -> None:
    """The JVM may already have ended: it can receive the same signal as this process."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()
