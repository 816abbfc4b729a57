"""Requests on a view of what is held."""

from __future__ import annotations

import pytest

from tests.unit.server.handlers.data.test_views import offsets, settled
from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.records import Record, build_batch

HELD = {"tidemill.view.of": "calls", "tidemill.view.held": "true"}
DELAY = [("tidemill.delay-ms", b"60000")]
COMMITTED = 1


@pytest.fixture
def viewed(broker):
    broker.make_topic("calls")
    broker.make_topic("calls.held", partitions=-1, overrides=HELD)
    return broker


def send(broker, *headers, acks=1, **options):
    """One batch, with a record for each list of headers."""
    batch = build_batch([Record(b"v", headers=h, timestamp=NOW_MS) for h in headers], **options)
    broker.partition("calls").as_leader.append(memoryview(batch), acks=acks, now_ms=NOW_MS)


def start(broker, offset, **fields):
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="calls.held", partitions=[wanted])]
    given = {"max_bytes": 1 << 20, "min_bytes": 1, **fields}
    return broker.start_deferred(FetchRequest(**given, topics=topics), 12)


def fetch(broker, offset, **fields):
    return settled(broker, start(broker, offset, **fields))


def test_a_fetch_gets_what_is_held_and_a_position_behind_the_rest(viewed):
    send(viewed, [], DELAY)
    send(viewed, [])
    data = fetch(viewed, 0)
    assert data.error_code == ErrorCode.NONE
    assert offsets(data) == ([1], 3)
    assert (data.high_watermark, data.log_start_offset) == (3, 0)


def test_a_topic_that_holds_nothing_has_an_empty_view(viewed):
    send(viewed, [], [])
    assert offsets(fetch(viewed, 0)) == ([], 2)


def test_a_fetch_at_the_end_waits_for_what_is_held_next(viewed):
    send(viewed, [])
    answer = start(viewed, 1, max_wait_ms=10_000)
    assert not answer.resolved
    send(viewed, [], DELAY)
    assert offsets(settled(viewed, answer)) == ([2], 3)


def test_what_is_cancelled_is_no_longer_shown(viewed):
    send(viewed, DELAY, DELAY)
    cancel = [("tidemill.command", b"cancel"), ("tidemill.target", b"0")]
    send(viewed, cancel, acks=-1)
    assert offsets(fetch(viewed, 0)) == ([1], 3)


@pytest.mark.parametrize("isolation_level", [0, COMMITTED])
def test_an_open_transaction_decides_first_whether_its_records_are_held(viewed, isolation_level):
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    send(viewed, DELAY)
    send(viewed, DELAY, **producer)
    answer = start(viewed, 1, isolation_level=isolation_level, max_wait_ms=10_000)
    assert not answer.resolved
    viewed.partition("calls").as_leader.append_marker(
        1, 0, is_commit=True, coordinator_epoch=3, now_ms=NOW_MS
    )
    assert offsets(settled(viewed, answer)) == ([1], 3)


def test_while_the_holds_are_being_read_the_view_says_to_try_again(viewed):
    send(viewed, DELAY)
    viewed.partition("calls").holds.was_cut()
    assert fetch(viewed, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
