"""The nodes that every cluster has: made by the first broker that comes, once."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.core.rng import Rng
from tidemill.metadata.features.feature_levels import (
    FinalizedLevels,
    Software,
    first_levels,
)
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.head import Head
from tidemill.metadata.store.coord import Coord, CoordConflict, Create, Node, Op

__all__ = ["check_cluster", "found_cluster", "try_multi"]


async def check_cluster(coord: Coord, cluster_id: str, *, store: str) -> None:
    """UserError: the store has lost this broker's cluster; nobody may found another in its place.

    The topics of another cluster would make strays of all logs here.
    """
    node = await coord.get(nodes.CLUSTER)
    found = None if node is None else _cluster_id(node)
    if found != cluster_id:
        raise _lost(cluster_id, "no cluster" if found is None else f"cluster {found}", store)


def _lost(cluster_id: str, found: str, store: str) -> UserError:
    return UserError(
        f"the coordination store has {found}, this broker belongs to cluster {cluster_id}: if "
        f"{store} is the right store, bring its contents back, then start the broker again"
    )


async def found_cluster(
    coord: Coord, rng: Rng, software: Software, *, own_id: str, store: str
) -> str:
    """The cluster's id; the cluster is made if there is none. UserError: not a usable store.

    A new cluster has the highest levels of this software. None is made by a broker whose logs are
    those of a cluster already, `own_id`. `store` is what people call the store.
    """
    cluster_id = base64.urlsafe_b64encode(rng.uuid().bytes).rstrip(b"=").decode()
    made: list[Op] = [
        Create(nodes.CLUSTER, nodes.encode_cluster_id(cluster_id)),
        Create(nodes.CONTROLLER_EPOCH, nodes.encode_counter(0)),
        Create(nodes.BROKER_EPOCH, nodes.encode_counter(0)),
        Create(nodes.PRODUCER_IDS, nodes.encode_counter(0)),
        *_metadata(first_levels(software)),
    ]
    node = await coord.get(nodes.CLUSTER)
    if node is None:
        if await coord.get(nodes.MIGRATION) is not None:
            raise UserError(
                "the metadata was moved to another store, or the move did not end: "
                "`tidemill cluster migrate`, run again, ends it"
            )
        if own_id:
            raise _lost(own_id, "no cluster", store)
        await try_multi(coord, made)
        node = await coord.get(nodes.CLUSTER)
    if node is None:
        raise StoreUnavailable(f"{nodes.CLUSTER} is missing")
    return _cluster_id(node)


def _cluster_id(node: Node) -> str:
    try:
        return nodes.decode_cluster_id(nodes.CLUSTER, node)
    except nodes.BadNode as bad:
        raise UserError(f"the coordination store cannot be used: {bad}") from bad


def _metadata(levels: FinalizedLevels) -> list[Op]:
    if not levels.is_stored:
        return [Create(nodes.HEAD, Head().encode())]
    head = Head().after((nodes.SETTINGS,), epoch=0)
    settings = stored_fields.dump(nodes.settings_value(head.seq, {}, levels))
    return [Create(nodes.HEAD, head.encode()), Create(nodes.SETTINGS, settings)]


async def try_multi(coord: Coord, ops: Sequence[Op]) -> bool:
    """Run the multi; False if another broker's change came first."""
    try:
        await coord.multi(ops)
    except CoordConflict:
        return False
    return True
