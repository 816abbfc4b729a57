"""Connections of this broker to others."""

from __future__ import annotations

from tidemill.broker.seams import Seams
from tidemill.client.network.peer_links import PeerLinks
from tidemill.core.config.endpoint import Endpoint
from tidemill.metadata.cluster import Cluster

__all__ = ["make_peer_links"]


def make_peer_links(seams: Seams, cluster: Cluster, client_id: str) -> PeerLinks:
    """Two kinds of requests never wait for each other: each has connections of its own."""

    def find(broker_id: int) -> Endpoint | None:
        broker = cluster.image.brokers.get(broker_id)
        return None if broker is None else broker.peer_endpoint

    return PeerLinks(seams.net, find, client_id=client_id)
