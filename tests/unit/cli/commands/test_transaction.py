from __future__ import annotations

import json

import pytest

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_transaction_list import FakeTransactionList
from tests.unit.cli.invoke import tidemill
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition

FIRST = TopicPartition("orders", 0)


class World:
    """The topic `orders`, and two transactional ids."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.transactions = FakeTransactionList(self.cluster)
        self.cluster.add_topic("orders", 2)
        self.transactions.add("pay", 7, partitions=[FIRST])
        self.transactions.add("ship", 8, state="Empty")

    def tidemill(self, *args: str):
        return tidemill("transaction", *args, cluster=self.cluster)


@pytest.fixture
def world() -> World:
    return World()


def test_the_list_names_ids_states_and_producers(world):
    ran = world.tidemill("list")
    assert ran.exit_code == 0
    assert [line.split()[:3] for line in ran.output.splitlines()[1:]] == [
        ["pay", "Ongoing", "7"],
        ["ship", "Empty", "8"],
    ]


def test_the_list_can_be_narrowed_to_a_state(world):
    ran = world.tidemill("list", "--state", "Empty", "--json")
    assert [one["transactional_id"] for one in json.loads(ran.output)] == ["ship"]


def test_a_description_shows_the_partitions(world):
    facts = json.loads(world.tidemill("describe", "pay", "--json").output)
    assert facts["state"] == "Ongoing"
    assert facts["partitions"] == [{"topic": "orders", "partition": 0}]
    assert "orders" in world.tidemill("describe", "pay").output


def test_an_abort_fences_the_producer(world):
    ran = world.tidemill("abort", "pay")
    assert ran.exit_code == 0
    assert ran.output == "aborted the transaction of pay\n"
    assert world.transactions.fenced == ["pay"]


def test_an_abort_of_nothing_says_so_and_fails(world):
    ran = world.tidemill("abort", "ship")
    assert ran.exit_code == 1
    assert "ship is Empty" in ran.stderr
    assert world.transactions.fenced == []


def test_hanging_transactions_are_named_by_partition_and_producer(world):
    world.transactions.open = [{FIRST: [99]}]
    ran = world.tidemill("list", "--hanging")
    assert ran.output.splitlines()[1].split()[:4] == ["orders", "0", "99", "0"]
    (facts,) = json.loads(world.tidemill("list", "--hanging", "--json").output)
    assert (facts["topic"], facts["producer_id"], facts["first_offset"]) == ("orders", 99, 5)


HANGING = ("--topic", "orders", "--partition", "0", "--start-offset", "5")


def test_a_transaction_that_hangs_is_aborted_by_its_place(world):
    world.transactions.open = [{FIRST: [99]}]
    world.transactions.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE]  # it passes
    ran = world.tidemill("abort", *HANGING)
    assert ran.exit_code == 0
    assert "producer 99, epoch 0" in ran.output
    assert world.transactions.aborted == [(99, "orders", 0)]


def test_a_transaction_that_a_coordinator_will_end_stays_open(world):
    world.transactions.open = [{FIRST: [7]}]
    world.transactions.refusals = [ErrorCode.INVALID_TXN_STATE]
    ran = world.tidemill("abort", *HANGING)
    assert ran.exit_code == 1
    assert "stays open" in ran.stderr


def test_an_abort_at_an_offset_where_none_begins_says_so(world):
    world.transactions.open = [{FIRST: [99]}]
    ran = world.tidemill("abort", *HANGING[:-1], "6")
    assert ran.exit_code == 1
    assert "begins at offset 6" in ran.stderr
    assert world.transactions.aborted == []


@pytest.mark.parametrize("arguments", [(), HANGING[:4], ("pay", *HANGING)])
def test_an_abort_names_an_id_or_a_place(world, arguments):
    ran = world.tidemill("abort", *arguments)
    assert ran.exit_code == 2
    assert "--start-offset" in ran.stderr
