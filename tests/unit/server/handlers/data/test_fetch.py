"""Fetch: whole batches below the mark, now or when there is enough, in a session or without."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.server.cold_log import ColdLog
from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.server.handlers.data import fetch
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.partition_access import PARTITIONS_PER_SLICE
from tidemill.wire import compression
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)

VERSIONS = range(4, 19)
MANY = 2 * PARTITIONS_PER_SLICE + 1


def _request(broker, version, *wanted, name="orders", topic_id=None, **fields):
    known = broker.image.topic(name)
    by_id = version >= 13
    if by_id and topic_id is None:
        topic_id = known.topic_id if known else UUID(int=9)
    partitions = [
        one
        if isinstance(one, FetchPartition)
        else FetchPartition(partition=0, fetch_offset=one, partition_max_bytes=1 << 20)
        for one in wanted
    ]
    topic = FetchTopic(
        topic="" if by_id else name,
        topic_id=topic_id if by_id else UUID(int=0),
        partitions=partitions,
    )
    topics = [topic] if partitions else []
    return FetchRequest(**{"max_bytes": 1 << 20, "min_bytes": 1, **fields}, topics=topics)


def _fetch(broker, offset, version=12, **fields):
    answer = broker.call(_request(broker, version, offset, **fields), version)
    return answer.responses[0].partitions[0]


def _bases(data):
    return [header.base_offset for _, header in iter_headers(data.records)]


@pytest.fixture
def orders(broker):
    """Three batches of two records each."""
    broker.make_topic("orders")
    for _ in range(3):
        broker.append("orders", NOW_MS, NOW_MS)
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_T31_an_offset_inside_a_batch_gets_that_batch_whole(orders, version):
    data = _fetch(orders, 3, version)
    assert data.error_code == ErrorCode.NONE
    assert _bases(data) == [2, 4]
    assert data.high_watermark == 6


def test_T31_the_first_batch_comes_whole_though_it_exceeds_every_limit(orders):
    tiny = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    answer = orders.call(_request(orders, 12, tiny, max_bytes=1), 12)
    assert _bases(answer.responses[0].partitions[0]) == [0]


def test_F50_the_fetch_size_is_limited(orders):
    batch_bytes = len(_fetch(orders, 4).records)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2 * batch_bytes)
    answer = orders.call(_request(orders, 12, wanted), 12)
    assert _bases(answer.responses[0].partitions[0]) == [0, 2]


@pytest.mark.parametrize("offset", [-1, 7, 1 << 40])
def test_T32_outside_the_log_is_out_of_range(orders, offset):
    assert _fetch(orders, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", VERSIONS)
def test_T32_T33_at_the_log_end_records_are_empty_not_null(orders, version):
    data = _fetch(orders, 6, version)
    assert data.error_code == ErrorCode.NONE
    assert data.records is not None
    assert len(data.records) == 0


def test_F79_consumers_see_only_what_every_replica_has(broker):
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [1, 2]})
    broker.append("orders", NOW_MS)
    assert len(_fetch(broker, 0).records) == 0
    broker.partition("orders").follower_fetched(2, fetch_offset=1, flushed_offset=-1, now=0.0)
    assert _bases(_fetch(broker, 0)) == [0]


@pytest.mark.parametrize("version", range(7, 19))
def test_T35_a_session_repeats_only_what_changed(orders, version):
    first = orders.call(_request(orders, version, 0, session_epoch=0), version)
    assert first.session_id != 0
    # The client has read everything and says so; then its answers are empty until there is news.
    moved = _request(orders, version, 6, session_id=first.session_id, session_epoch=1)
    orders.call(moved, version)
    quiet = _request(orders, version, session_id=first.session_id, session_epoch=2)
    assert orders.call(quiet, version).responses == []
    orders.append("orders", NOW_MS)
    news = _request(orders, version, session_id=first.session_id, session_epoch=3)
    assert _bases(orders.call(news, version).responses[0].partitions[0]) == [6]


def test_T35_errors_of_a_session_come_at_the_top(orders):
    wrong = _request(orders, 12, session_id=77, session_epoch=3)
    assert orders.call(wrong, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(9, 19))
def test_T36_another_leader_epoch_is_refused(orders, version):
    orders.lead_again("orders")
    current = orders.partition("orders").leader_epoch

    def code(epoch):
        wanted = FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=100)
        answer = orders.call(_request(orders, version, wanted), version)
        return answer.responses[0].partitions[0].error_code

    assert code(current - 1) == ErrorCode.FENCED_LEADER_EPOCH
    assert code(current + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert code(current) == code(-1) == ErrorCode.NONE


def test_T36_a_reader_from_a_lost_tail_is_told_where_its_epoch_ended(orders):
    epoch = orders.partition("orders").leader_epoch
    orders.lead_again("orders")
    orders.append("orders", NOW_MS)
    ahead = FetchPartition(partition=0, fetch_offset=7, last_fetched_epoch=epoch)
    data = orders.call(_request(orders, 12, ahead), 12).responses[0].partitions[0]
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (epoch, 6)
    assert len(data.records) == 0


def _as_replica(broker, replica_id):
    registered = broker.image.brokers.get(replica_id)
    epoch = -1 if registered is None else registered.epoch
    return ReplicaState(replica_id=replica_id, replica_epoch=epoch)


def _fetch_after(broker, epoch, offset, *, replica_id=-1):
    """Fetch as a reader whose last record is of this epoch."""
    wanted = FetchPartition(
        partition=0, fetch_offset=offset, last_fetched_epoch=epoch, partition_max_bytes=1 << 20
    )
    if replica_id >= 0:
        wanted.current_leader_epoch = broker.partition("orders").leader_epoch
    request = _request(broker, 15, wanted)
    request.replica_state = _as_replica(broker, replica_id)
    return broker.call(request, 15).responses[0].partitions[0]


@pytest.fixture
def emptied(orders):
    """All records were deleted, a new epoch began, and wrote two batches."""
    orders.partition("orders").log.advance_start(6)
    orders.lead_again("orders")
    orders.append("orders", NOW_MS)
    orders.append("orders", NOW_MS)
    return orders


def test_T37_a_reader_whose_epoch_was_deleted_goes_on_where_the_log_begins(emptied):
    data = _fetch_after(emptied, emptied.partition("orders").leader_epoch - 1, 6)
    assert (data.error_code, data.diverging_epoch) == (ErrorCode.NONE, None)
    assert _bases(data) == [6, 7]


def test_T37_a_reader_of_a_deleted_epoch_that_is_past_its_end_is_told_where_it_ended(emptied):
    epoch = emptied.partition("orders").leader_epoch - 1
    data = _fetch_after(emptied, epoch, 7)
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (epoch, 6)


def test_T37_a_reader_below_the_log_start_is_out_of_range_whatever_its_epoch(emptied):
    assert _fetch_after(emptied, 0, 5).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_T37_a_reader_from_an_epoch_after_the_leaders_is_out_of_range(orders):
    epoch = orders.partition("orders").leader_epoch + 1
    data = _fetch_after(orders, epoch, 6)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert data.diverging_epoch is None


def test_I10_a_follower_that_has_nothing_of_ours_is_sent_to_the_log_start(broker):
    """What it holds below our start may be a tail that was never committed."""
    broker.join_broker(2)
    broker.make_topic("orders", -1, assignments={0: [1, 2]})
    old = broker.partition("orders").leader_epoch
    broker.append("orders", NOW_MS)
    broker.partition("orders").log.advance_start(1)
    broker.lead_again("orders")
    data = _fetch_after(broker, old, 1, replica_id=2)
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)


@pytest.mark.parametrize("version", range(11, 19))
def test_T38_a_rack_is_taken_and_the_leader_answers_itself(orders, version):
    request = _request(orders, version, 0, rack_id="here")
    data = orders.call(request, version).responses[0].partitions[0]
    assert data.preferred_read_replica == -1
    assert len(data.records) > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_T23_zstd_is_sent_to_a_client_of_any_version(broker, version):
    broker.make_topic("orders")
    broker.append("orders", NOW_MS, codec=compression.ZSTD)
    data = _fetch(broker, 0, version)
    assert data.error_code == ErrorCode.NONE
    assert [header.codec for _, header in iter_headers(data.records)] == [compression.ZSTD]


def test_T17_I34_the_id_of_a_deleted_topic_is_unknown(orders):
    old = orders.image.topic("orders").topic_id
    orders.run(orders.cluster.delete_topics(["orders"]))
    orders.make_topic("orders")
    data = _fetch(orders, 0, 13, topic_id=old)
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_unknown_topic_and_a_forbidden_one_are_refused(orders):
    missing = _fetch(orders, 0, name="missing")
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    orders.permissions.deny(Operation.READ, "orders")
    assert _fetch(orders, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_S31_a_client_cannot_pose_as_a_replica(orders):
    request = _request(orders, 15, 0)
    request.replica_state = ReplicaState(replica_id=3)
    assert orders.call(request, 15).error_code == ErrorCode.STALE_BROKER_EPOCH
    orders.join_broker(3)
    request.replica_state = _as_replica(orders, 3)
    data = orders.call(request, 15).responses[0].partitions[0]
    assert data.error_code != ErrorCode.NONE
    orders.permissions.deny(Operation.CLUSTER_ACTION)
    assert orders.call(request, 15).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _parked(broker, offset, **fields):
    fields = {"max_wait_ms": 10_000, **fields}
    return broker.start_deferred(_request(broker, 12, offset, **fields), 12)


def _turn(broker):
    """Let the loop look at parked fetches that were woken."""

    async def nothing():
        pass

    broker.run(nothing())
    broker.run(nothing())


def test_F49_a_fetch_waits_until_there_is_something(orders):
    heard = []
    waiting = _parked(orders, 6)
    assert isinstance(waiting, Deferred)
    waiting.then(heard.append)
    _turn(orders)
    assert heard == []
    orders.append("orders", NOW_MS)
    _turn(orders)
    assert _bases(heard[0].responses[0].partitions[0]) == [6]


def test_F49_a_fetch_waits_for_the_minimum_of_bytes(orders):
    batch_bytes = len(_fetch(orders, 4).records)
    heard = []
    _parked(orders, 6, min_bytes=2 * batch_bytes).then(heard.append)
    orders.append("orders", NOW_MS, NOW_MS)
    _turn(orders)
    assert heard == []
    orders.append("orders", NOW_MS, NOW_MS)
    _turn(orders)
    assert _bases(heard[0].responses[0].partitions[0]) == [6, 8]


def test_a_parked_fetch_is_told_that_its_topic_is_gone(orders):
    heard = []
    _parked(orders, 6).then(heard.append)
    orders.run(orders.cluster.delete_topics(["orders"]))
    _turn(orders)
    code = heard[0].responses[0].partitions[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_error_is_answered_at_once_however_long_the_client_would_wait(orders):
    assert not isinstance(_parked(orders, 99), Deferred)


# --- very many partitions ---------------------------------------------------------------------


@pytest.fixture
def many(broker, monkeypatch):
    """A topic with a batch in each partition, and a broker that counts it as very many."""
    monkeypatch.setattr(fetch, "LONG_FETCH_PARTITIONS", MANY)
    broker.make_topic("orders", MANY)
    for index in range(MANY):
        broker.append("orders", NOW_MS, index=index)
    return broker


def _of_many(broker, offset, **fields):
    wanted = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in range(MANY)
    ]
    return _request(broker, 12, *wanted, **fields)


def test_S11_a_fetch_of_very_many_partitions_gives_others_their_turns(many):
    assert many.turns_of(_of_many(many, 0), 12) >= MANY // PARTITIONS_PER_SLICE


def test_S11_a_fetch_in_turns_answers_as_any_other(many, monkeypatch):
    in_turns = many.call(_of_many(many, 0), 12)
    monkeypatch.setattr(fetch, "LONG_FETCH_PARTITIONS", MANY + 1)
    assert in_turns == many.call(_of_many(many, 0), 12)


def test_S11_the_limit_of_bytes_holds_over_all_turns(many):
    one = len(many.call(_of_many(many, 0), 12).responses[0].partitions[0].records)
    limit = one * (MANY - 1)
    answer = many.call(_of_many(many, 0, max_bytes=limit), 12)
    assert sum(len(data.records) for data in answer.responses[0].partitions) == limit


def test_S11_a_client_of_very_many_partitions_without_news_is_told_to_wait(many):
    answer = many.call(_of_many(many, 1, max_wait_ms=300), 12)
    assert answer.throttle_time_ms == 300
    assert many.call(_of_many(many, 0, max_wait_ms=300), 12).throttle_time_ms == 0


def test_S11_a_fetch_in_turns_reads_what_is_not_in_memory(many):
    partition = many.partition("orders", 3)
    partition.log = ColdLog(partition.log, lambda: [b"cold"], size_bytes=4)
    data = many.call(_of_many(many, 0), 12).responses[0].partitions[3]
    assert bytes(data.records) == b"cold"
    assert many.services.response_memory.used_bytes == 0
