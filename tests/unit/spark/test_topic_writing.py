from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.topic_writing import ONE_ATTEMPT, stream_to_topic, write_topic

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def frame(master: str, **conf: str) -> SimpleNamespace:
    """As much of a frame as is looked at before anything is asked of a broker."""
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    session = SimpleNamespace(
        conf=SimpleNamespace(get=settings.get), sparkContext=SimpleNamespace(master=master)
    )
    return SimpleNamespace(sparkSession=session)


def test_exactly_once_refuses_sessions_that_run_tasks_twice():
    rows = frame("local[2]", spark_speculation="true")
    with pytest.raises(UserError, match="speculation"):
        stream_to_topic(rows, "t", options=OPTIONS)
    with pytest.raises(UserError, match="speculation"):
        write_topic(rows, "t", transactional_id="x", options=OPTIONS)


@pytest.mark.parametrize("master", ["spark://one:7077", "local-cluster[2,1,1024]"])
def test_exactly_once_refuses_a_cluster_that_repeats_stages(master):
    with pytest.raises(UserError, match="maxConsecutiveAttempts=1"):
        stream_to_topic(frame(master), "t", options=OPTIONS)


@pytest.mark.parametrize("master", ["local[2]", "spark://one:7077"])
def test_the_settings_for_one_attempt_are_enough(master):
    rows = frame(master)
    rows.sparkSession.conf.get = ONE_ATTEMPT.get
    with pytest.raises(UserError, match="not a topic name"):  # the next thing that is checked
        stream_to_topic(rows, "no topic", options=OPTIONS)
