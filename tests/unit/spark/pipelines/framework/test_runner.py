"""The runner with queries of the test's own; no JVM runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms
from tidemill.spark.pipelines.framework.config_file import configure
from tidemill.spark.pipelines.framework.pipeline import Stage
from tidemill.spark.pipelines.framework.runner import Runner
from tidemill.spark.pipelines.framework.stopping import StopRequest
from tidemill.spark.pipelines.table.databases import DatabaseFailed
from tidemill.testing.manual_clock import ManualClock, SimClock

OUTAGE = "tidemill.client.network.errors.BrokerUnreachable: cannot write to topic x: refused"


@dataclass
class ScriptedQuery:
    """Finishes one batch for each poll, or fails with `error`."""

    error: str | None = None
    batch_id: int = 0
    batches_max: int = 1_000
    upkeep: Callable[[], bool] | None = None
    status: dict = field(default_factory=lambda: {"isTriggerActive": False, "message": ""})

    @property
    def isActive(self):
        return self.error is None and self.batch_id < self.batches_max

    @property
    def lastProgress(self):
        report = {"batchId": self.batch_id, "numInputRows": 1}
        return None if self.error else SimpleNamespace(json=json.dumps(report))

    def awaitTermination(self, timeout_s):
        self.batch_id += 1

    def exception(self):
        return None if self.error is None else StreamingQueryException(message=self.error)

    def stop(self): ...


class ScriptedWriter:
    def __init__(self, query):
        self.query = query

    def queryName(self, name):
        return self

    def option(self, name, value):
        return self

    def trigger(self, **when):
        return self

    def start(self):
        return self.query


class ScriptedPipeline:
    """Each start takes the next list of stages; the last list stays."""

    def __init__(self, *starts):
        self.starts = list(starts)

    def checkpoint_terms(self):
        return CheckpointTerms()

    def build(self, job):
        stages = self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]
        if isinstance(stages, Exception):
            raise stages
        return [
            Stage(name, ScriptedWriter(query), upkeep=query.upkeep)
            for name, query in stages.items()
        ]


class Recorder:
    def __init__(self):
        self.failures: list[str] = []

    def started(self, stages): ...

    def progressed(self, stages): ...

    def failed(self, reason, pause_s):
        self.failures.append(reason)


def runner_of(folder, *starts, restart_max=2, once=False, clock=None, stop=None):
    """A runner, and what it shows."""
    values = {
        "checkpoint.dir": str(folder),
        "restart.max": restart_max,
        "restart.pause.max.s": 0,
    }
    configured = replace(
        configure(pipeline_kind("logs"), values), pipeline=ScriptedPipeline(*starts)
    )
    (folder / "logs").mkdir()
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=bool)))
    shown = Recorder()
    spark = SimpleNamespace(sparkContext=context)
    made = Runner(configured, spark, shown, clock or ManualClock(), once=once, stop=stop)
    return made, shown


def run(folder, *starts, restart_max=2) -> tuple[Recorder, Exception]:
    """What was shown, and the error that ended the run."""
    runner, shown = runner_of(folder, *starts, restart_max=restart_max)
    with pytest.raises(TidemillError) as ended:
        runner.run()
    return shown, ended.value


def test_a_stage_that_goes_on_does_not_hide_the_failures_of_another(tmp_path):
    going = ScriptedQuery()
    shown, error = run(tmp_path, {"good": going, "bad": ScriptedQuery(error="OSError: full")})

    assert str(error).startswith("gave up after 3 failures: bad: OSError: full (all of it is in ")
    assert len(shown.failures) == 2


def test_a_batch_of_the_failed_stage_resets_its_count(tmp_path):
    bad = {"only": ScriptedQuery(error="OSError: full")}
    once = ScriptedQuery()

    def fails_after_a_batch(timeout_s):
        once.batch_id += 1
        if once.batch_id > 2:
            once.error = "OSError: later"

    once.awaitTermination = fails_after_a_batch
    shown, error = run(tmp_path, bad, bad, {"only": once}, bad)

    assert len(shown.failures) == 2 + 2
    assert "gave up after 3 failures" in str(error)


def test_an_outage_while_writing_is_retried_and_a_mistake_is_not(tmp_path):
    mistake = "tidemill.core.errors.UserError: option kafka.bla is not known"
    shown, error = run(
        tmp_path,
        {"only": ScriptedQuery(error=OUTAGE)},
        AnalysisException(message=f"[PYTHON_DATA_SOURCE_ERROR] no\n{OUTAGE}"),
        {"only": ScriptedQuery(error=mistake)},
    )

    where = f"(all of it is in {tmp_path}/logs/failure.txt)"
    sentence = "BrokerUnreachable: cannot write to topic x: refused"
    assert shown.failures == [f"only: {sentence} {where}", f"start: {sentence} {where}"]
    assert isinstance(error, UserError)
    assert str(error) == "option kafka.bla is not known"


def test_a_query_that_spark_cannot_understand_is_the_users_mistake(tmp_path):
    shown, error = run(tmp_path, AnalysisException(message="[PATH_NOT_FOUND] no /x"))

    assert isinstance(error, UserError)
    assert shown.failures == []


class EndlessUpkeep:
    """Takes an eighth of a second for each step, and always has more to do."""

    def __init__(self, clock: ManualClock, stop: StopRequest, steps_max: int = 1_000_000) -> None:
        self.steps = 0
        self._clock = clock
        self._stop = stop
        self._steps_max = steps_max

    def step(self) -> bool:
        self.steps += 1
        self._clock.advance(0.125)
        if self.steps == self._steps_max:
            self._stop.set()
        return True


def test_work_beside_the_batches_takes_half_a_second_at_once_and_the_rest_comes_at_the_end(
    tmp_path,
):
    clock, stop = ManualClock(), StopRequest()
    upkeep = EndlessUpkeep(clock, stop)
    query = ScriptedQuery(batches_max=3, upkeep=upkeep.step)
    runner, _ = runner_of(tmp_path, {"only": query}, once=True, clock=clock, stop=stop)

    runner.run()

    assert upkeep.steps == 3 * 4 + 240


def test_a_stop_does_not_wait_for_work_beside_the_batches(tmp_path):
    clock, stop = ManualClock(), StopRequest()
    upkeep = EndlessUpkeep(clock, stop, steps_max=2)
    query = ScriptedQuery(upkeep=upkeep.step)
    runner, _ = runner_of(tmp_path, {"only": query}, once=True, clock=clock, stop=stop)

    runner.run()

    assert upkeep.steps == 2


@pytest.mark.parametrize("first", [True, False])
def test_work_that_has_to_rest_for_a_poll_is_finished_at_the_end_too(tmp_path, first):
    clock = SimClock(itertools.count(0, 0.5).__next__)
    steps = iter([*([True] * first), False, True, True, False, False, False])
    query = ScriptedQuery(batches_max=0, upkeep=lambda: next(steps))
    runner, _ = runner_of(tmp_path, {"only": query}, once=True, clock=clock)

    runner.run()

    assert list(steps) == []


def test_a_database_that_is_away_when_the_pipeline_starts_again_is_waited_for(tmp_path):
    shown, error = run(tmp_path, DatabaseFailed("the server is starting up"))

    assert str(error).startswith("gave up after 3 failures: start: the server is starting up")
    assert len(shown.failures) == 2


def test_what_only_the_user_can_correct_is_not_tried_again(tmp_path):
    shown, error = run(tmp_path, UserError("no such column"))

    assert isinstance(error, UserError)
    assert shown.failures == []
