"""What a leader has to tell a follower: only what has changed, and each thing once."""

from __future__ import annotations

import pytest

from tests.support.partitions import OWN, SECOND, THIRD, Watcher, append, fetched, image, leader
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.serving.replica_session import ReplicaSession, ReplicaSlot
from tidemill.replication.serving.replica_sessions import (
    CATCH_UP_LANE,
    HOT_LANE,
    ReplicaSessions,
)

BOTH = (OWN, SECOND)


def new_session(session_id: int = 1, *, lane: int = HOT_LANE) -> ReplicaSession:
    return ReplicaSession(session_id, broker_id=SECOND, broker_epoch=8, lane=lane)


def name(session: ReplicaSession, led: Partition, *, offset: int = 0, seen: int = 0) -> ReplicaSlot:
    slot = session.slot((led.topic_id, id(led)), led)
    slot.named(leader_epoch=led.leader_epoch, fetch_offset=offset, max_bytes=100, seen=seen)
    return slot


def told(session: ReplicaSession) -> list[ReplicaSlot]:
    """Everything that the next answer tells; records where there are any."""
    session.fetches += 1
    slots = []
    while slot := session.take_next():
        slots.append(slot)
        slot.told(has_records=slot.fetch_offset < slot.partition.log.log_end_offset)
    return slots


def test_a_slot_that_was_just_named_is_told_only_what_it_lacks():
    session, led = new_session(), leader(isr=BOTH)
    slot = name(session, led)
    assert not session.has_news
    assert told(session) == [slot]  # the marks, which it has not heard of
    name(session, led)
    assert told(session) == []
    append(led)
    name(session, led)
    assert session.has_news
    assert told(session) == [slot]


def test_an_append_makes_news_of_its_slot_alone_and_wakes_the_fetch_that_waits():
    session = new_session()
    partitions = [leader(isr=BOTH) for _ in range(5)]
    slots = [name(session, one) for one in partitions]
    told(session)
    watcher = Watcher()
    session.watchers[watcher] = None
    append(partitions[3])
    append(partitions[3])
    assert watcher.wakes == 1
    assert told(session) == [slots[3]]


def test_while_records_are_on_their_way_an_append_is_no_news():
    session, led = new_session(), leader(isr=BOTH)
    slot = name(session, led)
    append(led)
    assert told(session) == [slot]
    append(led)
    assert not session.has_news
    name(session, led, offset=1, seen=1)
    assert told(session) == [slot]


def test_a_slot_that_is_named_before_its_records_arrived_is_not_sent_them_again():
    session, led = new_session(), leader(isr=BOTH)
    slot = name(session, led)
    append(led)
    told(session)
    name(session, led, offset=0, seen=0)
    assert not session.has_news
    # It has seen the answer, but could not use the records.
    name(session, led, offset=0, seen=1)
    assert told(session) == [slot]


def test_a_mark_alone_is_not_news_until_it_is_due_but_rides_with_records():
    session, led, other = new_session(), leader(isr=BOTH), leader(isr=BOTH)
    slot, second = name(session, led), name(session, other)
    append(led)
    told(session)
    came: list[str] = []
    session.marks_came = lambda: came.append("marks")
    name(session, led, offset=1, seen=1)
    fetched(SECOND, led, 1)
    assert came == ["marks"]
    assert not session.has_news
    append(other)
    assert told(session) == [second, slot]
    append(led)
    fetched(SECOND, led, 1)
    assert session.has_news


def test_marks_that_are_due_are_news():
    session, led = new_session(), leader(isr=BOTH)
    slot = name(session, led)
    session.marks_are_due = True
    assert session.has_news
    assert told(session) == [slot]
    assert not session.marks_are_due


def test_a_mark_that_was_told_is_not_told_again():
    session, led = new_session(), leader(isr=BOTH)
    name(session, led)
    told(session)
    led.review_marks(now=0.0)
    assert len(told(session)) == 1  # the log start may be another one
    led.review_marks(now=0.0)
    assert told(session) == []


def test_another_role_is_news_even_while_records_are_on_their_way():
    session, led = new_session(), leader(isr=BOTH)
    slot = name(session, led)
    append(led)
    told(session)
    led.become_leader(image(epoch=led.leader_epoch + 1, isr=BOTH), now=0.0)
    assert session.has_news
    assert told(session) == [slot]


def test_a_follower_has_one_slot_for_a_partition_over_both_lanes():
    hot, catch_up, led = new_session(), new_session(2, lane=CATCH_UP_LANE), leader(isr=BOTH)
    name(hot, led)
    name(catch_up, led)
    assert (len(hot.slots), len(catch_up.slots)) == (0, 1)
    append(led)
    assert not hot.has_news
    assert catch_up.has_news


def test_a_session_that_is_closed_hears_of_nothing():
    session, led = new_session(), leader(isr=BOTH)
    name(session, led)
    session.close()
    append(led)
    assert not session.has_news
    assert not session.slots


def test_a_partition_that_was_made_anew_gets_a_new_slot():
    session, old, new = new_session(), leader(isr=BOTH), leader(isr=BOTH)
    key = (old.topic_id, 0)
    slot = session.slot(key, old)
    assert session.slot(key, new) is not slot
    assert list(session.slots.values()) == [session.slot(key, new)]


def test_a_session_is_bounded():
    session = ReplicaSession(1, broker_id=SECOND, broker_epoch=8, lane=HOT_LANE, slots_max=1)
    name(session, leader(isr=BOTH))
    with pytest.raises(KafkaError) as caught:
        name(session, leader(isr=BOTH))
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# --- all sessions ---------------------------------------------------------------------------------


def opened(sessions: ReplicaSessions, peer: str, *, lane: int = HOT_LANE) -> ReplicaSession:
    return sessions.open(peer, broker_id=SECOND, broker_epoch=8, lane=lane)


def test_only_the_connection_that_opened_a_session_can_use_it():
    sessions = ReplicaSessions()
    session = opened(sessions, "a")
    found = sessions.find("a", session.session_id, broker_id=SECOND, broker_epoch=8)
    assert found is session
    for peer, session_id, broker_id, broker_epoch in (
        ("b", session.session_id, SECOND, 8),
        ("a", session.session_id + 1, SECOND, 8),
        ("a", session.session_id, THIRD, 8),
        ("a", session.session_id, SECOND, 9),
    ):
        with pytest.raises(KafkaError):
            sessions.find(peer, session_id, broker_id=broker_id, broker_epoch=broker_epoch)


def test_a_newer_connection_of_the_same_lane_ends_the_older_one():
    sessions, led = ReplicaSessions(), leader(isr=BOTH)
    old = opened(sessions, "a")
    name(old, led)
    catch_up = opened(sessions, "c", lane=CATCH_UP_LANE)
    new = opened(sessions, "b")
    assert not old.slots
    assert sessions.try_find("a") is None
    assert sessions.try_find("b") is new
    assert sessions.try_find("c") is catch_up
    assert len(sessions) == 2


def test_a_session_ends_with_its_connection():
    sessions, led = ReplicaSessions(), leader(isr=BOTH)
    session = opened(sessions, "a")
    name(session, led)
    sessions.end("a")
    sessions.end("a")
    append(led)
    assert len(sessions) == 0
    assert not session.has_news


def test_there_are_two_lanes():
    with pytest.raises(KafkaError) as caught:
        opened(ReplicaSessions(), "a", lane=2)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
