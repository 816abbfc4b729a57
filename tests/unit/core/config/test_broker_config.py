from __future__ import annotations

import pytest

from tidemill.core.config.broker_config import BrokerConfig, Endpoint, broker_config, parse_endpoint
from tidemill.core.config.keys import options_of
from tidemill.core.errors import UserError
from tidemill.core.limits import UNPOOLED_MEMORY_BYTES


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
        (["memory.bytes=1048576"], "request.memory.bytes"),
        (["message.max.bytes=200000000"], "socket.request.max.bytes"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused_by_name(flags, named):
    with pytest.raises(UserError, match=named):
        broker_config(flags=flags)


def test_S2_the_request_memory_holds_two_of_the_largest_requests():
    largest = ["socket.request.max.bytes=20000000", "message.max.bytes=1000000"]
    assert broker_config(flags=[*largest, "request.memory.bytes=40000000"])
    with pytest.raises(UserError, match="two requests"):
        broker_config(flags=[*largest, "request.memory.bytes=39999999"])


MIB = 1 << 20
POOL_KEYS = ("request.memory.bytes", "response.memory.bytes", "log.cleaner.dedupe.buffer.size")


def _pooled_bytes(config):
    return (
        config.request_memory_bytes
        + config.response_memory_bytes
        + config.log_cleaner_dedupe_buffer_size
    )


@pytest.mark.parametrize("total", [160 * MIB, 256 * MIB, 1024 * MIB, 64 * 1024 * MIB])
def test_one_total_is_divided_among_all_pools(total):
    config = broker_config(flags=[f"memory.bytes={total}"])
    assert total - MIB < _pooled_bytes(config) + UNPOOLED_MEMORY_BYTES <= total
    assert config.request_memory_bytes >= 2 * config.socket_request_max_bytes
    assert config.response_memory_bytes >= config.fetch_max_bytes


def test_a_large_total_changes_neither_the_largest_request_nor_the_largest_fetch():
    config = broker_config(flags=[f"memory.bytes={2048 * MIB}"])
    plain = broker_config()
    assert config.socket_request_max_bytes == plain.socket_request_max_bytes
    assert config.fetch_max_bytes == plain.fetch_max_bytes


def test_a_pool_that_is_set_keeps_its_value_and_the_others_divide_the_rest():
    flags = [
        f"memory.bytes={640 * MIB}",
        f"response.memory.bytes={212 * MIB}",
        "message.max.bytes=2000000",
    ]
    config = broker_config(flags=flags)
    assert config.response_memory_bytes == 212 * MIB
    assert config.request_memory_bytes == 200 * MIB
    assert config.log_cleaner_dedupe_buffer_size == 100 * MIB


def test_pools_that_exceed_the_total_are_refused_by_name():
    sizes = [f"{key}={256 * MIB}" for key in POOL_KEYS]
    with pytest.raises(UserError) as caught:
        broker_config(flags=[f"memory.bytes={800 * MIB}", *sizes])
    assert all(part in str(caught.value) for part in [*sizes, f"memory.bytes={800 * MIB}"])
    assert broker_config(flags=[f"memory.bytes={896 * MIB}", *sizes])


def test_a_total_that_leaves_nothing_for_a_pool_is_refused_by_name():
    flags = [f"memory.bytes={400 * MIB}", f"request.memory.bytes={300 * MIB}"]
    with pytest.raises(UserError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        broker_config(flags=flags)


def test_without_a_total_every_pool_has_its_own_default():
    assert _pooled_bytes(broker_config()) == 640 * MIB


def test_brokers_meet_at_the_host_of_the_clients_but_never_at_every_address():
    def host(listen: str) -> tuple[str, int]:
        return broker_config(values={"listeners": listen}).internal_endpoint

    assert host("192.0.2.1:9092") == ("192.0.2.1", 0)
    assert host("0.0.0.0:9092") == ("127.0.0.1", 0)
    assert host("[::]:9092") == ("::1", 0)
    with pytest.raises(UserError, match=r"tidemill\.internal\.listen=0\.0\.0\.0:1: .*name one"):
        broker_config(flags=["tidemill.internal.listen=0.0.0.0:1"])


def test_the_store_lies_in_the_data_directory_unless_it_is_named():
    assert broker_config(flags=["data.dir=d"]).store_path == "d/coord.db"
    both = broker_config(flags=["data.dir=d/broker-1", "tidemill.store.file=d/coord.db"])
    assert both.store_path == "d/coord.db"


@pytest.mark.parametrize(
    "flag",
    ["broker.rack=\udcff", "advertised.listeners=a..b:9092", f"listeners={'x' * 64}:9092"],
)
def test_a_name_that_no_client_could_be_told_or_look_up_is_refused(flag):
    with pytest.raises(UserError, match=r"not the name of a host|not text"):
        broker_config(flags=[flag])
