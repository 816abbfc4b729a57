"""Moves the metadata of a cluster from one store to another, while no broker runs.

At every moment at most one of the two stores can be used, and a move that was interrupted is gone
on with by running it again. `/migration` holds the cluster's id in whichever store is not usable:

    step                                                    source     target
    1  mark the target                                      /cluster   /migration
    2  copy all values, pages included                      /cluster   /migration
    3  replace /cluster in the source by the mark, if       /migration /migration
       nothing was written there since step 2 began
    4  replace the mark in the target by /cluster           /migration /cluster

Until step 3 the source counts, and is copied again; after it nothing in it can change any more. A
broker that finds a mark instead of the cluster refuses to start. Versions of nodes are not copied:
epochs and counters are values.

The caller sees to it that no broker of this host runs; one of another host is found by its
registration. `/controller` is held meanwhile, so that a broker that starts is not let in. One that
registers, or reserves producer ids, between the beginning of step 2 and step 3 makes step 3 fail,
also if it has ended by then: its epoch and its ids would be missing in the target. None registers
after step 3: a registration checks `/cluster`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tidemill.core.config.keys import INT32_MAX
from tidemill.core.errors import UserError
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import HEAD, PAGES
from tidemill.metadata.store.coord import (
    Check,
    Coord,
    CoordConflict,
    Create,
    Delete,
    Node,
    Op,
    Put,
    op_bytes,
)

__all__ = ["Migration"]

_NOT_COPIED = frozenset({nodes.CLUSTER, nodes.CONTROLLER, nodes.MIGRATION})
_WRITTEN = (nodes.BROKER_EPOCH, nodes.PRODUCER_IDS, HEAD)
"""What brokers write: one of these changes with each registration, reservation of producer ids, and
change of the metadata."""
_OPS_MAX = 32
_BYTES_MAX = 256 * 1024


@final
class Migration:
    """One move. Any call may fail with StoreUnavailable; the whole is then simply run again."""

    def __init__(self, source: Coord, target: Coord) -> None:
        self._source = source
        self._target = target

    async def run(self) -> str:
        """Move everything; the cluster's id. UserError: this is not a move that can be made."""
        cluster_id = await self.check()
        if await self._try_id(self._target, nodes.CLUSTER) is None:
            await self._hold_controller()
            await self._check_no_broker()
            await self._mark_target(cluster_id)
            unchanged = await self._checks()
            await self._copy()
            await self._mark_source(cluster_id, unchanged)
            await self._open_target(cluster_id)
        return cluster_id

    async def members(self) -> set[int]:
        """The ids of the brokers that the cluster knows."""
        node = await self._source.get(nodes.MEMBERS, newest=True)
        return set() if node is None else set(nodes.decode_members(node.value)[1])

    # --- what is where ---------------------------------------------------------------------------

    async def check(self) -> str:
        """The cluster's id; refuse what is not a move, or would overwrite something."""
        own = await self._try_id(self._source, nodes.CLUSTER)
        marked = await self._try_id(self._source, nodes.MIGRATION)
        there = await self._try_id(self._target, nodes.CLUSTER)
        begun = await self._try_id(self._target, nodes.MIGRATION)
        cluster_id = own or marked
        if cluster_id is None:
            raise UserError("the store to move from has no cluster in it")
        for found in (there, begun):
            if found not in {None, cluster_id}:
                raise UserError(
                    f"the store to move to has another cluster in it, {found}: name an empty one"
                )
        if own is not None and there is not None:
            raise UserError(f"both stores have cluster {cluster_id}: one is an old copy; remove it")
        if there is None and begun is None and await _values(self._target):
            raise UserError("the store to move to is not empty: name another one")
        return cluster_id

    async def _try_id(self, coord: Coord, path: str) -> str | None:
        node = await coord.get(path, newest=True)
        try:
            return None if node is None else nodes.decode_cluster_id(path, node)
        except nodes.BadNode as bad:
            raise UserError(f"the coordination store cannot be used: {bad}") from bad

    async def _check_no_broker(self) -> None:
        found = await self._source.children(nodes.BROKERS)
        if found:
            ids = ", ".join(path.rpartition("/")[2] for path, _ in found)
            raise UserError(f"brokers are running: {ids}; stop them all, then run this again")

    async def _hold_controller(self) -> None:
        """In our session: it is free again when we end, however that happens."""
        holder = nodes.StoredController(INT32_MAX, 0, 0)
        try:
            await self._source.multi(
                [Create(nodes.CONTROLLER, nodes.encode_controller(holder), ephemeral=True)]
            )
        except CoordConflict:
            raise UserError(
                "a broker is the controller: stop all brokers, then try again"
            ) from None

    # --- the steps -------------------------------------------------------------------------------

    async def _mark_target(self, cluster_id: str) -> None:
        if await self._target.get(nodes.MIGRATION, newest=True) is None:
            mark = nodes.encode_cluster_id(cluster_id)
            # Together with a node that every cluster begins with: nobody can begin one here now.
            await self._changed(
                self._target,
                [
                    Create(nodes.MIGRATION, mark),
                    Create(nodes.CONTROLLER_EPOCH, nodes.encode_counter(0)),
                ],
            )

    async def _checks(self) -> list[Check]:
        """They fail once a broker has written to the source."""
        found = [(path, await self._source.get(path, newest=True)) for path in _WRITTEN]
        return [Check(path, node.version) for path, node in found if node is not None]

    async def _copy(self) -> None:
        wanted, found = await _values(self._source), await _values(self._target)
        ops: list[Op] = []
        for path in sorted(wanted.keys() | found.keys()):
            value, now = wanted.get(path), found.get(path)
            if value is None and now is not None:
                ops.append(Delete(path, now.version))
            elif value is not None and now is None:
                ops.append(Create(path, value.value))
            elif value is not None and now is not None and value.value != now.value:
                ops.append(Put(path, value.value, now.version))
        for part in _parts(ops):
            await self._changed(self._target, part)

    async def _mark_source(self, cluster_id: str, unchanged: Sequence[Check]) -> None:
        node = await self._source.get(nodes.CLUSTER, newest=True)
        await self._check_no_broker()
        if node is not None:
            mark = nodes.encode_cluster_id(cluster_id)
            old = await self._source.get(nodes.MIGRATION, newest=True)
            ops: list[Op] = [Delete(nodes.CLUSTER, node.version), *unchanged]
            if old is None:
                ops.append(Create(nodes.MIGRATION, mark))
            await self._changed(self._source, ops)

    async def _open_target(self, cluster_id: str) -> None:
        mark = await self._target.get(nodes.MIGRATION, newest=True)
        ops: list[Op] = [Create(nodes.CLUSTER, nodes.encode_cluster_id(cluster_id))]
        if mark is not None:
            ops.append(Delete(nodes.MIGRATION, mark.version))
        await self._changed(self._target, ops)

    async def _changed(self, coord: Coord, ops: Sequence[Op]) -> None:
        try:
            await coord.multi(ops)
        except CoordConflict as conflict:
            raise UserError(f"{conflict}: something else writes to the store; stop it") from None


async def _values(coord: Coord) -> dict[str, Node]:
    """All nodes that outlive a session, but for those that say whether the store can be used."""
    found = dict(await coord.children(""))
    found |= dict(await coord.children(PAGES))
    return {path: node for path, node in found.items() if path not in _NOT_COPIED}


def _parts(ops: Sequence[Op]) -> list[list[Op]]:
    """In pieces that every store takes at once."""
    parts: list[list[Op]] = []
    size_bytes = 0
    for op in ops:
        if not parts or len(parts[-1]) == _OPS_MAX or size_bytes + op_bytes(op) > _BYTES_MAX:
            parts.append([])
            size_bytes = 0
        parts[-1].append(op)
        size_bytes += op_bytes(op)
    return parts
