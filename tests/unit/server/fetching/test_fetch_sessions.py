"""Incremental fetch sessions, case by case as in the table of `fetch_sessions.py`."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.rng import SeededRng
from tidemill.server.fetching import fetch_sessions
from tidemill.server.fetching.fetch_sessions import PARTITIONS_PER_SESSION_MAX, FetchSessions
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)


def _request(session_id: int, epoch: int, *partitions: int, offset: int = 0) -> FetchRequest:
    wanted = [FetchPartition(partition=p, fetch_offset=offset) for p in partitions]
    topics = [FetchTopic(topic="t", partitions=wanted)] if wanted else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def _sessions(sessions_max: int = 10) -> FetchSessions:
    return FetchSessions(SeededRng(1), sessions_max)


def test_T35_epoch_minus_one_reads_without_a_session():
    plan = _sessions().plan(_request(0, -1, 0, 1), now=0.0)
    assert plan.session_id == 0
    assert [target.index for target in plan.targets] == [0, 1]


def test_T35_a_session_remembers_partitions_and_takes_differences():
    sessions = _sessions()
    opened = sessions.plan(_request(0, 0, 0, 1, 2), now=0.0)
    assert opened.session_id != 0
    assert not opened.incremental
    request = _request(opened.session_id, 1, 1, offset=50)
    request.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[2])]
    plan = sessions.plan(request, now=1.0)
    assert plan.incremental
    assert [(t.index, t.fetch_offset) for t in plan.targets] == [(0, 0), (1, 50)]


def test_T35_a_wrong_epoch_and_an_unknown_session_are_told_apart():
    sessions = _sessions()
    opened = sessions.plan(_request(0, 0, 0), now=0.0)
    with pytest.raises(KafkaError) as wrong_epoch:
        sessions.plan(_request(opened.session_id, 2), now=0.0)
    assert wrong_epoch.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    with pytest.raises(KafkaError) as unknown:
        sessions.plan(_request(opened.session_id + 1, 1), now=0.0)
    assert unknown.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_T35_the_final_epoch_closes_the_session():
    sessions = _sessions()
    opened = sessions.plan(_request(0, 0, 0), now=0.0)
    sessions.plan(_request(opened.session_id, -1, 0), now=0.0)
    assert len(sessions) == 0


def test_T35_a_partition_is_news_only_while_something_changed():
    plan = _sessions().plan(_request(0, 0, 0), now=0.0)
    target = plan.targets[0]
    quiet = PartitionData(high_watermark=5, log_start_offset=0)
    assert target.is_news(quiet)
    assert not target.is_news(quiet)
    assert target.is_news(PartitionData(high_watermark=6, log_start_offset=0))
    assert target.is_news(PartitionData(high_watermark=6, log_start_offset=1))
    assert target.is_news(PartitionData(error_code=6))


def test_S38_a_full_table_declines_new_sessions_instead_of_pushing_out_active_ones():
    sessions = _sessions(sessions_max=2)
    for _ in range(2):
        sessions.plan(_request(0, 0, 0), now=0.0)
    assert sessions.plan(_request(0, 0, 0), now=10.0).session_id == 0
    assert len(sessions) == 2


def test_S38_an_idle_session_makes_room():
    sessions = _sessions(sessions_max=1)
    sessions.plan(_request(0, 0, 0), now=0.0)
    assert sessions.plan(_request(0, 0, 0), now=500.0).session_id != 0
    assert len(sessions) == 1


def test_S38_a_session_that_grows_beyond_its_bound_is_dropped_with_all_it_held():
    sessions = _sessions()
    opened = sessions.plan(_request(0, 0, 0), now=0.0)
    with pytest.raises(KafkaError) as refused:
        sessions.plan(
            _request(opened.session_id, 1, *range(PARTITIONS_PER_SESSION_MAX + 1)), now=0.0
        )
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_S38_all_sessions_together_hold_only_so_many_partitions(monkeypatch):
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 100)
    sessions = _sessions(sessions_max=1000)
    ids = [sessions.plan(_request(0, 0, *range(20)), now=0.0).session_id for _ in range(5)]
    assert all(ids)
    assert sessions.plan(_request(0, 0, 0), now=0.0).session_id == 0
    sessions.plan(_request(ids[0], -1), now=0.0)
    assert sessions.plan(_request(0, 0, 0), now=0.0).session_id != 0


def test_S38_idle_sessions_make_room_for_the_partitions_of_a_new_one(monkeypatch):
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 100)
    sessions = _sessions(sessions_max=1000)
    for _ in range(5):
        sessions.plan(_request(0, 0, *range(20)), now=0.0)
    assert sessions.plan(_request(0, 0, *range(30)), now=500.0).session_id != 0
    assert len(sessions) == 4


def test_S38_a_session_does_not_grow_beyond_what_all_may_hold(monkeypatch):
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 100)
    sessions = _sessions()
    opened = sessions.plan(_request(0, 0, 0), now=0.0)
    with pytest.raises(KafkaError):
        sessions.plan(_request(opened.session_id, 1, *range(101)), now=0.0)
    assert sessions.plan(_request(0, 0, *range(100)), now=0.0).session_id != 0
