from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidemill.cli.cluster_table import ClusterHealth, cluster_facts, print_cluster
from tidemill.client.admin.cluster_admin import ClusterSnapshot
from tidemill.client.admin.repair_admin import LogConflict
from tidemill.client.admin.replica_admin import Reassignment
from tidemill.client.network.metadata_cache import BrokerInfo, PartitionInfo, TopicInfo
from tidemill.core.ids import TopicPartition


def partition(index: int, leader: int, isr: list[int]) -> PartitionInfo:
    replicas = [0, 1, 2]
    return PartitionInfo(index, leader, 1, replicas, isr, [])


def snapshot(*partitions: PartitionInfo, live: tuple[int, ...] = (0, 1, 2)) -> ClusterSnapshot:
    topic = TopicInfo("t", UUID(int=1), False, {one.index: one for one in partitions})
    brokers = [BrokerInfo(one, "h", 9092 + one, f"r{one}") for one in live]
    return ClusterSnapshot("id", 0, brokers, [topic])


def test_a_cluster_in_which_all_is_well_has_nothing_to_say():
    health = ClusterHealth(snapshot(partition(0, 0, [0, 1, 2])))
    assert list(health.sentences()) == []
    assert (health.offline, health.under_replicated, health.not_preferred) == ([], [], [])


def test_each_trouble_has_a_sentence_that_says_what_to_do():
    health = ClusterHealth(
        snapshot(
            partition(0, 1, [1]),
            partition(1, -1, []),
            partition(2, 0, [0, 1, 2]),
            live=(0, 1),
        )
    )
    assert list(health.sentences()) == [
        "broker 2 is missing and holds 3 replicas: start it",
        "t-1 has no leader: start broker 2",
        "t-0 is under-replicated: broker 0, 2 are not in sync",
    ]
    assert [str(one) for one in health.not_preferred] == ["t-0"]


def test_what_one_broker_causes_is_one_sentence_whatever_the_number_of_partitions():
    led = [partition(index, 0, [0, 1]) for index in range(40)]
    offline = [partition(index, -1, []) for index in range(40, 42)]
    assert list(ClusterHealth(snapshot(*led, *offline, live=(0, 1))).sentences()) == [
        "broker 2 is missing and holds 42 replicas: start it",
        "t-40, t-41 have no leader: start broker 2",
        "t-0, t-1, t-2, t-3, t-4 and 35 more are under-replicated: broker 2 is not in sync",
    ]
    moves = [Reassignment(TopicPartition("t", one), (0, 1), (1,), ()) for one in range(7)]
    moving = replace(snapshot(partition(0, 0, [0, 1, 2])), moves=moves)
    assert list(ClusterHealth(moving).sentences()) == [
        "t-0, t-1, t-2, t-3, t-4 and 2 more are being moved: to broker 1"
    ]


def test_a_partition_whose_replicas_all_live_without_a_leader_needs_somebody_to_decide():
    (sentence,) = ClusterHealth(snapshot(partition(0, -1, []))).sentences()
    assert "tidemill cluster elect unclean" in sentence


def test_I13_a_replica_that_refuses_to_follow_is_named_with_the_command_that_decides():
    torn = snapshot(partition(0, 0, [0, 2]), partition(1, 0, [0, 2]), live=(0, 1, 2))
    assert ClusterHealth(torn).behind() == {1: [TopicPartition("t", 0), TopicPartition("t", 1)]}
    conflict = LogConflict(
        partition=TopicPartition("t", 0),
        broker_id=1,
        leader_id=0,
        leader_epoch=3,
        differ_from=50,
        committed_offset=100,
        own_end=100,
        leader_end=-1,
    )
    told = replace(torn, conflicts=[conflict])
    (sentence,) = [one for one in ClusterHealth(told).sentences() if "refuses" in one]
    assert sentence.startswith("t-0 on broker 1 refuses to follow: its leader, broker 0,")
    assert "`tidemill cluster repair`" in sentence
    (fact,) = cluster_facts(told)["refused_cuts"]
    assert fact == {"partition": "t-0", "broker": 1, "leader": 0}


def test_a_replica_of_a_missing_broker_is_not_asked():
    assert ClusterHealth(snapshot(partition(0, 0, [0]), live=(0, 2))).behind() == {
        2: [TopicPartition("t", 0)]
    }


def test_a_broker_that_is_registered_and_does_not_answer_is_named():
    found = replace(snapshot(partition(0, 0, [0, 1, 2])), silent=frozenset({1}))
    assert list(ClusterHealth(found).sentences()) == [
        "broker 1 does not answer at h:9093: if it has ended, start it again, others lead as soon "
        "as its session ends; if it runs, its log says whether it reaches its store"
    ]
    assert cluster_facts(found)["silent"] == [1]


def test_a_missing_controller_is_named():
    found = ClusterHealth(ClusterSnapshot("id", -1, [BrokerInfo(0, "h", 1)], []))
    assert "no controller" in next(found.sentences())


def test_json_and_table_have_every_broker_also_missing_ones(capsys):
    cluster = snapshot(partition(0, 0, [0, 1]), live=(0, 1))
    facts = cluster_facts(cluster)
    assert [(one["broker"], one["role"]) for one in facts["brokers"]] == [
        (0, "controller"),
        (1, "broker"),
        (2, "missing"),
    ]
    assert facts["under_replicated"] == ["t-0"]
    print_cluster(cluster)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("cluster id, 1 partitions: 0 without a leader, 1 under-replicated")
    assert shown[4].split() == ["2", "-", "-", "0", "1", "0", "missing"]


def test_names_of_topics_cannot_control_the_terminal(capsys):
    hostile = TopicInfo("\x1b[2J", UUID(int=1), False, {0: partition(0, -1, [])})
    print_cluster(ClusterSnapshot("id", 0, [BrokerInfo(0, "h", 1)], [hostile]))
    assert "\x1b" not in capsys.readouterr().out


def test_moves_drained_and_fenced_brokers_are_told():
    known = snapshot(partition(0, 0, [0, 1, 2]))
    moving = replace(
        known,
        moves=[Reassignment(TopicPartition("t", 0), (1, 0), adding=(1,), removing=(0,))],
        draining=frozenset({0}),
        fenced={2: ""},
    )
    assert list(ClusterHealth(moving).sentences()) == [
        "broker 0 is being drained: 1 replicas are still there",
        "broker 2 waits until the controller lets it in",
        "t-0 is being moved: to broker 1, off broker 0",
    ]
    assert cluster_facts(moving)["moves"][0]["adding"] == (1,)


def test_a_broker_that_does_not_hear_the_controller_is_told():
    found = replace(snapshot(partition(0, 0, [0, 1, 2])), unhearing=frozenset({1}))
    assert list(ClusterHealth(found).sentences()) == [
        "broker 1 gets no answer from the controller, broker 0: look at the network between their "
        "INTERNAL addresses"
    ]
    assert cluster_facts(found)["unhearing"] == [1]


def test_a_replica_that_is_still_copied_is_no_sign_of_trouble():
    growing = replace(
        snapshot(partition(0, 0, [0, 1])),
        moves=[Reassignment(TopicPartition("t", 0), (0, 1, 2), adding=(2,), removing=())],
    )
    assert ClusterHealth(growing).under_replicated == []


def test_a_broker_that_its_software_keeps_out_is_explained_and_levels_are_shown(capsys):
    why = "broker 2 runs 0.0.9 and lacks transaction.version 2: upgrade it"
    found = replace(
        snapshot(partition(0, 0, [0, 1])), fenced={2: why}, levels={"transaction.version": 2}
    )
    assert why in list(ClusterHealth(found).sentences())
    facts = cluster_facts(found)
    assert (facts["fenced"], facts["features"]) == ([2], {"transaction.version": 2})
    assert facts["kept_out"] == [{"broker": 2, "because": why}]
    print_cluster(found)
    assert "features: transaction.version 2\n" in capsys.readouterr().out
