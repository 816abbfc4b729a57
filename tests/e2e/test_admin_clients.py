"""The admin clients of the stock libraries create, describe, change and delete topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.clients import DEADLINE_S, Confluent, KafkaPython, Message, kafka
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

NOVEMBER_2023_MS = 1_700_000_000_000


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_broker.bootstrap})


@pytest.fixture
def python_admin(shared_broker: BrokerProcess) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap)
    yield client
    client.close()


def _result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def _describe(admin: AdminClient, topic: str) -> Any:
    return _result(admin.describe_topics(confluent_kafka.TopicCollection([topic])))


def _config(admin: AdminClient, topic: str) -> dict[str, str]:
    """The keys that differ from their defaults."""
    entries = _result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return {name: entry.value for name, entry in entries.items() if not entry.is_default}


def _error_code(raised: pytest.ExceptionInfo[confluent_kafka.KafkaException]) -> int:
    return int(raised.value.args[0].code())


def test_F01_T21_T22_a_topic_is_created_listed_described_and_deleted(admin, topic):
    _result(admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "60000"})]))

    assert len(admin.list_topics(timeout=DEADLINE_S).topics[topic].partitions) == 3
    described = _describe(admin, topic)
    assert [p.leader.id for p in described.partitions] == [0, 0, 0]
    assert [[node.id for node in p.isr] for p in described.partitions] == [[0], [0], [0]]
    assert _config(admin, topic) == {"retention.ms": "60000"}

    _result(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_T14_librdkafka_lists_all_topics_though_bytes_follow_its_request(admin, topic):
    _result(admin.create_topics([NewTopic(topic, 1, 1)]))

    assert topic in admin.list_topics(timeout=DEADLINE_S).topics


def test_F01_a_name_can_be_taken_only_once(admin, topic):
    _result(admin.create_topics([NewTopic(topic, 1, 1)]))

    with pytest.raises(confluent_kafka.KafkaException) as raised:
        _result(admin.create_topics([NewTopic(topic, 1, 1)]))

    assert _error_code(raised) == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("name", "config", "code"),
    [
        ("bad name!", {}, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        ("..", {}, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        ("odd", {"no.such.key": "1"}, confluent_kafka.KafkaError.INVALID_CONFIG),
        ("odd", {"retention.ms": "soon"}, confluent_kafka.KafkaError.INVALID_CONFIG),
    ],
)
def test_T16_T21_a_wrong_name_or_key_is_refused(admin, name, config, code):
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        _result(admin.create_topics([NewTopic(name, 1, 1, config=config)]))

    assert _error_code(raised) == code
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


def test_T21_validating_creates_nothing(admin, topic):
    _result(admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True))

    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_F02_a_topic_grows_by_partitions_and_senders_use_them(admin, shared_broker, topic):
    _result(admin.create_topics([NewTopic(topic, 1, 1)]))

    _result(admin.create_partitions([NewPartitions(topic, 3)]))

    assert len(_describe(admin, topic).partitions) == 3
    places = Confluent().produce(shared_broker.bootstrap, topic, [Message(b"v", partition=2)])
    assert places == [(2, 0)]


def test_T57_one_key_is_set_and_reset_without_changing_the_others(admin, topic):
    _result(admin.create_topics([NewTopic(topic, 1, 1, config={"segment.bytes": "1048576"})]))

    def alter(value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _result(admin.incremental_alter_configs([resource]))

    alter("60000", AlterConfigOpType.SET)
    assert _config(admin, topic) == {"segment.bytes": "1048576", "retention.ms": "60000"}
    alter(None, AlterConfigOpType.DELETE)
    assert _config(admin, topic) == {"segment.bytes": "1048576"}


def test_F25_T32_deleted_records_cannot_be_read_and_the_rest_can(admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(b"%d" % n) for n in range(10)])

    asked = confluent_kafka.TopicPartition(topic, 0, 4)
    deleted = _result(admin.delete_records([asked]))

    assert deleted.low_watermark == 4
    with pytest.raises(confluent_kafka.KafkaException):
        Confluent().consume(shared_broker.bootstrap, topic, 1, {0: 3})
    records = Confluent().consume(shared_broker.bootstrap, topic, 6, {0: 4})
    assert [record.value for record in records] == [b"%d" % n for n in range(4, 10)]


def test_T39_every_kind_of_offset_can_be_asked_for(admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    shifts = [0, 10, 90, 30, 40]
    Confluent().produce(
        shared_broker.bootstrap,
        topic,
        [Message(b"v", timestamp_ms=NOVEMBER_2023_MS + shift) for shift in shifts],
    )

    def asked(spec: OffsetSpec) -> tuple[int, int]:
        partition = confluent_kafka.TopicPartition(topic, 0)
        found = _result(admin.list_offsets({partition: spec}))
        return found.offset, found.timestamp

    assert asked(OffsetSpec.earliest()) == (0, -1)
    assert asked(OffsetSpec.latest()) == (5, -1)
    assert asked(OffsetSpec.max_timestamp()) == (2, NOVEMBER_2023_MS + 90)
    assert asked(OffsetSpec.for_timestamp(NOVEMBER_2023_MS + 11)) == (2, NOVEMBER_2023_MS + 90)


def test_T17_I34_a_topic_created_again_has_a_new_id_and_no_old_records(admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(b"old")] * 5)
    old_id = str(_describe(admin, topic).topic_id)

    _result(admin.delete_topics([topic]))
    create_topic(shared_broker.bootstrap, topic)

    assert str(_describe(admin, topic).topic_id) != old_id
    places = Confluent().produce(shared_broker.bootstrap, topic, [Message(b"new")])
    assert places == [(0, 0)]
    (record,) = Confluent().consume(shared_broker.bootstrap, topic, 1)
    assert record.value == b"new"


def test_T17_I34_a_consumer_of_the_old_topic_continues_with_the_new_one(
    admin, shared_broker, topic
):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(b"old")] * 5)
    consumer = Confluent().consumer(
        shared_broker.bootstrap,
        auto_offset_reset="earliest",
        topic_metadata_refresh_interval_ms=100,
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        Confluent().read(consumer, 5)
        _result(admin.delete_topics([topic]))
        create_topic(shared_broker.bootstrap, topic)
        Confluent().produce(shared_broker.bootstrap, topic, [Message(b"new")])
        (record,) = Confluent().read(consumer, 1)
    finally:
        consumer.close()
    assert (record.offset, record.value) == (0, b"new")


def test_T18_T20_the_cluster_is_one_broker_that_is_its_own_controller(
    admin, python_admin, shared_broker
):
    described = admin.describe_cluster().result(DEADLINE_S)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [shared_broker.bootstrap]
    assert described.controller.id == 0

    told = python_admin.describe_cluster()
    assert (told["cluster_id"], told["controller_id"]) == (described.cluster_id, 0)


def test_F01_kafka_python_runs_a_topic_through_its_whole_life(python_admin, shared_broker, topic):
    new = kafka.admin.NewTopic(topic, 2, 1, topic_configs={"retention.ms": "60000"})
    python_admin.create_topics([new])
    python_admin.create_partitions({topic: kafka.admin.NewPartitions(4)})
    (described,) = python_admin.describe_topics([topic])
    assert [p["leader_id"] for p in described["partitions"]] == [0, 0, 0, 0]

    keys = kafka.admin.ConfigResource(
        kafka.admin.ConfigResourceType.TOPIC, topic, configs={"retention.ms": "70000"}
    )
    python_admin.alter_configs([keys])
    assert python_admin.describe_configs([keys])["topic"][topic]["retention.ms"]["value"] == "70000"

    KafkaPython().produce(shared_broker.bootstrap, topic, [Message(b"v", partition=1)] * 10)
    partition = kafka.TopicPartition(topic, 1)
    assert python_admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    earliest = python_admin.list_partition_offsets({partition: kafka.admin.OffsetSpec.EARLIEST})
    assert earliest[partition].offset == 4

    python_admin.delete_topics([topic])
    assert topic not in python_admin.list_topics()


def test_F01_aiokafka_runs_a_topic_through_its_whole_life(run, shared_broker, topic):
    run(_aiokafka_life(shared_broker.bootstrap, topic))


async def _aiokafka_life(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([AioNewTopic(topic, 2, 1)])
        await admin.create_partitions({topic: AioNewPartitions(3)})
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        keys = AioConfigResource(
            AioConfigResourceType.TOPIC, topic, configs={"retention.ms": "70000"}
        )
        await admin.alter_configs([keys])
        (response,) = await admin.describe_configs([keys])
        assert ("retention.ms", "70000") in [entry[:2] for entry in response.resources[0][4]]
        partition = aiokafka.TopicPartition(topic, 0)
        assert await admin.delete_records({partition: RecordsToDelete(0)}) == {partition: 0}
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
    finally:
        await admin.close()
