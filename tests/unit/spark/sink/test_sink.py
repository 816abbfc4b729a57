from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import BinaryType, StructType

from tests.support.spark_topics import create_topic, records_of
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.errors import UserError
from tidemill.spark.sink import client as sink_client
from tidemill.spark.sink.lease import SinkLease
from tidemill.spark.sink.rows_written import RowsWritten
from tidemill.spark.sink.sink import batch_writer, stream_writer
from tidemill.testing.embedded import RunningBroker, broker

SCHEMA = StructType().add("value", BinaryType())
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


LEASE = SinkLease(ProducerIdentity(12, 3, "sink"), {})


class RecordedDelivery:
    """Gives a lease and records its calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def lease(self) -> SinkLease:
        self.calls.append("lease")
        return LEASE

    def commit(self, messages) -> None:
        self.calls.append(("commit", messages))

    def abort(self, messages, lease) -> None:
        self.calls.append(("abort", messages, lease))


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker() as started:
        yield started
    while sink_client._idle:
        sink_client._idle.popitem()[1].close()


def rows(*values: bytes) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch([pa.array(values, pa.binary())], names=["value"])])


def test_spark_gets_writers_that_take_arrow():
    assert isinstance(batch_writer(OPTIONS, SCHEMA, False), DataSourceArrowWriter)
    assert isinstance(stream_writer(OPTIONS, SCHEMA, False), DataSourceStreamArrowWriter)


def test_a_topic_cannot_be_overwritten():
    with pytest.raises(UserError, match="use mode append"):
        batch_writer(OPTIONS, SCHEMA, True)


def test_complete_mode_appends_every_result():
    assert stream_writer(OPTIONS, SCHEMA, True) is not None


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_wrong_columns_are_refused_before_anything_runs(make):
    with pytest.raises(UserError, match="the column value is missing"):
        make(OPTIONS, StructType().add("key", BinaryType()), False)


def test_the_lease_is_taken_once_however_often_the_writer_is_pickled():
    writer = stream_writer(OPTIONS, SCHEMA, False)
    delivery = writer._delivery = RecordedDelivery()
    first, second = pickle.dumps(writer), pickle.dumps(writer)
    assert delivery.calls == ["lease"]
    for copy in (pickle.loads(first), pickle.loads(second)):
        assert copy._lease == LEASE


def test_a_writer_that_only_commits_takes_no_lease():
    writer = stream_writer(OPTIONS, SCHEMA, False)
    delivery = writer._delivery = RecordedDelivery()
    writer.commit([RowsWritten()], 7)
    writer.abort([None], 8)
    assert delivery.calls == [("commit", [RowsWritten()]), ("abort", [None], None)]


def test_the_writer_of_a_batch_still_has_its_lease_when_it_aborts():
    writer = batch_writer(OPTIONS, SCHEMA, False)
    delivery = writer._delivery = RecordedDelivery()
    pickle.dumps(writer)
    writer.commit([])
    writer.abort([])
    assert delivery.calls == ["lease", ("commit", []), ("abort", [], LEASE)]


def test_a_task_reports_its_rows_by_topic_and_partition(running):
    create_topic(running.bootstrap, "t")
    options = OPTIONS | {"kafka.bootstrap.servers": running.bootstrap}
    writer = pickle.loads(pickle.dumps(batch_writer(options, SCHEMA, False)))
    message = pickle.loads(pickle.dumps(writer.write(rows(b"a", b"b"))))
    assert message.rows == {("t", 0): 2}
    assert message.total == 2
    assert [record.value for record in records_of(running.bootstrap, "t")] == [b"a", b"b"]


def test_the_next_task_of_a_worker_uses_the_same_client(running):
    create_topic(running.bootstrap, "t")
    options = OPTIONS | {"kafka.bootstrap.servers": running.bootstrap}
    writer = stream_writer(options, SCHEMA, False)
    writer.write(rows(b"a"))
    (client,) = sink_client._idle.values()
    writer.write(rows(b"b"))
    assert list(sink_client._idle.values()) == [client]


def test_a_failed_task_closes_its_connections(running):
    create_topic(running.bootstrap, "t", max_message_bytes="100")
    options = OPTIONS | {"kafka.bootstrap.servers": running.bootstrap}
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        stream_writer(options, SCHEMA, False).write(rows(bytes(range(256))))
    assert sink_client._idle == {}


def test_idle_clients_are_bounded(running):
    create_topic(running.bootstrap, "t")
    for number in range(6):
        options = OPTIONS | {
            "kafka.bootstrap.servers": running.bootstrap,
            "kafka.client.id": f"client-{number}",
        }
        stream_writer(options, SCHEMA, False).write(rows(b"v"))
    assert [asked.client_id for asked in sink_client._idle] == [f"client-{n}" for n in (2, 3, 4, 5)]
