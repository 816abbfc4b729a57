"""Runs a pipeline until it is told to stop, and restarts it after a failure.

Theory of operation. All stages run in one Spark session as one unit: if one fails, the others stop
and all restart from their checkpoints, after a pause that doubles each time. Failures are counted
for each stage: only a batch of its own resets the count, and too many in a row end the run. A
restart loses nothing: a stage continues behind the last batch that its checkpoint records as done,
so a batch that was running is repeated.

Between two looks at its queries the runner does what its stages want done beside their batches
(`Stage.upkeep`), for a limited time; a run with `once` does it to the end, for a limited time too.

A stop (SIGTERM, SIGINT) waits a limited time for running batches; the next run repeats what was
interrupted. The JVM may have received the same signal and ended already: that is not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships none
from pyspark.errors import AnalysisException, PySparkException

from tidemill.core.clock import Clock
from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.pipelines.framework.checkpoint import PipelineCheckpoint
from tidemill.spark.pipelines.framework.config_file import ConfiguredPipeline
from tidemill.spark.pipelines.framework.failures import failure_of
from tidemill.spark.pipelines.framework.pipeline import Job, Stage
from tidemill.spark.pipelines.framework.progress import (
    StageProgress,
    is_batch_running,
    stage_progress,
)
from tidemill.spark.pipelines.framework.stopping import StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["RunListener", "Runner"]

_POLL_S: Final = 1
_FIRST_PAUSE_S: Final = 1.0
_UPKEEP_SLICE_S: Final = 0.5
"""Between two polls, so a third of one core at most."""
_UPKEEP_LAST_S: Final = 30.0
"""At the end of a run with `once`; the next run continues with the rest."""
_STARTING: Final = "start"
"""Counts failures before any stage runs."""


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
        stop: StopRequest | None = None,
        between_polls: Callable[[], None] = lambda: None,
    ) -> None:
        self._configured = configured
        self._run = configured.run
        self._listener = listener
        self._clock = clock
        self._once = once
        self._between_polls = between_polls
        self._job = Job(configured.kind.name, spark, configured.run, configured.kafka)
        self._queries: dict[str, StreamingQuery] = {}
        self._late: dict[str, Callable[[], int] | None] = {}
        self._upkeep: dict[str, Callable[[], bool] | None] = {}
        self._seen: dict[str, int] = {}
        """The last batch of each stage that the listener knows."""
        self._failures: Counter[str] = Counter()
        """In a row, by stage."""
        self._checkpoint = PipelineCheckpoint(self._run.checkpoint_dir, configured.kind.name)
        self._stop = stop or StopRequest()

    def run(self) -> None:
        """Run until stopped, or with `once` until the records that exist now are processed.

        TidemillError if it failed too often.
        """
        while not self._attempt():
            pass
        self._stop_queries(wait_s=self._run.stop_wait_s)
        if self._once:
            self._keep_up_to_the_end()

    # --- one attempt -----------------------------------------------------------------------------

    def _attempt(self) -> bool:
        """True if the run is over; False if it failed and may be tried again."""
        try:
            self._start()
            self._follow()
        except UserError:
            raise
        except (PySparkException, Py4JError, TidemillError, OSError) as error:
            if not self._stop.is_set:
                self._recover(error)
                return self._stop.is_set
        return True

    def _start(self) -> None:
        for stage in self._configured.pipeline.build(self._job):
            self._late[stage.name] = stage.late
            self._upkeep[stage.name] = stage.upkeep
            self._queries[stage.name] = self._started(stage)
        self._listener.started(list(self._queries))

    def _started(self, stage: Stage) -> StreamingQuery:
        run, name = self._run, self._configured.kind.name
        writer = stage.writer.queryName(f"{name}-{stage.name}").option(
            "checkpointLocation", self._job.checkpoint_of(stage.name)
        )
        if self._once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(run.trigger_s * 1000)} milliseconds").start()

    def _follow(self) -> None:
        """Watch the queries until they end or a stop is asked for; raises what a stage raised."""
        while not self._stop.is_set:
            active = [query for query in self._queries.values() if query.isActive]
            if len(active) < len(self._queries):
                self._raise_failure()
            if not active:
                self._report_progress()
                return
            active[0].awaitTermination(_POLL_S)
            self._report_progress()
            self._between_polls()
            self._keep_up(_UPKEEP_SLICE_S)

    def _raise_failure(self) -> None:
        for query in self._queries.values():
            error = None if query.isActive else query.exception()
            if error is not None:
                raise error

    def _report_progress(self) -> None:
        found = [
            stage_progress(name, query, self._late[name]) for name, query in self._queries.items()
        ]
        stages = [stage for stage in found if stage is not None]
        fresh = {s.name: s.batch_id for s in stages if self._seen.get(s.name) != s.batch_id}
        if fresh:
            self._seen.update(fresh)
            for name in (_STARTING, *fresh):
                del self._failures[name]
            self._listener.progressed(stages)

    def _keep_up(self, seconds: float) -> bool:
        """False if there was nothing to do."""
        deadline, has_worked = self._clock.monotonic() + seconds, False
        for step in self._upkeep.values():
            while step is not None and not self._stop.is_set and step():
                has_worked = True
                if self._clock.monotonic() >= deadline:
                    return True
        return has_worked

    def _keep_up_to_the_end(self) -> None:
        """Work may have to rest for a poll before its next step: "none for now" counts twice."""
        is_idle = not any(self._upkeep.values())
        left_s, deadline = _UPKEEP_LAST_S, self._clock.monotonic() + _UPKEEP_LAST_S
        while left_s > 0 and not self._stop.is_set:
            was_idle, is_idle = is_idle, not self._keep_up(left_s)
            if was_idle and is_idle:
                return
            self._pause(min(_POLL_S, deadline - self._clock.monotonic()))
            left_s = deadline - self._clock.monotonic()

    # --- failures --------------------------------------------------------------------------------

    def _recover(self, error: Exception) -> None:
        """Pause before the next attempt, or raise if there is none."""
        stage = self._failed_stage()
        text = str(error) or type(error).__name__
        failure = failure_of(text)
        if failure.is_users or (isinstance(error, AnalysisException) and not failure.is_ours):
            raise UserError(failure.reason) from None
        if not self._is_spark_alive():
            raise TidemillError(f"Spark has ended: {failure.reason}") from None
        self._failures[stage] += 1
        reason = f"{stage}: {failure.reason} ({self._checkpoint.keep_failure(text)})"
        if self._failures[stage] > self._run.restart_max:
            raise TidemillError(
                f"gave up after {self._failures[stage]} failures: {reason}"
            ) from None
        self._stop_queries(wait_s=0.0)
        doubled_s = _FIRST_PAUSE_S * 2.0 ** (self._failures[stage] - 1)
        pause_s = min(doubled_s, self._run.restart_pause_max_s)
        self._listener.failed(reason, pause_s)
        self._pause(pause_s)

    def _failed_stage(self) -> str:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            for name, query in self._queries.items():
                if not query.isActive and query.exception() is not None:
                    return name
        return _STARTING

    def _is_spark_alive(self) -> bool:
        try:
            return not self._job.spark.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError, AttributeError):
            return False

    def _pause(self, seconds: float) -> None:
        deadline = self._clock.monotonic() + seconds
        while not self._stop.is_set and self._clock.monotonic() < deadline:
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
