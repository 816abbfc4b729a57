"""A scenario of the simulation on the machine's own clock, loopback, disk and event loop."""

from __future__ import annotations

import pytest

from tests.sim.clients import drain
from tests.sim.history import History
from tests.sim.replicas import eventually, leader_of, log_bytes, replica, replicas_agree
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.ids import TopicPartition
from tidemill.testing.in_process_cluster import InProcessCluster

IDS = (0, 1, 2)
ORDERS = TopicPartition("orders", 0)


async def _send(producer: Producer, history: History, count: int) -> None:
    """Send records one after the other, each acknowledged by all in-sync replicas."""
    for _ in range(count):
        value = history.value(1, len(history.invoked))
        delivery = await producer.send(ORDERS.topic, value, partition=0)
        history.sent(ORDERS, await delivery.offset(), value)


async def _fail_over_and_return(brokers: InProcessCluster) -> None:
    history = History()
    async with (
        ClusterClient(brokers.client_net(), brokers.bootstrap) as cluster,
        Producer(cluster, brokers.clock, idempotent=True) as producer,
    ):
        await Admin(cluster).create_topic(ORDERS.topic, partitions=1, replication=3)
        await eventually(lambda: replicas_agree(brokers, IDS, ORDERS))
        await _send(producer, history, 50)
        for broker_id in IDS:
            assert replica(brokers, broker_id, ORDERS).log.flushed_offset == 50
        old = leader_of(brokers, IDS, ORDERS)
        epoch = replica(brokers, old, ORDERS).leader_epoch
        await brokers.kill(old)
        await _send(producer, history, 50)
        others = [broker_id for broker_id in IDS if broker_id != old]
        new = leader_of(brokers, others, ORDERS)
        assert replica(brokers, new, ORDERS).leader_epoch > epoch
        await brokers.start_broker(old)
        await eventually(lambda: replicas_agree(brokers, IDS, ORDERS))
        history.check_final(ORDERS, await drain(brokers, ORDERS))
        assert len({log_bytes(replica(brokers, broker_id, ORDERS)) for broker_id in IDS}) == 1


@pytest.mark.slow
def test_I1_I10_I12_three_brokers_on_real_sockets_and_files_fail_over_and_agree(
    run,
    tmp_path,
):
    async def main() -> None:
        async with InProcessCluster(str(tmp_path)) as brokers:
            await _fail_over_and_return(brokers)

    run(main())
