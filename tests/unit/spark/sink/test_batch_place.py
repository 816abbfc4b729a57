"""What Spark's local properties tell a task about its batch."""

from __future__ import annotations

import pytest
from pyspark import TaskContext

from tidemill.core.errors import UserError
from tidemill.spark.sink.batch_place import BatchPlace, TaskPlace, task_place

RUN = "0f9619ff-8b86-4011-b42d-00c04fc964ff"
STREAM = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7", "spark.jobGroup.id": RUN}


class FakeContext:
    """The context of a task with these local properties."""

    def __init__(self, properties):
        self._properties = properties

    def getLocalProperty(self, name):
        return self._properties.get(name)

    def attemptNumber(self):
        return 2


@pytest.fixture
def told(monkeypatch):
    def tell(properties):
        monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: FakeContext(properties)))

    return tell


def test_a_task_of_a_stream_knows_query_run_and_batch(told):
    told(STREAM)
    assert task_place() == TaskPlace(BatchPlace("q", RUN, 7), attempt=2)


def test_a_task_outside_streams_has_no_batch(told):
    told({"spark.jobGroup.id": "nightly load"})
    assert task_place() == TaskPlace(None, attempt=2)


@pytest.mark.parametrize("group", ["nightly", "nightly load", "", None])
def test_F73_a_job_group_of_the_user_is_refused_because_it_hides_the_run(told, group):
    """All runs would look the same: a batch that was committed could not be told from a second
    write of one run, and a restarted query would fail on it for ever."""
    told(STREAM | {"spark.jobGroup.id": group})
    with pytest.raises(UserError, match="setJobGroup"):
        task_place()


def test_a_note_is_read_back():
    place = BatchPlace("q", RUN, 7)
    assert BatchPlace.try_from_note(place.note, 7) == place
