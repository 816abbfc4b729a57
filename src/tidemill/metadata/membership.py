"""How this broker belongs to the cluster: it finds it, registers in it, and may lose its place.

    LOST session -> connect: the same cluster as before, or the first one -> load everything
        -> not older than what an earlier life has seen -> register -> fenced until it is let in

All methods but `resign` and `follow` are called with the cluster's lock held.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from tidemill.core.errors import UserError
from tidemill.core.rng import Rng
from tidemill.metadata.features.feature_levels import Software
from tidemill.metadata.founding import check_cluster, found_cluster
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.image_keeper import ImageKeeper
from tidemill.metadata.image.metadata_image import BrokerImage, Delta
from tidemill.metadata.lease import Lease
from tidemill.metadata.registration import Presence, Registration
from tidemill.metadata.store.coord import Coord, SessionState

__all__ = ["Membership"]


@final
class Membership:
    """One broker's session, registration and right to act."""

    def __init__(
        self,
        coord: Coord,
        keeper: ImageKeeper,
        lease: Lease,
        *,
        broker_id: int,
        rng: Rng,
        software: Software,
        store: str,
    ) -> None:
        """`store` is what people call the store: its file, or where the ZooKeeper is."""
        self._coord = coord
        self._keeper = keeper
        self._lease = lease
        self._broker_id = broker_id
        self._rng = rng
        self._software = software
        self._store = store
        self._registration = Registration(coord, broker_id, rng, software)
        self.own_id = ""
        """The cluster that an earlier life of this broker belonged to."""
        self.seen = (0, 0)
        """A version of the metadata that an earlier life of this broker has seen."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of the last registration."""
        return self._registration.epoch

    @property
    def presence(self) -> Presence:
        """What the registration should say."""
        return self._registration.presence

    @presence.setter
    def presence(self, presence: Presence) -> None:
        self._registration.presence = presence

    @property
    def is_current(self) -> bool:
        """Whether there is a registration, and it says what it should."""
        return self._registration.is_current

    async def connect(self) -> None:
        """Have a session, and know which cluster this is. UserError: it is not this broker's."""
        if self._coord.state is SessionState.LOST:
            await self._coord.start()
        cluster_id = self._keeper.image.cluster_id
        if cluster_id:
            await check_cluster(self._coord, cluster_id, store=self._store)
            return
        draft = ImageDraft(self._keeper.image)
        found = await found_cluster(
            self._coord, self._rng, self._software, own_id=self.own_id, store=self._store
        )
        draft.set_cluster_id(found)
        await self._keeper.publish(draft)

    async def join(self) -> None:
        """Register in a new broker epoch, with everything read that there is."""
        await self.connect()
        await self._keeper.load(newest=True)
        self._check_version()
        await self._publish(await self._registration.make())
        # The session may have ended since the store has answered: then there is another to make.
        if self._coord.state is SessionState.LOST:
            self.resign()
        self._lease.registered = self._registration.made is not None

    @property
    def is_removed(self) -> bool:
        """Whether somebody else has removed the registration, or put another one in its place."""
        found = self._keeper.image.brokers.get(self._broker_id)
        return self._lease.registered and (found is None or found.epoch != self.broker_epoch)

    async def update(self) -> None:
        """Let the registration say what it should. CoordConflict: it was removed."""
        await self._publish(await self._registration.update())

    async def withdraw(self) -> None:
        """Leave the cluster, to come back by `join`: this broker acts no more when others hear it.

        StoreUnavailable: nothing has happened, or this broker acts no more and may be registered.
        """
        ops = await self._registration.withdrawal()
        self.resign()
        if ops:
            await self._coord.multi(ops)

    def resign(self) -> None:
        """The session is over, or its registration: this broker may not act any more."""
        self._lease.registered = False
        self._lease.fenced = True
        self._registration.lost()

    def follow(self, delta: Delta) -> None:
        """Whether the controller has let in the life of this broker that is registered."""
        member = delta.after.members.get(self._broker_id)
        self._lease.fenced = member is None or member.epoch != self.broker_epoch
        if not self._lease.fenced:  # what was lost before is counted; a later life lost nothing
            self.presence = replace(self.presence, unclean=False)

    def _check_version(self) -> None:
        """UserError: the store is older than what this broker has seen in it."""
        found, seen = self._keeper.found_version, max(self.seen, self._keeper.head.version)
        if found < seen:
            raise UserError(
                f"the coordination store is at version {found[0]}.{found[1]}, this broker has seen "
                f"{seen[0]}.{seen[1]}: an old copy of it was put back; bring the newest one back"
            )

    async def _publish(self, broker: BrokerImage) -> None:
        draft = ImageDraft(self._keeper.image)
        draft.put_broker(broker)
        await self._keeper.publish(draft)
