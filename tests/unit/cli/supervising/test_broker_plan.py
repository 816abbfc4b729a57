from __future__ import annotations

from itertools import pairwise

import pytest

from tidemill.cli.supervising.broker_plan import (
    BrokerPlan,
    TopicPlan,
    left_out,
    parse_racks,
    plan_brokers,
    plan_topics,
    too_many_replicas,
)
from tidemill.core.config.broker_config import BrokerConfig, broker_config
from tidemill.core.config.keys import parse_assignments
from tidemill.core.errors import UserError


def _plans(*settings: str, count: int = 3, racks: str | None = None) -> list[BrokerPlan]:
    return plan_brokers(
        broker_config(flags=settings),
        count=count,
        racks=parse_racks(racks, count),
        given=parse_assignments(settings),
        flags=[flag for setting in settings for flag in ("--set", setting)],
    )


def _configs(*settings: str, count: int = 3, racks: str | None = None) -> list[BrokerConfig]:
    """What each broker makes of its command line."""
    configs = []
    for plan in _plans(*settings, count=count, racks=racks):
        words = plan.command(parent_pid=1)
        configs.append(broker_config(flags=[b for a, b in pairwise(words) if a == "--set"]))
    return configs


def test_each_broker_has_its_own_id_port_and_directory_and_all_share_one_store():
    configs = _configs("listeners=127.0.0.1:9092", "data.dir=d")
    assert [config.node_id for config in configs] == [0, 1, 2]
    assert [config.listen_endpoint.port for config in configs] == [9092, 9093, 9094]
    assert [config.data_dir for config in configs] == ["d", "d/broker-1", "d/broker-2"]
    assert {config.store_path for config in configs} == {"d/coord.db"}


def test_broker_0_keeps_its_data_and_its_store_where_a_lone_broker_has_them():
    lone, first = broker_config(flags=["data.dir=d"]), _configs("data.dir=d")[0]
    assert (first.data_dir, first.store_path) == (lone.data_dir, lone.store_path)
    assert first.listeners == lone.listeners


def test_every_address_that_is_named_gets_the_next_port_for_the_next_broker():
    keys = ("metrics.listen", "tidemill.internal.listen", "advertised.listeners")
    third = _configs(*(f"{key}=[::1]:7000" for key in keys))[2]
    assert third.metrics_endpoint == third.internal_endpoint == ("::1", 7002)
    assert third.advertised_endpoint(1) == ("::1", 7002)


def test_port_0_stays_0_for_everyone():
    ports = {config.listen_endpoint.port for config in _configs("listeners=127.0.0.1:0")}
    assert ports == {0}


def test_a_broker_that_is_started_again_keeps_the_port_that_it_was_given():
    command = _plans("listeners=127.0.0.1:0")[1].command(parent_pid=1, listen="127.0.0.1:4711")
    assert command[-1] == "listeners=127.0.0.1:4711"


def test_ports_beyond_the_last_one_are_refused_by_name():
    with pytest.raises(UserError, match=r"listeners=127\.0\.0\.1:65534: broker 2 .*lower port"):
        _plans("listeners=127.0.0.1:65534")


def test_the_users_settings_are_passed_on_and_lose_against_what_tells_brokers_apart():
    configs = _configs("num.partitions=7", "broker.rack=r", racks="a,b,c")
    assert {config.num_partitions for config in configs} == {7}
    assert [config.broker_rack for config in configs] == ["a", "b", "c"]
    assert {config.broker_rack for config in _configs("broker.rack=r")} == {"r"}


def test_brokers_that_listen_everywhere_must_say_where_clients_reach_them():
    with pytest.raises(UserError, match=r"--listen 0\.0\.0\.0:9092: say with --advertise"):
        _plans("listeners=0.0.0.0:9092")
    named = _configs("listeners=0.0.0.0:9092", "advertised.listeners=example:9092")
    assert [config.advertised_endpoint(1) for config in named] == [
        ("example", port) for port in (9092, 9093, 9094)
    ]


def test_ids_cannot_be_chosen():
    with pytest.raises(UserError, match=r"node\.id: .*leave this key out"):
        _plans("node.id=4")


@pytest.mark.parametrize("racks", ["", "a", "a,b", "a,,c", "a,b,c,d"])
def test_racks_are_named_for_every_broker_or_for_none(racks):
    with pytest.raises(UserError, match="name 3 racks, one per broker"):
        parse_racks(racks, 3)


@pytest.mark.parametrize(("count", "replicas", "in_sync_min"), [(2, 2, 1), (3, 3, 2), (16, 3, 2)])
def test_new_topics_get_three_replicas_of_which_a_majority_is_in_sync(count, replicas, in_sync_min):
    planned = plan_topics(broker_config(), count=count, given=())
    assert planned == TopicPlan(replicas, in_sync_min)
    for config in _configs(count=count):
        assert config.default_replication_factor == replicas
        assert config.topic_defaults.min_insync_replicas == in_sync_min


def test_what_the_user_says_about_new_topics_holds():
    flags = ["default.replication.factor=1", "min.insync.replicas=1"]
    (config, *_) = _configs(*flags)
    assert config.default_replication_factor == config.topic_defaults.min_insync_replicas == 1
    assert plan_topics(broker_config(flags=flags), count=3, given=parse_assignments(flags)) == (
        TopicPlan(1, 1)
    )


def test_a_default_of_more_replicas_than_brokers_is_pointed_out():
    assert "default.replication.factor=5, but 3 brokers" in too_many_replicas(TopicPlan(5, 3), 3)
    assert too_many_replicas(TopicPlan(3, 2), 3) == ""


def test_a_broker_of_an_earlier_command_that_is_not_started_is_pointed_out(tmp_path):
    config = broker_config(values={"data.dir": str(tmp_path)})
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-2").mkdir()
    assert "also has broker-1, broker-2, not started now" in left_out(config, 1)
    assert "also has broker-2, not started now" in left_out(config, 2)
    assert left_out(config, 1).endswith("--brokers 3 starts all")
    assert left_out(config, 3) == ""
