"""ListOffsets by time on a view: the times of what it shows."""

from __future__ import annotations

import pytest

from tests.unit.server.handlers.data import test_held_views
from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import MATCHLESS_BYTES_MIN
from tidemill.server.fetching import view_reader
from tidemill.server.handlers.data import view_times
from tidemill.wire import compression
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.records import Record, build_batch

VIEW = {"tidemill.view.of": "orders", "tidemill.view.filter": "region = 'eu'"}
GREATEST = -3


@pytest.fixture
def viewed(broker):
    broker.make_topic("orders")
    broker.make_topic("orders.eu", partitions=-1, overrides=VIEW)
    return broker


def send(broker, *records, value=b"v", **options):
    """One batch with a record for each pair of a region and a time."""
    made = [Record(value, timestamp=t, headers=[("region", r.encode())]) for r, t in records]
    batch = build_batch(made, **options)
    broker.partition("orders").as_leader.append(memoryview(batch), acks=1, now_ms=NOW_MS)


def ask(broker, timestamp, topic="orders.eu", **fields):
    """Error code, offset and time of the answer."""
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    topics = [ListOffsetsTopic(name=topic, partitions=wanted)]
    answer = broker.call(ListOffsetsRequest(replica_id=-1, topics=topics, **fields), 7)
    (found,) = answer.topics[0].partitions
    return found.error_code, found.offset, found.timestamp


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_a_time_is_that_of_the_first_record_that_the_view_shows(viewed, codec):
    send(viewed, ("eu", 1000), ("us", 2000), ("us", 2001), ("eu", 2002), codec=codec)
    send(viewed, ("eu", 2003))
    assert ask(viewed, 2000) == (ErrorCode.NONE, 3, 2002)
    assert ask(viewed, 2003) == (ErrorCode.NONE, 4, 2003)
    assert ask(viewed, 0) == (ErrorCode.NONE, 0, 1000)


def test_a_record_that_is_shown_but_older_is_passed(viewed):
    send(viewed, ("us", 3000))
    send(viewed, ("eu", 1000))
    send(viewed, ("eu", 3001))
    assert ask(viewed, 2000) == (ErrorCode.NONE, 2, 3001)


def test_a_time_after_the_last_record_that_is_shown_is_no_error(viewed):
    send(viewed, ("eu", 1000), ("us", 2000))
    assert ask(viewed, 1500) == (ErrorCode.NONE, -1, -1)
    assert ask(viewed, 2500) == (ErrorCode.NONE, -1, -1)


def test_the_greatest_time_is_one_that_is_shown(viewed):
    send(viewed, ("eu", 1000), ("eu", 1500), ("us", 2000))
    send(viewed, ("eu", 1500), ("us", 3000))
    assert ask(viewed, GREATEST) == (ErrorCode.NONE, 1, 1500)


def test_a_view_that_shows_nothing_has_no_greatest_time(viewed):
    send(viewed, ("us", 1000))
    assert ask(viewed, GREATEST) == (ErrorCode.NONE, -1, -1)


def test_what_is_deleted_does_not_count(viewed):
    send(viewed, ("eu", 1000))
    send(viewed, ("eu", 1001))
    viewed.partition("orders").log.advance_start(1)
    assert ask(viewed, 0) == (ErrorCode.NONE, 1, 1001)
    assert ask(viewed, GREATEST) == (ErrorCode.NONE, 1, 1001)


@pytest.fixture
def large(viewed, monkeypatch):
    """Too much for one request: nothing of it is shown, except for the last record."""
    monkeypatch.setattr(view_reader, "FILTERED_LOOK_BYTES_MAX", 1)
    monkeypatch.setattr(view_times, "FILTERED_FETCH_LOOK_BYTES_MAX", 4 * MATCHLESS_BYTES_MIN)
    for _ in range(6):
        send(viewed, ("us", 2000), value=bytes(MATCHLESS_BYTES_MIN))
    send(viewed, ("eu", 2001))
    return viewed


def test_a_search_that_takes_too_long_answers_with_a_place_before_the_record(large):
    code, offset, timestamp = ask(large, 2000)
    assert (code, timestamp) == (ErrorCode.NONE, 2000)
    assert offset == 4
    # What was looked at is known, and the next search goes on behind it.
    assert ask(large, 2000) == (ErrorCode.NONE, 6, 2001)


def test_a_greatest_time_that_would_take_too_long_is_refused(large):
    assert ask(large, GREATEST) == (ErrorCode.POLICY_VIOLATION, -1, -1)


def test_the_times_of_a_view_of_what_is_held_are_those_of_held_records(broker):
    broker.make_topic("calls")
    broker.make_topic("calls.held", partitions=-1, overrides=test_held_views.HELD)
    test_held_views.send(broker, [])
    test_held_views.send(broker, [], test_held_views.DELAY)
    code, offset, _ = ask(broker, NOW_MS, topic="calls.held")
    assert (code, offset) == (ErrorCode.NONE, 2)
