"""What the leader of a partition checks before it aborts a transaction that hangs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemill.client.network.errors import ClientError
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.hanging_transactions import HangingTransactions
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.metadata.image.metadata_image import TRANSACTION_STATE_TOPIC
from tidemill.storage.state.producer_entry import ActiveProducer
from tidemill.wire.generated.list_transactions import ListTransactionsResponse, TransactionState

HERE, THERE = 1, 2
NAME = TopicPartition("orders", 0)
PRODUCER = ProducerName(7, 3)


class World:
    """Two coordinators, one of them here, and a partition of this broker."""

    def __init__(self) -> None:
        self.active = [ActiveProducer(7, 3, 4, 0, -1, 20)]
        self.leaders = [(HERE, 1), (THERE, 1)]
        self.has_coordinators = True
        self.knows_all_topics = True
        self.answer: ListTransactionsResponse | Exception = ListTransactionsResponse()
        self.meanwhile = lambda: None
        """What happens while the other coordinator is asked."""
        self.asked: list[int] = []
        self.known_here = []
        self.is_loading = False
        self.markers = []

    async def request(self, broker_id, request, _response_type, **_options):
        assert request.producer_id_filters == [PRODUCER.producer_id]
        self.asked.append(broker_id)
        self.meanwhile()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def write(self, marker, name):
        self.markers.append((marker.producer, marker.is_commit, marker.coordinator_epoch, name))
        return ErrorCode.NONE

    def image(self):
        partitions = [
            SimpleNamespace(leader=leader, leader_epoch=epoch) for leader, epoch in self.leaders
        ]
        topic = SimpleNamespace(partitions=partitions)
        return SimpleNamespace(
            topics={TRANSACTION_STATE_TOPIC: topic} if self.has_coordinators else {}
        )

    def abort(self, run, name=NAME, coordinator_epoch=5):
        coordinator = SimpleNamespace(
            is_loading=self.is_loading,
            shards=lambda: [SimpleNamespace(transactions=lambda: self.known_here)],
        )
        log = SimpleNamespace(producers=SimpleNamespace(active=lambda: list(self.active)))
        found = {NAME: SimpleNamespace(log=log)}
        hanging = HangingTransactions(
            HERE,
            coordinator,
            self,
            self,
            find=found.get,
            image=self.image,
            knows_all_topics=lambda: self.knows_all_topics,
        )
        try:
            return run(hanging.abort(name, PRODUCER, coordinator_epoch=coordinator_epoch))
        except KafkaError as error:
            assert not self.markers
            return error.code


@pytest.fixture
def world():
    return World()


def test_what_no_coordinator_knows_is_aborted_in_its_own_epoch(run, world):
    assert world.abort(run) is ErrorCode.NONE
    assert world.asked == [THERE]
    assert world.markers == [(PRODUCER, False, 0, NAME)]


@pytest.mark.parametrize(("in_log", "given", "written"), [(3, 2**31 - 1, 3), (9, 5, 5)])
def test_I23_no_coordinator_is_named_that_is_newer_than_those_the_log_knows(
    run, world, in_log, given, written
):
    world.active = [ActiveProducer(7, 3, 4, 0, in_log, 20)]
    world.abort(run, coordinator_epoch=given)
    assert [epoch for _, _, epoch, _ in world.markers] == [written]


def test_what_another_coordinator_has_open_stays(run, world):
    world.answer = ListTransactionsResponse(
        transaction_states=[TransactionState(transactional_id="pay", producer_id=7)]
    )
    assert world.abort(run) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(("is_open", "code"), [(True, "INVALID_TXN_STATE"), (False, "NONE")])
def test_what_the_coordinator_here_has_open_stays(run, world, is_open, code):
    status = SimpleNamespace(is_open=is_open)
    world.known_here.append(SimpleNamespace(transactional_id="pay", producer_id=7, status=status))
    assert world.abort(run) is ErrorCode[code]


@pytest.mark.parametrize(
    "answer",
    [
        ClientError("gone"),
        KafkaError(ErrorCode.BROKER_NOT_AVAILABLE),
        ListTransactionsResponse(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)),
    ],
)
def test_a_coordinator_that_does_not_answer_may_know_it(run, world, answer):
    world.answer = answer
    assert world.abort(run) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_coordinator_here_that_loads_may_know_it(run, world):
    world.is_loading = True
    assert world.abort(run) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_coordinator_without_a_broker_may_know_it(run, world):
    world.leaders.append((NO_LEADER, 4))
    assert world.abort(run) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("knows_all", "code"), [(True, "NONE"), (False, "COORDINATOR_NOT_AVAILABLE")]
)
def test_coordinators_on_a_page_that_cannot_be_read_may_know_it(run, world, knows_all, code):
    world.has_coordinators, world.knows_all_topics = False, knows_all
    assert world.abort(run) is ErrorCode[code]


def test_coordinators_that_move_meanwhile_may_know_it(run, world):
    def move():
        world.leaders[0] = (THERE, 2)

    world.meanwhile = move
    assert world.abort(run) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_I22_a_producer_that_writes_meanwhile_may_have_begun_anew(run, world):
    def write():
        world.active = [ActiveProducer(7, 3, 9, 0, -1, 20)]

    world.meanwhile = write
    assert world.abort(run) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    "active",
    [[], [ActiveProducer(7, 3, 4, 0, -1, -1)], [ActiveProducer(7, 4, 4, 0, -1, 20)]],
)
def test_nothing_is_written_where_the_transaction_is_not_open(run, world, active):
    world.active = active
    assert world.abort(run) is ErrorCode.INVALID_TXN_STATE
    assert world.asked == []


def test_a_partition_of_another_broker_is_refused(run, world):
    assert world.abort(run, TopicPartition("orders", 9)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
