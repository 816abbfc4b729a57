"""The arithmetic of the rows about three brokers, and Kafka's configuration; nothing is started."""

from __future__ import annotations

from pathlib import Path

from bench.cluster_rows import widest_gap_s
from bench.clusters import kafka_properties
from bench.rows import ROWS


def test_an_outage_is_the_widest_gap_that_ends_after_the_broker_went():
    acks = [0.0, 3.0, 3.1, 3.2, 4.0, 4.1]
    assert round(widest_gap_s(acks, since=3.15), 3) == 0.8
    assert round(widest_gap_s(acks, since=2.0), 3) == 3.0
    assert widest_gap_s(acks, since=9.0) == 0.0
    assert widest_gap_s([], since=0.0) == 0.0


def test_three_nodes_of_kafka_vote_and_replicate_three_times():
    ports, controllers = [11, 12, 13], [21, 22, 23]
    texts = [kafka_properties(Path("/logs"), i, ports, controllers) for i in range(3)]
    for number, text in enumerate(texts):
        lines = text.splitlines()
        assert f"node.id={number + 1}" in lines
        voters = "1@127.0.0.1:21,2@127.0.0.1:22,3@127.0.0.1:23"
        assert f"controller.quorum.voters={voters}" in lines
        assert f"PLAINTEXT://127.0.0.1:{ports[number]}" in text
        assert "offsets.topic.replication.factor=3" in lines
        assert "transaction.state.log.min.isr=2" in lines
        assert not [line for line in lines if line.startswith("controller.quorum.bootstrap")]


def test_each_number_of_the_design_for_three_brokers_has_a_row():
    keys = {row.key for row in ROWS}
    wanted = "start produce-100 produce-1k ack memory kill stop catch-up"
    assert {f"cluster-{one}" for one in wanted.split()} <= keys


def test_rates_acks_and_outages_are_measured_on_both_stores():
    keys = {row.key for row in ROWS}
    wanted = "produce-100 produce-1k ack kill stop"
    assert {f"cluster-{one}-zookeeper" for one in wanted.split()} <= keys
