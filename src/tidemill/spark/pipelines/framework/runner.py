"""Runs a pipeline until it is told to stop, and restarts it after a failure.

Theory of operation. All stages run in one Spark session as one unit: if one fails, the others stop
and all restart from their checkpoints, after a pause that doubles each time. A successful batch
resets the count of failures; too many in a row end the run. A restart loses nothing: a stage
continues behind the last batch that its checkpoint records as done, so a batch that was running is
repeated.

A stop (SIGTERM, SIGINT) waits a limited time for running batches; the next run repeats what was
interrupted. The JVM may have received the same signal and ended already: that is not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, final

from py4j.protocol import (  # type: ignore[import-untyped]  # ships none
    Py4JError,
    Py4JJavaError,
)
from pyspark.errors import AnalysisException, PySparkException

from tidemill.core.clock import Clock
from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.pipelines.framework.config_file import ConfiguredPipeline
from tidemill.spark.pipelines.framework.pipeline import Job, Stage
from tidemill.spark.pipelines.framework.progress import (
    StageProgress,
    is_batch_running,
    stage_progress,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["RunListener", "Runner"]

_POLL_S: Final = 1
_FIRST_PAUSE_S: Final = 1.0
_OUR_ERROR: Final = re.compile(r"^tidemill\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_REASON_CHARS_MAX: Final = 300


class RunListener(Protocol):
    """Receives what happens during a run."""

    def started(self, stages: Sequence[str]) -> None: ...

    def progressed(self, stages: Sequence[StageProgress]) -> None: ...

    def failed(self, reason: str, pause_s: float) -> None: ...


@final
class Runner:
    """One run of one pipeline on one session."""

    def __init__(
        self,
        configured: ConfiguredPipeline,
        spark: SparkSession,
        listener: RunListener,
        clock: Clock,
        *,
        once: bool,
        between_polls: Callable[[], None] = lambda: None,
    ) -> None:
        self._configured = configured
        self._run = configured.run
        self._listener = listener
        self._clock = clock
        self._once = once
        self._between_polls = between_polls
        self._job = Job(configured.kind.name, spark, configured.run)
        self._queries: dict[str, StreamingQuery] = {}
        self._seen: dict[str, int] = {}
        """The last batch of each stage that the listener knows."""
        self._failures = 0
        self._is_stopping = False

    def stop(self) -> None:
        """End soon; safe to call from a signal handler."""
        self._is_stopping = True

    def run(self) -> None:
        """Run until stopped, or with `once` until the records that exist now are processed.

        TidemillError if it failed too often.
        """
        with self._stop_signals():
            while not self._attempt():
                pass
            self._stop_queries(wait_s=self._run.stop_wait_s)

    # --- one attempt -----------------------------------------------------------------------------

    def _attempt(self) -> bool:
        """True if the run is over; False if it failed and may be tried again."""
        try:
            self._start()
            self._follow()
        except (PySparkException, Py4JError, OSError) as error:
            if not self._is_stopping:
                self._recover(error)
                return self._is_stopping
        return True

    def _start(self) -> None:
        for stage in self._configured.pipeline.build(self._job):
            self._queries[stage.name] = self._started(stage)
        self._listener.started(list(self._queries))

    def _started(self, stage: Stage) -> StreamingQuery:
        run, name = self._run, self._configured.kind.name
        writer = stage.writer.queryName(f"{name}-{stage.name}").option(
            "checkpointLocation", f"{run.checkpoint_dir}/{name}/{stage.name}"
        )
        if self._once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(run.trigger_s * 1000)} milliseconds").start()

    def _follow(self) -> None:
        """Watch the queries until they end or a stop is asked for; raises what a stage raised."""
        while not self._is_stopping:
            active = [query for query in self._queries.values() if query.isActive]
            if len(active) < len(self._queries):
                self._raise_failure()
            if not active:
                self._report_progress()
                return
            active[0].awaitTermination(_POLL_S)
            self._report_progress()
            self._between_polls()

    def _raise_failure(self) -> None:
        for query in self._queries.values():
            error = None if query.isActive else query.exception()
            if error is not None:
                raise error

    def _report_progress(self) -> None:
        found = [stage_progress(name, query) for name, query in self._queries.items()]
        stages = [stage for stage in found if stage is not None]
        fresh = {s.name: s.batch_id for s in stages if self._seen.get(s.name) != s.batch_id}
        if fresh:
            self._seen.update(fresh)
            self._failures = 0
            self._listener.progressed(stages)

    # --- failures --------------------------------------------------------------------------------

    def _recover(self, error: Exception) -> None:
        """Pause before the next attempt, or raise if there is none."""
        reason = _reason(error)
        self._failures += 1
        if isinstance(error, AnalysisException) or "UserError: " in str(error):
            raise UserError(reason) from None
        if not self._is_spark_alive():
            raise TidemillError(f"Spark has ended: {reason}") from None
        if self._failures > self._run.restart_max:
            raise TidemillError(f"gave up after {self._failures} failures: {reason}") from None
        self._stop_queries(wait_s=0.0)
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self._failures - 1), self._run.restart_pause_max_s)
        self._listener.failed(reason, pause_s)
        self._pause(pause_s)

    def _is_spark_alive(self) -> bool:
        try:
            return not self._job.spark.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError, AttributeError):
            return False

    def _pause(self, seconds: float) -> None:
        deadline = self._clock.monotonic() + seconds
        while not self._is_stopping and self._clock.monotonic() < deadline:
            asyncio.run(asyncio.sleep(_POLL_S / 10))

    # --- stopping --------------------------------------------------------------------------------

    def _stop_queries(self, *, wait_s: float) -> None:
        deadline = self._clock.monotonic() + wait_s
        for query in self._queries.values():
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                while query.isActive and is_batch_running(query.status):
                    if self._clock.monotonic() >= deadline:
                        break
                    query.awaitTermination(_POLL_S)
                query.stop()
        self._queries.clear()

    @contextlib.contextmanager
    def _stop_signals(self) -> Iterator[None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _reason(error: Exception) -> str:
    """One line; the message of our own code in a worker if it raised the error."""
    text = str(error)
    ours = _OUR_ERROR.findall(text)
    if ours:
        kind, sentence = ours[-1]
        return f"{kind}: {sentence}"[:_REASON_CHARS_MAX]
    lines = [line.lstrip(": ") for line in text.splitlines() if line.strip()]
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        lines = lines[1:]  # the first line only names the py4j call
    return (lines[0] if lines else type(error).__name__)[:_REASON_CHARS_MAX]
