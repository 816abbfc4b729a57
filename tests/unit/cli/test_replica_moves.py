from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli import replica_moves
from tidemill.cli.replica_moves import MovePlan, show_plan
from tidemill.client.admin.cluster_admin import ClusterSnapshot
from tidemill.client.admin.replica_admin import Reassignment
from tidemill.client.network.metadata_cache import BrokerInfo, PartitionInfo, TopicInfo
from tidemill.core.ids import NO_LEADER, ZERO_UUID, TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_plan_begins_where_moves_end_and_gives_nothing_to_brokers_that_cannot_take_it():
    partition = PartitionInfo(0, 0, 1, replicas=[1, 0], isr=[0], offline_replicas=[])
    snapshot = ClusterSnapshot(
        "id",
        0,
        [BrokerInfo(one, "h", 1, rack="r") for one in range(5)],
        [TopicInfo("t", ZERO_UUID, False, {0: partition})],
        moves=[Reassignment(T0, (1, 0), adding=(1,), removing=(0,))],
        fenced={2: ""},
        draining=frozenset({3}),
    )
    plan = MovePlan.of(snapshot, without=[4])
    assert plan.before == {T0: (1,)}
    assert plan.usable == [0, 1]
    assert plan.racks == dict.fromkeys(range(5), "r")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["cluster", "reassign", "t:0"], "give either --brokers or --cancel"),
        (["cluster", "reassign", "t:0", "--brokers", "1", "--cancel"], "give either --brokers"),
        (["cluster", "reassign", "t:0", "--brokers", "1,x"], "expected ids, as in 1,2,3"),
        (["topic", "alter", "t"], "--partitions or --replication"),
    ],
)
def test_a_command_that_says_too_little_or_too_much_is_refused(arguments, told):
    result = tidemill(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ({T0: 1_500_000, T1: 999}, "copies 3.0 MB"),
        ({T0: 1_500_000}, "copies 3.0 MB, without 1 partitions of unknown size"),
    ],
)
def test_a_plan_is_shown_with_the_bytes_that_it_copies(capsys, sizes, shown):
    before = {T0: (0, 1), T1: (0, 1)}
    targets = {T0: (2, 3), T1: (1, 0)}
    racks = dict.fromkeys(range(4), "")
    plan = MovePlan(before, racks, list(racks), sizes=sizes, targets=targets)
    show_plan(plan, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["t-0", "0", "1", "2", "3", "3.0", "MB"]
    assert lines[2].split()[-2:] == (["0", "B"] if T1 in sizes else ["0", "?"])
    assert lines[-1] == shown
    assert [fact["bytes"] for fact in plan.facts()] == [3_000_000, 0 if T1 in sizes else None]


@pytest.mark.parametrize(
    "stopped",
    [
        PartitionInfo(0, NO_LEADER, 1, replicas=[1, 0], isr=[], offline_replicas=[0]),
        PartitionInfo(0, 2, 1, replicas=[1, 2, 3, 0], isr=[0, 1, 2], offline_replicas=[3]),
    ],
    ids=["without a leader", "to one that is away"],
)
def test_moves_that_copy_nothing_do_not_keep_others_from_beginning(monkeypatch, run, stopped):
    """Four of them to a broker whose room is used up by that."""
    names = [TopicPartition("gone", index) for index in range(MOVES_PER_BROKER_MAX)]
    topic = TopicInfo("gone", ZERO_UUID, False, dict.fromkeys(range(len(names)), stopped))
    all_replicas = tuple(stopped.replicas)
    moves = [Reassignment(name, all_replicas, adding=(1,), removing=(0,)) for name in names]
    begun: list[object] = []
    looks = iter(range(3))

    class Client:
        metadata = SimpleNamespace(topics={"gone": topic})

        async def refresh(self, _topics: object) -> None:
            """Nothing has changed."""

    async def list_moves(_client: object) -> list[Reassignment]:
        next(looks)  # it ends at the second one
        return moves

    async def reassign(_client: object, targets: object) -> dict[object, object]:
        begun.append(targets)
        return {}

    monkeypatch.setattr(replica_moves, "list_reassignments", list_moves)
    monkeypatch.setattr(replica_moves, "reassign", reassign)
    monkeypatch.setattr(replica_moves, "_POLL_S", 0)
    plan = MovePlan({T0: (2, 0)}, {}, [], targets={T0: (2, 1)})
    run(replica_moves.carry_out(Client(), plan))
    assert begun == [{T0: (2, 1)}]


def test_a_view_is_in_no_plan_and_is_refused_by_name():
    plan = MovePlan.of(ClusterSnapshot("id", 0, [], [], views={"orders.eu": "orders"}))
    for name in ("orders.eu", "orders.eu:0"):
        assert plan.missing(name).detail == "orders.eu is a view: move the replicas of orders"
    assert plan.missing("none:0").detail == "there is no none:0"
