"""Feature levels with real processes and a stock client."""

from __future__ import annotations

import asyncio
import json

import confluent_kafka
import pytest

from tests.e2e.commands import printed_by, run_tidemill
from tests.sim.replicas import eventually
from tests.support.topics import create_replicated
from tidemill.metadata.features.feature_levels import OLDER_SOFTWARE
from tidemill.testing.in_process_cluster import InProcessCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

READY_S = 30
RECORDS = 100


def level(bootstrap: str, name: str) -> int:
    found = json.loads(printed_by(bootstrap, "cluster", "features", "describe", "--json"))
    (one,) = [one for one in found["features"] if one["feature"] == name]
    return int(one["level"])


def test_levels_are_shown_changed_and_kept_over_a_restart(new_broker):
    broker = new_broker()
    change = "cluster", "features", "downgrade", "transaction.version=1"
    assert "could go from 2 to 1" in printed_by(broker.bootstrap, *change, "--dry-run")
    assert level(broker.bootstrap, "transaction.version") == 2
    assert "went from 2 to 1" in printed_by(broker.bootstrap, *change)
    assert "transaction.version 1" in printed_by(broker.bootstrap, "cluster", "describe")
    broker.kill()
    broker.start()
    assert level(broker.bootstrap, "transaction.version") == 1
    too_high = "cluster", "features", "upgrade", "tidemill.version=3"
    refused = run_tidemill(broker.bootstrap, *too_high)
    assert refused.returncode == 1
    assert "the controller runs" in refused.stderr
    raised = printed_by(broker.bootstrap, "cluster", "features", "upgrade")
    assert raised == "transaction.version went from 1 to 2\n"


@pytest.mark.interop
def test_librdkafka_writes_transactions_and_reads_in_a_cluster_of_two_versions(run, tmp_path):
    async def scenario() -> None:
        async with InProcessCluster(str(tmp_path), brokers=0) as brokers:
            await brokers.start_broker(0, software=OLDER_SOFTWARE)
            for broker_id in (1, 2):
                await brokers.start_broker(broker_id)
            await eventually(lambda: all(brokers.broker(one).cluster.may_act for one in range(3)))
            bootstrap = ",".join(f"{host}:{port}" for host, port in brokers.bootstrap)
            values = await asyncio.to_thread(write_and_read, bootstrap)
            assert values == [b"%d" % n for n in range(RECORDS)]
            assert not brokers.broker(1).cluster.image.features.is_stored

    run(scenario())


def write_and_read(bootstrap: str) -> list[bytes | None]:
    create_replicated(bootstrap, "pays")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "pay"})
    producer.init_transactions(READY_S)
    producer.begin_transaction()
    for n in range(RECORDS):
        producer.produce("pays", b"%d" % n, partition=0)
    producer.commit_transaction(READY_S)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("pays", 0, 0)])
    found = consumer.consume(RECORDS, READY_S)
    consumer.close()
    return [one.value() for one in found]
