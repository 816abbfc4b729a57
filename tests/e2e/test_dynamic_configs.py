"""Stock admin clients configure brokers and groups at run time, and the broker keeps it."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from tests.support.clients import DEADLINE_S, kafka
from tests.support.topics import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

BROKER = (ResourceType.BROKER, "0")
GROUP = (ResourceType.GROUP, "orders")
SESSION = "consumer.session.timeout.ms"


def admin_of(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def alter(admin, resource, key, value, operation=AlterConfigOpType.SET):
    entry = ConfigEntry(key, value, incremental_operation=operation)
    wanted = ConfigResource(*resource, incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([wanted], request_timeout=DEADLINE_S).values()
    future.result(DEADLINE_S)


def describe(admin, resource, key):
    """The value, the number of its source, and whether it is read-only."""
    wanted = ConfigResource(*resource)
    (future,) = admin.describe_configs([wanted], request_timeout=DEADLINE_S).values()
    entry = future.result(DEADLINE_S)[key]
    return entry.value, entry.source, entry.is_read_only


def test_T56_librdkafka_sets_keys_of_a_broker_and_a_group_and_restarts_keep_them(new_broker):
    broker = new_broker()
    admin = admin_of(broker)
    alter(admin, BROKER, "log.retention.ms", "123456")
    alter(admin, GROUP, SESSION, "50000")
    dynamic = ConfigSource.DYNAMIC_BROKER_CONFIG.value
    assert describe(admin, BROKER, "log.retention.ms") == ("123456", dynamic, False)
    assert describe(admin, BROKER, "data.dir")[2]

    assert broker.stop() == 0
    broker.start()
    alter(admin, BROKER, "log.segment.bytes", "1048576")
    broker.kill()
    broker.start()

    admin = admin_of(broker)
    assert describe(admin, BROKER, "log.retention.ms")[:2] == ("123456", dynamic)
    assert describe(admin, BROKER, "log.segment.bytes")[:2] == ("1048576", dynamic)
    assert describe(admin, GROUP, SESSION)[0] == "50000"
    create_topic(broker.bootstrap, "t")
    topic = (ResourceType.TOPIC, "t")
    assert describe(admin, topic, "retention.ms")[:2] == ("123456", dynamic)

    alter(admin, BROKER, "log.retention.ms", None, AlterConfigOpType.DELETE)
    assert describe(admin, BROKER, "log.retention.ms")[1] == ConfigSource.DEFAULT_CONFIG.value


def test_S35_librdkafka_is_told_why_a_key_cannot_change(shared_broker):
    admin = admin_of(shared_broker)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        alter(admin, BROKER, "listeners", "127.0.0.1:1")
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG
    assert "restart" in refused.value.args[0].str()


def test_T13_kafka_python_finds_the_features_that_work(python_admin):
    found = python_admin.describe_features()
    assert {name: one["finalized"] for name, one in found.items()} == {
        "metadata.version": (30, 30),
        "group.version": (1, 1),
        "tidemill.version": (2, 2),
        "transaction.version": (2, 2),
    }


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "source"),
    [
        ("BROKER", "0", "log.cleaner.backoff.ms", "14000", "DYNAMIC_BROKER_CONFIG"),
        ("GROUP", "from python", SESSION, "50000", "DYNAMIC_GROUP_CONFIG"),
    ],
)
def test_T56_kafka_python_sets_keys_of_a_broker_and_a_group(
    python_admin, kind, name, key, value, source
):
    kind = kafka.admin.ConfigResourceType[kind]
    python_admin.alter_configs([kafka.admin.ConfigResource(kind, name, configs={key: value})])
    asked = kafka.admin.ConfigResource(kind, name, configs={key: None})
    (by_resource,) = python_admin.describe_configs([asked]).values()
    entry = by_resource[name][key]
    assert (entry["value"], entry["config_source"], entry["read_only"]) == (value, source, False)


@pytest.fixture
def python_admin(shared_broker):
    admin = kafka.KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap)
    yield admin
    admin.close()
