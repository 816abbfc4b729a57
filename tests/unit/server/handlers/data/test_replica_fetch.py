"""How a follower's fetch is answered: at once, later, or with nothing; and what counts of it."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import NODE_ID, NOW_MS, Peer, value_of
from tidemill.core.byte_rate import ByteRate
from tidemill.core.errors import ErrorCode, ProtocolViolation
from tidemill.core.limits import MIB
from tidemill.server.handlers.data import replica_fetch
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from tidemill.wire.generated.replica_progress import (
    ProgressPartition,
    ProgressTopic,
    ReplicaProgressRequest,
)

FOLLOWER = 2
VERSION = 18


class Follower:
    """Broker 2, which fetches by one connection."""

    def __init__(self, broker, *, lane=0):
        self.broker = broker
        self.peer = Peer()
        self.session_id = 0
        self.seen = 0
        self.lane = lane

    @property
    def _broker_epoch(self):
        return self.broker.image.brokers[FOLLOWER].epoch

    def _request(self, named, *, wait_ms, forgotten=(), **fields):
        topic_id = self.broker.image.topic("orders").topic_id
        return FetchRequest(
            replica_state=ReplicaState(replica_id=FOLLOWER, replica_epoch=self._broker_epoch),
            replica_lane=self.lane,
            session_id=self.session_id,
            session_epoch=self.seen,
            max_wait_ms=wait_ms,
            topics=[FetchTopic(topic_id=topic_id, partitions=list(named))] if named else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=list(forgotten))],
            **{"max_bytes": 8 * MIB, **fields},
        )

    def at(self, index, offset, **fields):
        epoch = self.broker.partition("orders", index).leader_epoch
        usual = {"partition_max_bytes": MIB, "flushed_offset": 0, "current_leader_epoch": epoch}
        return FetchPartition(partition=index, fetch_offset=offset, **{**usual, **fields})

    def fetch(self, *named, **fields):
        """What is told of each partition."""
        request = self._request(named, **{"wait_ms": 0, **fields})
        return self.taken(self.broker.call(request, VERSION, self.peer))

    def begin(self, *named, wait_ms=500, **fields):
        """The answer that is not there yet."""
        request = self._request(named, wait_ms=wait_ms, **fields)
        return self.broker.start_deferred(request, VERSION, self.peer)

    def end(self, deferred):
        return self.taken(value_of(deferred))

    def taken(self, response):
        """The follower has the answers in the order of its fetches."""
        self.session_id = response.session_id
        self.throttle_ms = response.throttle_time_ms
        self.seen += 1
        if response.error_code:
            return ErrorCode(response.error_code)
        told = [one for topic in response.responses for one in topic.partitions]
        return {one.partition_index: one for one in told}

    def progress(self, index, flushed, *, epoch=None, peer=None, broker_epoch=None):
        partition = self.broker.partition("orders", index)
        told = ProgressPartition(
            partition_index=index,
            leader_epoch=partition.leader_epoch if epoch is None else epoch,
            flushed_offset=flushed,
        )
        request = ReplicaProgressRequest(
            broker_id=FOLLOWER,
            broker_epoch=self._broker_epoch if broker_epoch is None else broker_epoch,
            topics=[ProgressTopic(topic_id=partition.topic_id, partitions=[told])],
        )
        answer, _ = self.broker.start(request, 0, peer or self.peer)
        assert answer is None


@pytest.fixture
def broker(broker):
    broker.join_broker(FOLLOWER)
    broker.make_topic("orders", -1, assignments={i: [NODE_ID, FOLLOWER] for i in range(3)})
    return broker


@pytest.fixture
def follower(broker):
    made = Follower(broker)
    made.fetch(*(made.at(index, 0) for index in range(3)))
    return made


def turn(broker, *, seconds=0.0):
    """Let the loop look at fetches that were woken, and at timers."""
    broker.clock.now_ms += int(seconds * 1000)

    async def turn_timers():
        broker.timers._turn()

    for _ in range(3):
        broker.run(turn_timers())


def offsets(data):
    return [header.base_offset for _, header in iter_headers(memoryview(data.records))]


def test_a_fetch_is_told_what_has_changed_and_nothing_else(broker, follower):
    assert follower.fetch() == {}
    broker.append("orders", NOW_MS, index=1)
    told = follower.fetch()
    assert list(told) == [1]
    assert offsets(told[1]) == [0]
    assert told[1].log_end_offset == 1
    assert follower.fetch() == {}


def test_records_that_the_follower_could_not_use_are_sent_again_when_it_asks(broker, follower):
    broker.append("orders", NOW_MS)
    assert offsets(follower.fetch()[0]) == [0]
    assert offsets(follower.fetch(follower.at(0, 0))[0]) == [0]


def test_an_append_answers_the_fetch_that_waits_in_the_same_turn(broker, follower):
    waiting = follower.begin()
    turn(broker)
    assert not waiting.resolved
    broker.append("orders", NOW_MS, index=2)
    turn(broker)
    assert offsets(follower.end(waiting)[2]) == [0]


def test_a_mark_alone_waits_for_records_to_ride_on(broker, follower):
    broker.append("orders", NOW_MS)
    follower.fetch()
    waiting = follower.begin(follower.at(0, 1))
    assert broker.partition("orders").high_watermark == 1
    turn(broker, seconds=replica_fetch.MARKS_WAIT_S - 0.002)
    assert not waiting.resolved
    turn(broker, seconds=0.004)
    told = follower.end(waiting)
    assert (told[0].high_watermark, len(told[0].records)) == (1, 0)
    assert follower.fetch() == {}


def test_a_mark_rides_on_the_records_of_another_partition(broker, follower):
    broker.append("orders", NOW_MS)
    follower.fetch()
    waiting = follower.begin(follower.at(0, 1))
    broker.append("orders", NOW_MS, index=1)
    turn(broker)
    told = follower.end(waiting)
    assert sorted(told) == [0, 1]
    assert told[0].high_watermark == 1


def test_a_newer_fetch_ends_the_wait_of_the_one_before_it(broker, follower):
    first = follower.begin()
    second = follower.begin()
    turn(broker)
    assert follower.end(first) == {}
    assert not second.resolved
    broker.append("orders", NOW_MS)
    turn(broker)
    assert list(follower.end(second)) == [0]


def test_records_in_the_answer_of_a_newer_fetch_are_not_sent_again_before_it_arrives(
    broker, follower
):
    broker.append("orders", NOW_MS)
    follower.fetch()
    # When: a newer fetch has news, so it is answered before the one that waits.
    first, second = follower.begin(), follower.begin(follower.at(0, 0))
    turn(broker)
    # The follower has the first answer alone when it names the partition again.
    assert follower.end(first) == {}
    third = follower.begin(follower.at(0, 0))
    assert offsets(follower.taken(second)[0]) == [0]
    turn(broker, seconds=0.6)
    assert follower.end(third) == {}


def test_H7_a_fetch_that_waits_says_nothing_when_it_is_answered(broker, follower):
    partition = broker.partition("orders")
    waiting = follower.begin(follower.at(0, 0))
    partition.follower_restarted(FOLLOWER)
    broker.append("orders", NOW_MS)
    turn(broker)
    assert list(follower.end(waiting)) == [0]
    assert partition.led.followers[FOLLOWER].log_end_offset == -1


def test_a_fetch_is_answered_with_nothing_when_its_time_is_up(broker, follower):
    waiting = follower.begin()
    turn(broker, seconds=0.6)
    assert follower.end(waiting) == {}


def test_what_does_not_fit_stays_for_the_next_fetch(broker, follower):
    for index in range(3):
        broker.append("orders", NOW_MS, index=index)
    assert [list(follower.fetch(max_bytes=1)) for _ in range(3)] == [[0], [1], [2]]


def test_a_batch_that_is_larger_than_what_is_left_of_an_answer_is_not_withheld(broker, follower):
    for index in range(3):
        broker.append("orders", NOW_MS, index=index)
    # When: the first batch fills most of the answer, and nothing is appended afterwards.
    told = [follower.fetch(max_bytes=100) for _ in range(3)]
    # Then: the follower hears of every record, although it has no reason to ask again.
    assert sorted(index for one in told for index in one if one[index].records) == [0, 1, 2]


def test_a_partition_of_another_epoch_leaves_the_session_until_it_is_named_again(broker, follower):
    broker.lead_again("orders")
    told = follower.fetch()
    assert {index: one.error_code for index, one in told.items()} == {
        0: ErrorCode.FENCED_LEADER_EPOCH
    }
    broker.append("orders", NOW_MS)
    assert follower.fetch() == {}
    assert offsets(follower.fetch(follower.at(0, 0))[0]) == [0]


def test_a_log_that_went_another_way_is_told_so_and_its_position_does_not_count(broker, follower):
    broker.append("orders", NOW_MS)
    partition = broker.partition("orders")
    old_epoch = partition.leader_epoch
    broker.lead_again("orders")
    told = follower.fetch(follower.at(0, 1, last_fetched_epoch=old_epoch))
    assert told[0].error_code == ErrorCode.NONE
    broker.lead_again("orders")
    told = follower.fetch(follower.at(0, 2, last_fetched_epoch=old_epoch))
    assert (told[0].diverging_epoch.epoch, told[0].diverging_epoch.end_offset) == (old_epoch, 1)
    assert partition.led.followers[FOLLOWER].log_end_offset == -1
    follower.progress(0, 1)
    assert partition.led.followers[FOLLOWER].flushed_offset == -1


def test_a_replica_must_name_its_epoch(broker, follower):
    told = follower.fetch(follower.at(0, 0, current_leader_epoch=-1))
    assert told[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_unknown_partitions_are_refused_one_by_one(broker, follower):
    missing = FetchPartition(partition=99, current_leader_epoch=0, partition_max_bytes=MIB)
    broker.append("orders", NOW_MS)
    told = follower.fetch(missing, follower.at(0, 0))
    assert told[99].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(told[0]) == [0]


def test_a_partition_that_is_forgotten_is_told_of_no_more(broker, follower):
    follower.fetch(forgotten=[0])
    broker.append("orders", NOW_MS)
    broker.append("orders", NOW_MS, index=1)
    assert list(follower.fetch()) == [1]


def test_a_fetch_that_was_overtaken_by_the_other_lane_does_not_take_the_partition_back(
    broker, follower
):
    broker.append("orders", NOW_MS)
    behind = Follower(broker, lane=1)
    assert offsets(behind.fetch(behind.at(0, 0))[0]) == [0]
    follower.fetch(follower.at(0, 1))
    behind.fetch(behind.at(0, 0))  # it left before the records came, and was delayed
    assert broker.partition("orders").led.followers[FOLLOWER].log_end_offset == 1
    behind.fetch(forgotten=[0])
    broker.append("orders", NOW_MS)
    assert offsets(follower.fetch()[0]) == [1]


def test_a_session_ends_with_its_connection(broker, follower):
    broker.services.replica_sessions.end(follower.peer)
    broker.append("orders", NOW_MS)
    assert follower.fetch() is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_by_another_connection_does_not_find_the_session(broker, follower):
    follower.peer = Peer()
    assert follower.fetch() is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_of_a_former_life_is_refused(broker, follower):
    request = follower._request([follower.at(0, 1)], wait_ms=0)
    request.replica_state.replica_epoch += 1
    response = broker.call(request, VERSION, follower.peer)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_log_start_that_moved_is_told_with_the_next_review(broker, follower):
    broker.append("orders", NOW_MS)
    follower.fetch()
    follower.fetch(follower.at(0, 1))
    follower.fetch()
    partition = broker.partition("orders")
    partition.review_marks(now=broker.clock.monotonic())
    follower.fetch()
    partition.log.advance_start(1)
    partition.review_marks(now=broker.clock.monotonic())
    assert follower.fetch()[0].log_start_offset == 1


def test_only_a_follower_that_is_far_behind_is_told_to_wait(broker, follower):
    broker.services.catch_up_rate = ByteRate(lambda: 1_000)
    broker.append("orders", NOW_MS)
    assert follower.throttle_ms == 0
    follower.fetch()
    assert follower.throttle_ms == 0
    behind = Follower(broker, lane=1)
    records = behind.fetch(behind.at(0, 0))[0].records
    assert behind.throttle_ms == len(records)
    behind.fetch()
    assert behind.throttle_ms == 0


def test_a_follower_that_is_far_behind_gets_no_more_than_the_rate_allows_in_a_second(
    broker, follower
):
    for _ in range(10):
        broker.append("orders", NOW_MS)
    size = broker.partition("orders").log.size_bytes // 10
    broker.services.catch_up_rate = ByteRate(lambda: 3 * size)
    behind = Follower(broker, lane=1)
    assert len(behind.fetch(behind.at(0, 0))[0].records) == 3 * size
    assert behind.throttle_ms == 1_000
    broker.services.catch_up_rate = ByteRate(lambda: 1)
    assert len(behind.fetch(behind.at(0, 3))[0].records) == size  # a whole batch comes always


# --- progress -------------------------------------------------------------------------------------


def flushed(broker, index=0):
    return broker.partition("orders", index).led.followers[FOLLOWER].flushed_offset


def test_progress_counts_as_far_as_the_follower_has_fetched(broker, follower):
    for _ in range(3):
        broker.append("orders", NOW_MS)
    follower.fetch()
    follower.fetch(follower.at(0, 2))
    assert flushed(broker) == 0
    follower.progress(0, 1)
    assert flushed(broker) == 1
    follower.progress(0, 3)
    assert flushed(broker) == 2
    assert broker.partition("orders").durable_offset == 2


def test_progress_of_another_epoch_life_or_connection_does_not_count(broker, follower):
    broker.append("orders", NOW_MS)
    follower.fetch()
    follower.fetch(follower.at(0, 1))
    epoch = broker.partition("orders").leader_epoch
    follower.progress(0, 1, epoch=epoch - 1)
    follower.progress(0, 1, epoch=epoch + 1)
    follower.progress(0, 1, broker_epoch=99)
    follower.progress(0, 1, peer=Peer())
    assert flushed(broker) == 0
    broker.services.replica_sessions.end(follower.peer)
    follower.progress(0, 1)
    assert flushed(broker) == 0


def test_progress_before_the_first_fetch_of_its_epoch_does_not_count(broker, follower):
    broker.append("orders", NOW_MS)
    follower.fetch()
    follower.fetch(follower.at(0, 1))
    broker.lead_again("orders")
    follower.progress(0, 1)
    assert flushed(broker) == -1


def test_S31_a_client_that_sends_progress_loses_its_connection(broker, follower):
    outsider = Peer()
    outsider.is_internal = False
    with pytest.raises(ProtocolViolation):
        follower.progress(0, 1, peer=outsider)


# --- vouches --------------------------------------------------------------------------------------


def _vouched_s(broker, index=0):
    """For how long the follower vouches for the leader from now on."""
    (slot,) = broker.partition("orders", index).follower_watches._watches.values()
    return slot.vouched_until - broker.clock.boottime()


def test_the_next_fetch_vouches_for_all_partitions_since_the_answer_before_it(broker):
    made = Follower(broker)
    made.fetch(*(made.at(index, 0) for index in range(3)), replica_vouches=True)
    assert _vouched_s(broker) < 0
    broker.clock.now_ms += 250
    made.fetch(replica_vouches=True)
    assert [_vouched_s(broker, index) for index in range(3)] == pytest.approx([0.75] * 3)


def test_a_fetch_that_lay_in_a_socket_vouches_no_longer(broker):
    made = Follower(broker)
    made.fetch(made.at(0, 0), replica_vouches=True)
    broker.clock.now_ms += 30_000
    made.fetch(replica_vouches=True)
    assert _vouched_s(broker) < 0


def test_an_answer_that_was_parked_counts_from_when_it_is_made(broker):
    made = Follower(broker)
    made.fetch(made.at(0, 0), replica_vouches=True)
    made.fetch(replica_vouches=True)
    waiting = made.begin(replica_vouches=True)
    broker.clock.now_ms += 500
    broker.append("orders", NOW_MS)
    turn(broker)
    made.end(waiting)
    broker.clock.now_ms += 125
    made.fetch(made.at(0, 1), replica_vouches=True)
    assert 0.5 < _vouched_s(broker) <= 0.876


def test_a_follower_that_does_not_say_so_vouches_for_nobody(broker):
    made = Follower(broker)
    made.fetch(made.at(0, 0))
    made.fetch()
    assert _vouched_s(broker) < 0


def test_a_partition_that_the_follower_leaves_is_vouched_for_no_longer(broker):
    made = Follower(broker)
    made.fetch(made.at(0, 0), replica_vouches=True)
    made.fetch(replica_vouches=True, forgotten=[0])
    assert not broker.partition("orders").follower_watches._watches


def test_a_new_connection_begins_without_a_vouch(broker):
    made = Follower(broker)
    made.fetch(made.at(0, 0), replica_vouches=True)
    made.fetch(replica_vouches=True)
    again = Follower(broker)
    again.fetch(again.at(0, 0), replica_vouches=True)
    assert _vouched_s(broker) < 0
