"""This broker's registration: the node that says that it lives, where it is, and in which state.

A broker epoch is a counter with 31 random bits behind it: it rises with every registration, and
nobody can guess it. Whoever holds the lock of a data directory and finds a registration with the
directory's id replaces it: that is an earlier life of the same broker, whose session has not ended
yet.

All methods are called with the cluster's lock held.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import final
from uuid import UUID

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.core.ids import ZERO_UUID
from tidemill.core.rng import Rng
from tidemill.metadata.controller.page_writer import CAS_ATTEMPTS_MAX
from tidemill.metadata.features.feature_levels import Software
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.metadata.store.coord import Check, Coord, CoordConflict, Create, Delete, Node, Op, Put

__all__ = ["Presence", "Registration", "read_counter"]

log = logging.getLogger(__name__)

_RANDOM_BITS = 31


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a broker says of itself."""

    advertised: Endpoint
    internal: Endpoint | None = None
    rack: str = ""
    directory_id: UUID = ZERO_UUID
    unclean: bool = False
    leaving: bool = False
    failed: bool = False
    unheard_controller: int = -1


async def read_counter(coord: Coord, path: str) -> tuple[int, int]:
    """A counter's value, and the version to change it on; it is never guessed."""
    node = await coord.get(path)
    if node is None:
        raise StoreUnavailable(f"{path} is missing")
    try:
        return nodes.decode_counter(path, node), node.version
    except nodes.BadNode as bad:
        raise StoreUnavailable(str(bad)) from bad


@final
class Registration:
    """The node of one broker."""

    def __init__(self, coord: Coord, broker_id: int, rng: Rng, software: Software) -> None:
        self._coord = coord
        self._broker_id = broker_id
        self._rng = rng
        self._software = software
        self._path = nodes.broker_path(broker_id)
        self.presence = Presence(advertised=Endpoint("", 0))
        """What the node should say."""
        self.made: BrokerImage | None = None
        """What it says, as far as we know; None if there is none in this session."""
        self.epoch = -1
        """Of the last registration."""

    @property
    def is_current(self) -> bool:
        made = self.made
        # What `unclean` says is of the moment of registration; it is not taken back.
        return made is not None and made == replace(self._image(self.epoch), unclean=made.unclean)

    def lost(self) -> None:
        """The session is over, and the node with it."""
        self.made = None

    async def make(self) -> BrokerImage:
        """Register in a new epoch. UserError: another broker has our id."""
        for _ in range(CAS_ATTEMPTS_MAX):
            ops = [await self._is_cluster_here(), *await self._ended_life()]
            last, version = await read_counter(self._coord, nodes.BROKER_EPOCH)
            count = last + 1
            epoch = (count << _RANDOM_BITS) + self._rng.below(1 << _RANDOM_BITS)
            broker = self._image(epoch)
            ops.append(Put(nodes.BROKER_EPOCH, nodes.encode_counter(count), version))
            ops.append(Create(self._path, nodes.encode_broker(broker), ephemeral=True))
            try:
                await self._coord.multi(ops)
            except CoordConflict:
                continue
            self.made, self.epoch = broker, epoch
            if any(isinstance(one, Delete) and one.path == self._path for one in ops):
                log.warning("back before its last session ended: replaced its own registration")
            return broker
        raise StoreUnavailable("the cluster changes too fast to join it")

    async def update(self) -> BrokerImage:
        """Bring the node in line with `presence`. CoordConflict: it is not ours any more."""
        for _ in range(CAS_ATTEMPTS_MAX):
            last = await self._last_registration()
            node = await self._coord.get(self._path)
            if node is None or self.made is None or self._decoded(node).epoch != self.epoch:
                raise CoordConflict(self._path, "is not the registration of this session")
            broker = self._image(self.epoch)
            put = Put(self._path, nodes.encode_broker(broker), node.version)
            try:
                await self._coord.multi([*last, put])
            except CoordConflict:
                continue
            self.made = broker
            return broker
        raise StoreUnavailable("the cluster changes too fast to change a registration")

    async def withdrawal(self) -> list[Op]:
        """What removes the last registration, and an office of this broker; nothing: it is gone."""
        last = await self._last_registration()
        node = await self._coord.get(self._path)
        if node is None or self._decoded(node).epoch != self.epoch:
            return []
        return [*last, Delete(self._path, node.version), *await self._own_office()]

    async def _last_registration(self) -> list[Op]:
        """What fails after the next registration of any broker.

        A change of this one that comes late must not meet the next one, whose node has the same
        version again.
        """
        node = await self._coord.get(nodes.BROKER_EPOCH)
        return [] if node is None else [Check(nodes.BROKER_EPOCH, node.version)]

    async def _is_cluster_here(self) -> Op:
        """What keeps this broker out of a store that its cluster has left (`migration.py`)."""
        node = await self._coord.get(nodes.CLUSTER)
        if node is None:
            raise StoreUnavailable(f"{nodes.CLUSTER} is missing")
        return Check(nodes.CLUSTER, node.version)

    async def _ended_life(self) -> list[Op]:
        """What removes the registration of an earlier life, if there is one, and its office."""
        node = await self._coord.get(self._path)
        if node is None:
            return await self._own_office()
        own = self.presence.directory_id
        if own == ZERO_UUID or self._decoded(node).directory_id != own:
            raise UserError(
                f"node.id={self._broker_id}: another broker has this id; stop that one, or choose "
                "an id that is free"
            )
        return [Delete(self._path, node.version), *await self._own_office()]

    async def _own_office(self) -> list[Op]:
        """What ends the office of this broker: a later registration could not hold it."""
        controller = await self._coord.get(nodes.CONTROLLER)
        if controller is None:
            return []
        try:
            found = nodes.decode_controller(nodes.CONTROLLER, controller)
        except nodes.BadNode:
            return []
        is_own = found.broker_id == self._broker_id
        return [Delete(nodes.CONTROLLER, controller.version)] if is_own else []

    def _decoded(self, node: Node) -> BrokerImage:
        try:
            return nodes.decode_broker(self._path, node)
        except nodes.BadNode as bad:
            raise StoreUnavailable(str(bad)) from bad

    def _image(self, epoch: int) -> BrokerImage:
        said = self.presence
        host, port = said.advertised
        return BrokerImage(
            broker_id=self._broker_id,
            epoch=epoch,
            host=host,
            port=port,
            rack=said.rack,
            internal=said.internal,
            directory_id=said.directory_id,
            unclean=said.unclean,
            leaving=said.leaving,
            failed=said.failed,
            unheard_controller=said.unheard_controller,
            software=self._software,
        )
