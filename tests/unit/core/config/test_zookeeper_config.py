"""The address of ZooKeeper as people write it."""

from __future__ import annotations

import pytest

from tidemill.core.config.broker_config import broker_config
from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.core.errors import UserError


@pytest.mark.parametrize(
    ("connect", "where"),
    [
        ("zk1", "zk1:2181/tidemill"),
        ("zk1:2182", "zk1:2182/tidemill"),
        ("zk1, zk2:99,zk3/", "zk1:2181,zk2:99,zk3:2181/tidemill"),
        ("zk1/a/b", "zk1:2181/a/b"),
        ("[::1]:2182,[fe80::1]", "[::1]:2182,[fe80::1]:2181/tidemill"),
        ("", ""),
    ],
)
def test_a_missing_port_or_node_has_a_default(connect, where):
    assert ZookeeperConfig(connect=connect).where == where


@pytest.mark.parametrize(
    "connect",
    ["zk1,,zk2", "zk 1", "/tidemill", "zk1/a//b", "zk1/zookeeper", "zk1/..", "http://zk1"],
)
def test_what_cannot_be_an_address_is_refused(connect):
    with pytest.raises(UserError, match=r"zookeeper\.connect="):
        broker_config(values={"zookeeper.connect": connect})


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({}, "--advertise"),
        ({"advertised.listeners": "a.example:9092"}, "--internal"),
    ],
)
def test_a_broker_that_listens_everywhere_must_say_where_others_reach_it(values, missing):
    everywhere = {"listeners": "0.0.0.0:9092", "zookeeper.connect": "zk1"}
    with pytest.raises(UserError, match=missing):
        broker_config(values={**everywhere, **values})
    broker_config(
        values={
            **everywhere,
            "advertised.listeners": "a.example:9092",
            "tidemill.internal.listen": "10.0.0.1:9093",
        }
    )
