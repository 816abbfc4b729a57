"""Fetch sessions over the life of their topics: deleted, unknown at first, refused for long."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.server.handlers.data.fetch import REPEATED_ERROR_WAIT_MS
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)

BY_NAME, BY_ID = 12, 13
VERSIONS = [BY_NAME, BY_ID]
LONG_MS = 30_000


class Reader:
    """A consumer with a session, which waits long for records."""

    def __init__(self, broker, version, *topics):
        self.broker = broker
        self.version = version
        self.ids = {name: broker.image.topic(name).topic_id for name in topics}
        self.session_id = 0
        self.epoch = 0

    def start(self, *read, forget=(), offset=0):
        """Send the next fetch of the session; its answer, or a deferred one."""
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=LONG_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(**self._named(name), partitions=[wanted]) for name in read],
            forgotten_topics_data=[
                ForgottenTopic(**self._named(name), partitions=[0]) for name in forget
            ],
        )
        answer = self.broker.start_deferred(request, self.version)
        self.epoch += 1
        if not isinstance(answer, Deferred):
            self.session_id = answer.session_id
        return answer

    def wait(self, *read, **fields):
        """Start a fetch that must wait; the list that its answer will be put in."""
        answer, heard = self.start(*read, **fields), []
        assert isinstance(answer, Deferred)
        answer.then(heard.append)
        turn(self.broker)
        assert heard == []
        return heard

    def _named(self, name):
        return {"topic_id": self.ids[name]} if self.version >= BY_ID else {"topic": name}


def turn(broker):
    async def nothing():
        pass

    broker.run(nothing())
    broker.run(nothing())


def pass_time(broker, ms):
    """A timer may be a slot of its wheel late."""
    broker.clock.now_ms += ms + 20
    broker.loop.call_soon(broker.timers._turn)
    turn(broker)


def codes(answer):
    return [data.error_code for topic in answer.responses for data in topic.partitions]


@pytest.fixture(params=VERSIONS, ids=["by name", "by id"])
def reader(broker, request):
    """It has a session with two empty topics; then one of them is deleted."""
    for name in ("deleted", "kept"):
        broker.make_topic(name)
    reader = Reader(broker, request.param, "deleted", "kept")
    heard = reader.wait("deleted", "kept")
    broker.run(broker.cluster.delete_topics(["deleted"]))
    turn(broker)
    reader.session_id = heard[0].session_id
    assert codes(heard[0]) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    return reader


def test_T35_a_session_can_forget_a_deleted_topic(broker, reader):
    heard = reader.wait(forget=["deleted"])
    pass_time(broker, LONG_MS)
    assert [answer.responses for answer in heard] == [[]]


def test_T35_an_error_that_a_session_was_told_does_not_end_every_wait(broker, reader):
    heard = reader.wait()
    pass_time(broker, REPEATED_ERROR_WAIT_MS - 50)
    assert heard == []


def test_T35_an_error_is_told_again_in_every_answer(broker, reader):
    heard = reader.wait()
    broker.append("kept", NOW_MS)
    turn(broker)
    assert sorted(codes(heard[0])) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    later = reader.wait("kept", offset=1)
    pass_time(broker, REPEATED_ERROR_WAIT_MS)
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in codes(later[0])


def test_T35_a_session_that_reads_nothing_but_a_deleted_topic_waits_too(broker, reader):
    heard = reader.wait(forget=["kept"])
    pass_time(broker, REPEATED_ERROR_WAIT_MS)
    assert codes(heard[0]) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_T35_a_partition_that_is_described_anew_is_refused_at_once(reader):
    reader.wait()
    answer = reader.start("deleted", offset=7)
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_T35_another_error_is_told_at_once(broker, reader):
    """The topic exists again, under another id."""
    broker.make_topic("deleted")
    answer = reader.start()
    if reader.version >= BY_ID:
        assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_ID]
    else:
        assert isinstance(answer, Deferred)


def test_T35_a_reader_without_a_session_is_told_at_once_every_time(broker):
    broker.make_topic("deleted")
    reader = Reader(broker, BY_ID, "deleted")
    broker.run(broker.cluster.delete_topics(["deleted"]))
    for _ in range(2):
        reader.session_id, reader.epoch = 0, -1
        assert codes(reader.start("deleted")) == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_T17_a_topic_that_was_unknown_at_first_is_read_once_it_is_known(broker):
    """A client may learn of a new topic before the broker that it asks does."""
    broker.make_topic("new")
    broker.append("new", NOW_MS)
    reader = Reader(broker, BY_ID, "new")
    known, keeper = broker.image, broker.cluster._keeper
    keeper.image = replace(known, names={})
    assert codes(reader.start("new")) == [ErrorCode.UNKNOWN_TOPIC_ID]
    keeper.image = known
    (data,) = reader.start().responses[0].partitions
    assert [header.base_offset for _, header in iter_headers(data.records)] == [0]


def test_T17_an_id_that_never_becomes_known_stays_unknown(broker):
    broker.make_topic("t")
    reader = Reader(broker, BY_ID, "t")
    reader.ids["t"] = UUID(int=5)
    assert codes(reader.start("t")) == [ErrorCode.UNKNOWN_TOPIC_ID]
    heard = reader.wait()
    pass_time(broker, REPEATED_ERROR_WAIT_MS)
    assert codes(heard[0]) == [ErrorCode.UNKNOWN_TOPIC_ID]
