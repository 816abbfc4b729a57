"""The steps of an exactly-once write against brokers in memory, without Spark."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.sql.types import BinaryType, IntegerType, StructType

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_transactions import FakeTransactions
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.client.producing.transaction_errors import ProducerFenced
from tidemill.core.errors import UserError
from tidemill.spark.bridge import blocking_client
from tidemill.spark.sink import sink
from tidemill.spark.sink.batch_place import BatchPlace, TaskPlace
from tidemill.spark.sink.lease import BatchMustRestart, latest_batches
from tidemill.spark.sink.rows_written import RowsWritten
from tidemill.spark.sink.sink import batch_writer, stream_writer
from tidemill.wire.api_keys import ApiKey

SCHEMA = StructType().add("value", BinaryType()).add("partition", IntegerType())


class Query:
    """A query on brokers in memory; `run` is its driver, `task` what Spark tells a task."""

    def __init__(self, patch: pytest.MonkeyPatch, checkpoint: str) -> None:
        self.cluster = FakeCluster()
        self.topic = self.cluster.add_topic("t", 2)
        self.transactions = FakeTransactions(self.cluster)
        host, port = self.cluster.bootstrap[0]
        self.options = {
            "kafka.bootstrap.servers": f"{host}:{port}",
            "topic": "t",
            "delivery": "exactly_once",
            "checkpointlocation": checkpoint,
        }
        self._patch = patch
        patch.setattr(blocking_client, "AsyncioNet", lambda: self.cluster.net)
        self.work_for(batch=0)

    def work_for(self, *, batch: int, query: str = "q", run: str = "run1", attempt: int = 0):
        """What the next tasks are told, and by which driver."""
        self._patch.setattr(SparkFiles, "_root_directory", f"/tmp/{run}", raising=False)
        place = TaskPlace(BatchPlace(query, run, batch), attempt)
        self._patch.setattr(sink, "task_place", lambda: place)

    def planned(self):
        """A writer as Spark sends it to tasks."""
        return pickle.loads(pickle.dumps(stream_writer(self.options, SCHEMA, False)))

    def fresh(self):
        """A writer as Spark makes it to commit or abort."""
        return stream_writer(self.options, SCHEMA, False)

    def write(self, writer, *values: bytes, partition: int = 0) -> RowsWritten:
        columns = [pa.array(values, pa.binary()), pa.array([partition] * len(values), pa.int32())]
        rows = pa.record_batch(columns, names=["value", "partition"])
        return pickle.loads(pickle.dumps(writer.write(iter([rows]))))

    def opened(self) -> int:
        return len(self.cluster.asked(ApiKey.INIT_PRODUCER_ID))


@pytest.fixture
def query(monkeypatch, tmp_path):
    yield Query(monkeypatch, str(tmp_path))
    while blocking_client._clients:
        blocking_client._clients.popitem()[1].close()


def test_the_rows_of_all_tasks_are_committed_with_query_and_batch(query):
    query.work_for(batch=7)
    writer = query.planned()
    messages = [query.write(writer, b"a", b"b"), query.write(writer, b"c", partition=1)]
    query.fresh().commit(messages, 7)
    assert [message.rows for message in messages] == [{("t", 0): 2}, {("t", 1): 1}]
    assert query.transactions.offsets == {("t", 0): (8, "q run1")}
    assert query.transactions.ends == [(0, True)]
    assert query.opened() == 1


def test_a_batch_that_was_committed_is_left_out_when_a_later_run_repeats_it(query):
    query.fresh().commit([query.write(query.planned(), b"a")], 0)
    query.work_for(batch=0, run="run2")
    message = query.write(query.planned(), b"a")
    query.fresh().commit([message], 0)
    assert message.rows == {}
    assert query.topic.partitions[0].values() == [b"a"]
    assert query.transactions.ends == [(0, True)]


def test_a_batch_that_was_not_committed_is_written_again_under_a_new_epoch(query):
    query.write(query.planned(), b"a")
    query.work_for(batch=0, run="run2")
    query.fresh().commit([query.write(query.planned(), b"a")], 0)
    assert query.transactions.offsets == {("t", 0): (1, "q run2")}
    assert query.transactions.ends == [(1, True)]


def test_a_query_with_a_new_checkpoint_does_not_inherit_the_batches_of_another(query):
    query.work_for(batch=5)
    query.fresh().commit([query.write(query.planned(), b"a")], 5)
    query.work_for(batch=0, query="another")
    assert query.write(query.planned(), b"b").rows == {("t", 0): 1}


def test_one_run_cannot_write_a_batch_twice_under_one_name(query):
    query.fresh().commit([query.write(query.planned(), b"a")], 0)
    with pytest.raises(UserError, match="give each write a name of its own"):
        query.write(query.planned(), b"b")


def test_a_second_attempt_of_a_task_writes_nothing(query):
    query.work_for(batch=0, attempt=1)
    with pytest.raises(BatchMustRestart, match="attempt 1"):
        query.write(query.planned(), b"a")
    assert query.topic.partitions[0].values() == []


def test_a_second_attempt_that_calls_itself_the_first_finds_the_rows_of_the_first(query):
    writer = query.planned()
    query.write(writer, b"a")
    with pytest.raises(BatchMustRestart, match="already has rows of this batch"):
        query.write(writer, b"b")
    assert query.topic.partitions[0].values() == [b"a"]


def test_two_tasks_that_have_written_to_one_partition_are_not_committed(query):
    message = query.write(query.planned(), b"a")
    with pytest.raises(UserError, match="stream_to_topic"):
        query.fresh().commit([message, message], 0)
    assert query.transactions.ends == []


def test_rows_of_an_attempt_that_no_message_tells_of_are_not_committed(query):
    """A stage that Spark repeats starts with attempt 0 again, and may choose other partitions."""
    writer = query.planned()
    query.write(writer, b"a", partition=1)
    message = query.write(writer, b"a")
    with pytest.raises(BatchMustRestart, match="t-1"):
        query.fresh().commit([message], 0)
    assert (query.transactions.ends, query.transactions.offsets) == ([], {})


@pytest.mark.parametrize("written_later", [False, True])
def test_a_batch_is_not_noted_whose_transaction_was_aborted_in_between(query, written_later):
    """An abort of the same driver comes late, and the epoch goes on."""
    writer = query.planned()
    messages = [query.write(writer, b"a")]
    query.fresh().abort([None], 0)
    if written_later:
        messages.append(query.write(writer, b"b", partition=1))
    with pytest.raises(BatchMustRestart, match="t-0"):
        query.fresh().commit(messages, 0)
    assert query.transactions.offsets == {}
    assert query.transactions.ends == [(0, False)]


def test_a_batch_without_rows_ends_no_transaction(query):
    query.fresh().commit([query.write(query.planned())], 0)
    assert query.cluster.asked(ApiKey.END_TXN) == []


def test_an_abort_ends_the_transaction_of_its_own_driver_and_opens_none(query):
    query.write(query.planned(), b"a")
    query.fresh().abort([None], 0)
    assert query.transactions.ends == [(0, False)]
    assert query.opened() == 1


def test_a_driver_that_was_replaced_aborts_nothing(query):
    query.planned()
    query.work_for(batch=0, run="run2")
    query.write(query.planned(), b"a")
    query.work_for(batch=0, run="run1")
    query.fresh().abort([None, None], 0)
    assert query.cluster.asked(ApiKey.END_TXN) == []
    assert query.opened() == 2


def test_an_abort_that_is_refused_is_no_failure_of_its_own(query):
    message = query.write(query.planned(), b"a")
    query.work_for(batch=0, run="run2")
    query.planned()
    query.fresh().abort([message], 0)
    assert query.transactions.ends == []


def test_a_driver_that_was_replaced_cannot_commit(query):
    message = query.write(query.planned(), b"a")
    query.work_for(batch=0, run="run2")
    query.planned()
    with pytest.raises(ProducerFenced):
        query.fresh().commit([message], 0)
    assert query.transactions.offsets == {}


def test_outside_a_stream_rows_are_committed_together_and_no_batch_is_recorded(query, monkeypatch):
    monkeypatch.setattr(sink, "task_place", lambda: TaskPlace(None))
    options = query.options | {"kafka.transactional.id": "job"}
    writer = pickle.loads(pickle.dumps(batch_writer(options, SCHEMA, False)))
    writer.commit([query.write(writer, b"a")])
    assert query.transactions.ends == [(0, True)]
    assert query.transactions.offsets == {}


def test_the_last_batch_of_each_query_is_read_from_the_notes():
    notes = [(8, "q run1"), (3, "q run0"), (1, "p run9"), (5, "something else was noted")]
    assert latest_batches(notes) == {
        "q": BatchPlace("q", "run1", 7),
        "p": BatchPlace("p", "run9", 0),
    }


def test_the_identity_of_a_lease_is_transactional(query):
    lease = query.planned()._lease
    assert lease.identity == ProducerIdentity(77, 0, query.fresh()._options.transactional_id)
