"""Three brokers on one store, with a topic of three replicas that broker 1 leads."""

from __future__ import annotations

from collections.abc import Mapping

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.rules.topic_planner import TopicSpec

TOPIC = TopicSpec(name="t", assignments={0: [1, 2, 0]}, overrides={"min.insync.replicas": "2"})


async def three_brokers() -> tuple[SmallCluster, list[Cluster]]:
    small = SmallCluster()
    clusters = await small.start(0, 1, 2)
    await clusters[0].create_topics([TOPIC])
    await small.catch_up()
    return small, clusters


def partition(cluster: Cluster) -> PartitionImage:
    return cluster.image.topics["t"].partitions[0]


async def propose(
    clusters: list[Cluster],
    isr: list[int],
    now: PartitionImage,
    *,
    sender: int = 1,
    epochs: Mapping[int, int] | None = None,
    index: int = 0,
) -> IsrAnswer:
    """A leader's proposal at the controller, as it comes by the wire."""
    (controller,) = [one for one in clusters if one.is_controller]
    brokers = controller.image.brokers
    known = {broker_id: brokers[broker_id].epoch for broker_id in isr} | dict(epochs or {})
    proposal = IsrProposal(
        topic_id=controller.image.topics["t"].topic_id,
        partition=index,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        isr=tuple((broker_id, known[broker_id]) for broker_id in isr),
    )
    (answer,) = await controller.alter_isr(sender, brokers[sender].epoch, [proposal])
    return answer
