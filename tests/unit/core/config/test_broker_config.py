from __future__ import annotations

import pytest

from tidemill.core.config.broker_config import BrokerConfig, Endpoint, broker_config, parse_endpoint
from tidemill.core.config.keys import options_of
from tidemill.core.errors import UserError


def test_F126_a_broker_needs_no_configuration():
    config = broker_config()
    assert config == BrokerConfig()
    assert config.listen_endpoint == Endpoint("127.0.0.1", 9092)
    assert config.num_partitions == 4
    assert config.auto_create_topics_enable
    assert config.topic_defaults.tidemill_flush == "group"
    assert config.max_connections >= 15_000


def test_F125_flags_win_over_the_file_and_code_over_both():
    config = broker_config(
        file_text="num.partitions=1\nnode.id=1\nlisteners=localhost:1\n",
        flags=["num.partitions=2", "node.id=2"],
        values={"num.partitions": 3},
    )
    assert (config.num_partitions, config.node_id) == (3, 2)
    assert config.listen_endpoint == Endpoint("localhost", 1)


def test_an_unknown_broker_key_is_refused():
    with pytest.raises(UserError, match=r"did you mean num\.partitions\?"):
        broker_config(flags=["num.partition=2"])


def test_every_key_has_a_description_and_no_two_share_a_name():
    made = list(options_of(BrokerConfig).values())
    assert len({one.key for one in made}) == len(made)
    assert all(one.doc.endswith(".") for one in made)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("localhost:9092", Endpoint("localhost", 9092)),
        ("[::1]:9092", Endpoint("::1", 9092)),
        ("PLAINTEXT://0.0.0.0:0", Endpoint("0.0.0.0", 0)),
    ],
)
def test_an_endpoint_is_host_and_port(text, endpoint):
    assert parse_endpoint(text, key="listeners") == endpoint


def test_an_endpoint_prints_as_it_is_written():
    assert str(Endpoint("::1", 9092)) == "[::1]:9092"
    assert str(Endpoint("localhost", 9092)) == "localhost:9092"


@pytest.mark.parametrize(
    "text", ["", "localhost", "localhost:", "localhost:x", "h:65536", "h:-1", "::1:9092", "h:٣"]
)
def test_a_text_that_is_no_endpoint_is_refused_with_its_key(text):
    with pytest.raises(UserError, match=r"metrics\.listen="):
        parse_endpoint(text, key="metrics.listen")


def test_T19_the_advertised_address_is_the_bound_one_unless_set():
    assert broker_config().advertised_endpoint(4711) == Endpoint("127.0.0.1", 4711)
    fixed = broker_config(flags=["advertised.listeners=broker.example:9000"])
    assert fixed.advertised_endpoint(4711) == Endpoint("broker.example", 9000)
    named = broker_config(flags=["advertised.listeners=broker.example:0"])
    assert named.advertised_endpoint(4711) == Endpoint("broker.example", 4711)


def test_there_is_no_metrics_page_unless_asked_for():
    assert broker_config().metrics_endpoint is None
    config = broker_config(flags=["metrics.listen=[::1]:9100"])
    assert config.metrics_endpoint == Endpoint("::1", 9100)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["listeners=nowhere"], "listeners"),
        (["metrics.listen=nowhere"], "metrics.listen"),
        (["advertised.listeners=0.0.0.0:9092"], "advertised.listeners"),
        (["request.memory.bytes=1048576"], "socket.request.max.bytes"),
        (["response.memory.bytes=1048576"], "fetch.max.bytes"),
        (["message.max.bytes=200000000"], "socket.request.max.bytes"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused_by_name(flags, named):
    with pytest.raises(UserError, match=named):
        broker_config(flags=flags)


def test_S13_descriptors_are_shared_between_files_and_connections():
    plan = broker_config().descriptor_plan(1 << 20)
    assert (plan.connections, plan.files) == ((1 << 20) - 4_096 - 256, 4_096)
    small = broker_config().descriptor_plan(1024)
    assert small.files == 256
    assert small.connections == 1024 - 256 - 256


def test_too_few_descriptors_are_refused():
    with pytest.raises(UserError, match="ulimit -n"):
        broker_config().descriptor_plan(256)
