"""Complete is written when every marker is acknowledged, and not before."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from tests.support.transaction_desk import ID, TransactionDesk, at
from tidemill.client.network.errors import ConnectionLost
from tidemill.coordinators.transaction.marker_sender import UNKNOWN_S_MAX, MarkerSender
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

OWN = 1
OTHER = 2
INDEX = 7
EPOCH = 4
TURNS = 10


class Image:
    """Who leads which partition."""

    def __init__(self):
        self.leaders = {}

    def partition(self, topic, index):
        leader = self.leaders.get((topic, index))
        return None if leader is None else SimpleNamespace(leader=leader)


class Local:
    """Partitions of this broker that acknowledge when a test says so."""

    def __init__(self):
        self.waiting = {}
        self.written = []

    def write(self, marker, name):
        self.written.append((marker, str(name)))
        self.waiting[str(name)] = Deferred()
        return self.waiting[str(name)]

    def acknowledge(self, name, code=ErrorCode.NONE):
        self.waiting.pop(name).resolve(code)


class Peers:
    """Other brokers, each of which answers the request that a test lets it answer."""

    def __init__(self):
        self.requests = []
        self.answers = []
        self.in_flight = 0

    async def request(self, broker_id, message, response_type, *, version, timeout_s):
        self.in_flight += 1
        assert self.in_flight == 1
        self.requests.append((broker_id, message))
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        try:
            return await answer
        finally:
            self.in_flight -= 1

    def answer_last(self, code=ErrorCode.NONE):
        _, request = self.requests[-1]
        self.answers[-1].set_result(
            WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=[
                            WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=[
                                    WritableTxnMarkerPartitionResult(
                                        partition_index=index, error_code=int(code)
                                    )
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in marker.topics
                        ],
                    )
                    for marker in request.markers
                ]
            )
        )


class Runtime:
    """Hosts one transaction shard."""

    def __init__(self, desk):
        self.desk = desk
        self.epoch = EPOCH
        self.refusal = None

    def epoch_of(self, index):
        return self.epoch if index == INDEX else None

    def write(self, index, operation, refuse):
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        self.desk.apply(operation(self.desk.shard, self.desk.now))
        return None


class Office:
    """A sender with everything around it."""

    def __init__(self):
        self.clock = ManualClock()
        self.timers = LoopTimers(self.clock)
        self.desk = TransactionDesk()
        self.image = Image()
        self.local = Local()
        self.peers = Peers()
        self.runtime = Runtime(self.desk)
        self.failures = []
        self.knows_all_topics = True
        self.sender = MarkerSender(
            OWN,
            self.runtime,
            self.local,
            self.peers,
            image=lambda: self.image,
            knows_all_topics=lambda: self.knows_all_topics,
            clock=self.clock,
            timers=self.timers,
            supervisor=Supervisor(lambda name, error: self.failures.append(error)),
        )

    @property
    def status(self):
        return self.desk.shard.describe(ID).status

    def lead(self, broker_id, *names):
        for name in names:
            self.image.leaders[at(name)] = broker_id

    async def decide(self, *names):
        """A producer commits a transaction over these partitions."""
        producer = self.desk.init()
        self.desk.add(producer, *names)
        self.desk.end(producer)
        await self.carry_out()

    async def carry_out(self):
        wanted, self.desk.wanted = self.desk.wanted, []
        self.sender.carry_out(INDEX, self.runtime.epoch, wanted)
        await self.turns()

    async def turns(self):
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.timers._turn()  # the loop's own clock does not follow the manual one
        await self.turns()


@pytest.fixture
def office(run):
    """Run a test body with an office on its own event loop: `office(body)`."""

    def start(body):
        async def main():
            made = Office()
            try:
                await body(made)
            finally:
                made.timers.stop()
            assert made.failures == []

        run(main())

    return start


def test_I20_complete_is_written_only_when_every_marker_is_acknowledged(office):
    async def body(it):
        it.lead(OWN, "t-0", "t-1")
        it.lead(OTHER, "u-0")
        await it.decide("t-0", "t-1", "u-0")
        it.local.acknowledge("t-0")
        it.peers.answer_last()
        await it.turns()
        assert it.status is TransactionStatus.PREPARE_COMMIT
        it.local.acknowledge("t-1")
        assert it.status is TransactionStatus.COMPLETE_COMMIT
        assert len(it.sender) == 0

    office(body)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ],
)
def test_I20_a_marker_that_is_not_acknowledged_is_written_again(office, code):
    async def body(it):
        it.lead(OWN, "t-0")
        await it.decide("t-0")
        it.local.acknowledge("t-0", code)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        await it.pass_time(1)
        it.local.acknowledge("t-0")
        assert it.status is TransactionStatus.COMPLETE_COMMIT
        assert len(it.local.written) == 2

    office(body)


def test_a_newer_coordinator_is_told_of_once_a_minute_however_often_it_refuses(office, caplog):
    async def body(it):
        it.lead(OWN, "t-0")
        await it.decide("t-0")
        for _ in range(4):
            it.local.acknowledge("t-0", ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            await it.pass_time(10)
        assert len(it.local.written) == 5

    with caplog.at_level(logging.WARNING):
        office(body)
    assert caplog.messages == ["t-0: another coordinator ends its transaction"]


def test_I22_a_decision_that_is_handed_over_again_is_not_carried_out_twice(office):
    async def body(it):
        it.lead(OWN, "t-0")
        producer = it.desk.init()
        it.desk.add(producer, "t-0")
        it.desk.end(producer)
        decided = list(it.desk.wanted)
        await it.carry_out()
        it.runtime.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        it.local.acknowledge("t-0")
        it.desk.wanted = decided  # the shard was loaded again
        await it.carry_out()
        it.runtime.refusal = None
        await it.pass_time(1)
        assert it.status is TransactionStatus.COMPLETE_COMMIT
        assert len(it.local.written) == 1

    office(body)


def test_a_partition_that_moves_gets_its_marker_from_its_new_leader(office):
    async def body(it):
        it.lead(OTHER, "t-0")
        await it.decide("t-0")
        it.lead(OWN, "t-0")
        it.peers.answer_last(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await it.turns()
        await it.pass_time(1)
        it.local.acknowledge("t-0")
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_a_partition_without_a_leader_waits_for_one(office):
    async def body(it):
        it.lead(-1, "t-0")
        await it.decide("t-0")
        await it.pass_time(60)
        it.lead(OWN, "t-0")
        await it.pass_time(1)
        it.local.acknowledge("t-0")
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_a_lost_connection_leaves_the_markers_in_doubt_and_they_are_sent_again(office):
    async def body(it):
        it.lead(OTHER, "t-0")
        await it.decide("t-0")
        it.peers.answers[-1].set_exception(ConnectionLost("cut"))
        await it.turns()
        assert it.status is TransactionStatus.PREPARE_COMMIT
        await it.pass_time(1)
        it.peers.answer_last()
        await it.turns()
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_markers_that_come_while_a_request_is_out_share_the_next_one(office):
    async def body(it):
        it.lead(OTHER, "t-0")
        await it.decide("t-0")
        for number in range(3):
            producer = it.desk.init(transactional_id=f"other-{number}")
            it.desk.add(producer, "t-0", transactional_id=f"other-{number}")
            it.desk.end(producer, transactional_id=f"other-{number}")
        await it.carry_out()
        assert len(it.peers.requests) == 1
        it.peers.answer_last()
        await it.turns()
        assert [len(request.markers) for _, request in it.peers.requests] == [1, 3]
        it.peers.answer_last()
        await it.turns()
        assert len(it.sender) == 0

    office(body)


def test_a_marker_carries_the_epoch_of_the_producer_and_of_the_coordinator(office):
    async def body(it):
        it.lead(OWN, "t-0")
        await it.decide("t-0")
        ((marker, _),) = it.local.written
        assert marker.coordinator_epoch == EPOCH
        assert marker.producer == it.desk.shard.describe(ID).producer
        assert not marker.is_bumped

    office(body)


def test_a_coordinator_that_lost_its_partition_writes_nothing_more(office):
    async def body(it):
        it.lead(OWN, "t-0", "t-1")
        await it.decide("t-0", "t-1")
        it.runtime.epoch = EPOCH + 1
        it.local.acknowledge("t-0", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        it.local.acknowledge("t-1")
        await it.pass_time(60)
        assert len(it.local.written) == 2
        assert it.status is TransactionStatus.PREPARE_COMMIT
        assert len(it.sender) == 0

    office(body)


def test_a_reload_begins_again_and_the_answers_from_before_count_no_more(office):
    async def body(it):
        it.lead(OWN, "t-0", "t-1")
        await it.decide("t-0", "t-1")
        before = dict(it.local.waiting)
        it.desk.reload()
        await it.carry_out()
        for answer in before.values():
            answer.resolve(ErrorCode.NONE)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        it.local.acknowledge("t-0")
        it.local.acknowledge("t-1")
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_a_topic_that_stays_unknown_was_deleted_and_needs_no_marker(office):
    async def body(it):
        await it.decide("gone-0")
        await it.pass_time(UNKNOWN_S_MAX / 2)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        await it.pass_time(UNKNOWN_S_MAX)
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_I20_a_topic_is_waited_for_while_the_image_may_lack_one(office):
    """As after a start with a page of the metadata that cannot be read."""

    async def body(it):
        it.knows_all_topics = False
        await it.decide("there-0")
        await it.pass_time(2 * UNKNOWN_S_MAX)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        it.knows_all_topics = True
        it.lead(OWN, "there-0")
        await it.pass_time(1)
        it.local.acknowledge("there-0")
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_a_topic_has_its_whole_time_when_the_image_lacks_none_any_more(office):
    async def body(it):
        it.knows_all_topics = False
        await it.decide("gone-0")
        await it.pass_time(2 * UNKNOWN_S_MAX)
        it.knows_all_topics = True
        await it.pass_time(UNKNOWN_S_MAX / 2)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        await it.pass_time(UNKNOWN_S_MAX)
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_each_topic_has_its_own_time_to_become_known(office):
    """One that was unknown for a while says nothing about one that is unknown since now."""

    async def body(it):
        it.lead(OWN, "new-0")
        await it.decide("late-0", "new-0")
        await it.pass_time(UNKNOWN_S_MAX / 2)
        it.lead(OWN, "late-0")
        await it.pass_time(UNKNOWN_S_MAX)
        it.local.acknowledge("late-0")
        del it.image.leaders["new", 0]  # the image of a broker that has just begun anew
        it.local.acknowledge("new-0", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await it.pass_time(UNKNOWN_S_MAX / 2)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        await it.pass_time(UNKNOWN_S_MAX)
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_the_markers_that_are_left_are_counted(office):
    async def body(it):
        it.lead(OWN, "t-0", "t-1")
        await it.decide("t-0", "t-1")
        assert it.sender.markers_left == 2
        it.local.acknowledge("t-0")
        assert it.sender.markers_left == 1
        it.local.acknowledge("t-1")
        assert it.sender.markers_left == 0

    office(body)


def test_I23_a_topic_that_becomes_known_before_complete_gets_its_marker(office):
    async def body(it):
        it.runtime.refusal = ErrorCode.NOT_COORDINATOR  # no lease, and the image stands still
        await it.decide("new-0")
        await it.pass_time(UNKNOWN_S_MAX / 2)
        await it.pass_time(UNKNOWN_S_MAX)
        it.lead(OWN, "new-0")
        it.runtime.refusal = None
        await it.pass_time(1)
        assert it.status is TransactionStatus.PREPARE_COMMIT
        it.local.acknowledge("new-0")
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)


def test_complete_is_tried_again_until_it_can_be_written(office):
    async def body(it):
        it.lead(OWN, "t-0")
        await it.decide("t-0")
        it.runtime.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        it.local.acknowledge("t-0")
        assert it.status is TransactionStatus.PREPARE_COMMIT
        it.runtime.refusal = None
        await it.pass_time(1)
        assert it.status is TransactionStatus.COMPLETE_COMMIT

    office(body)
