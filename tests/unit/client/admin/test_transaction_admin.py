from __future__ import annotations

import pytest

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_transaction_list import FakeTransactionList
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.admin.transaction_admin import TransactionAdmin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class World:
    """A cluster in memory with the topic `orders` of two partitions."""

    def __init__(self, brokers: int = 1) -> None:
        self.cluster = FakeCluster(brokers)
        self.transactions = FakeTransactionList(self.cluster)
        self.cluster.add_topic("orders", 2)

    def ask(self, act):
        async def scenario():
            client = ClusterClient(self.cluster.net, self.cluster.bootstrap)
            return await act(TransactionAdmin(client))

        return run_virtually(scenario())

    def hanging(self):
        return [(one.partition, one.producer_id) for one in self.ask(lambda it: it.find_hanging())]


def test_the_list_is_the_sum_of_what_all_brokers_coordinate():
    world = World(brokers=3)
    for name, broker in (("c", 1), ("a", 3), ("b", 2)):
        world.transactions.add(name, 7, coordinator=broker)
    found = world.ask(lambda it: it.list_transactions())
    assert [(one.transactional_id, one.coordinator) for one in found] == [
        ("a", 3),
        ("b", 2),
        ("c", 1),
    ]


def test_a_description_comes_from_the_coordinator():
    world = World(brokers=2)
    world.transactions.add("pay", 7, coordinator=2, partitions=[FIRST, SECOND])
    found = world.ask(lambda it: it.describe("pay"))
    assert (found.state, found.producer_id, found.coordinator) == ("Ongoing", 7, 2)
    assert found.partitions == (FIRST, SECOND)
    assert found.is_open


def test_an_abort_waits_until_what_was_open_is_ended():
    world = World()
    world.transactions.add("pay", 7)
    world.transactions.refusals = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    world.ask(lambda it: it.abort("pay"))
    assert world.transactions.fenced == ["pay"]


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "PrepareCommit"])
def test_a_producer_without_an_open_transaction_is_not_fenced(state):
    world = World()
    world.transactions.add("pay", 7, state=state)
    with pytest.raises(KafkaError) as refusal:
        world.ask(lambda it: it.abort("pay"))
    assert refusal.value.code is ErrorCode.INVALID_TXN_STATE
    assert world.transactions.fenced == []


def test_an_unknown_id_is_not_made_by_an_abort():
    world = World()
    with pytest.raises(KafkaError) as refusal:
        world.ask(lambda it: it.abort("typo"))
    assert refusal.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_a_transaction_that_no_coordinator_knows_hangs():
    world = World()
    world.transactions.add("pay", 7, partitions=[FIRST])
    world.transactions.open = [{FIRST: [7, 8], SECOND: [7]}]
    assert world.hanging() == [(FIRST, 8), (SECOND, 7)]


def test_a_transaction_that_ends_meanwhile_does_not_hang():
    world = World()
    world.transactions.open = [{FIRST: [8]}, {}]
    assert world.hanging() == []


def test_a_transaction_whose_markers_are_being_written_does_not_hang():
    world = World()
    world.transactions.add("pay", 7, state="PrepareCommit", partitions=[FIRST])
    world.transactions.open = [{FIRST: [7]}]
    assert world.hanging() == []
