"""Stock clients that want transactions fail at once, and their users can read why."""

from __future__ import annotations

import confluent_kafka
import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

LONG_S = 60.0


def test_librdkafka_shows_the_reason(shared_broker):
    settings = {"bootstrap.servers": shared_broker.bootstrap, "transactional.id": "billing"}
    producer = confluent_kafka.Producer(settings)
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        producer.init_transactions(LONG_S)
    assert "does not serve transactions" in refusal.value.args[0].str()


def test_kafka_python_does_not_blame_the_users_rights(shared_broker):
    producer = KafkaProducer(
        bootstrap_servers=shared_broker.bootstrap, transactional_id="billing", max_block_ms=60_000
    )
    with pytest.raises(KafkaError, match="UnsupportedVersion"):
        producer.init_transactions()
    producer.close()
