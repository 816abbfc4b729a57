"""One client that is a member of a group: it works, falls silent, dies, leaves and comes back.

A process that was taken for dead may go on as a *ghost*, with its old id and epoch. What a member
sent in an older epoch may come late, as from a *former self*. Whatever these are told, the judge
decides whether it may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy

from tests.sim.group_members import (
    ClassicMember,
    ConsumerMember,
    FormerSelf,
    GroupMember,
    commit_offset,
)
from tests.sim.group_wire import GroupWire, Part, Refused, Unanswered
from tests.support.group_history import GroupHistory
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld

__all__ = ["GroupWorker"]

PAUSE_S_MAX = 4.0
SILENCE_S_MAX = 16.0
RETRY_S_MAX = 0.5
ATTEMPTS_PER_STEP = 3
CALM_PAUSE_S = 0.5
GHOSTS_MAX = 2
FORMER_SELVES_MAX = 6
HEARD_FOR = 2
"""Heartbeats of a member's last epoch but one may be accepted: its last answer may be lost."""


class GroupWorker:
    """One member after the other, and the ghosts of the former ones."""

    def __init__(
        self,
        world: SimWorld,
        number: int,
        history: GroupHistory,
        partitions: Sequence[int],
        *,
        is_static: bool,
    ) -> None:
        self._world = world
        self._number = number
        self._history = history
        self._partitions = partitions
        self._instance_id = f"instance-{number}" if is_static else None
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._ghosts: list[GroupMember] = []
        self._former: list[FormerSelf] = []
        """One for each epoch, the newest last."""
        self._made = 0
        self._plans = 0
        self.member: GroupMember | None = None
        self.calm = asyncio.Event()
        """It has taken all its steps, and only behaves from now on."""

    async def run(
        self,
        wire: Callable[[ClusterClient], GroupWire],
        steps: int,
        is_over: Callable[[], bool],
    ) -> None:
        """Take so many steps, each with some fault of its own; then behave until it is over."""
        net = self._world.client_net(f"member-{self._number}")
        async with ClusterClient(net, self._world.bootstrap, connect_timeout_s=4.0) as cluster:
            made = wire(cluster)
            self.member = self._new_member(made)
            for _ in range(ATTEMPTS_PER_STEP * steps):
                await self._pause(PAUSE_S_MAX)
                steps -= await self._try(self._step(made))
                if not steps:
                    break
            self.calm.set()
            while not is_over():
                await asyncio.sleep(CALM_PAUSE_S)
                await self._try(self._stay())

    # --- steps -----------------------------------------------------------------------------------

    async def _step(self, wire: GroupWire) -> None:
        await self._stay()
        choice = self._rng.below(100)
        if choice < 40:
            await self._commit(wire, _as_it_is(self._member))
        elif choice < 60:
            await self._read(wire, self._partitions[self._rng.below(len(self._partitions))])
        elif choice < 66:
            await self._pause(SILENCE_S_MAX)
        elif choice < 72:
            self._die(wire)
        elif choice < 78:
            await self._leave()
        elif choice < 88:
            await self._haunt(wire)
        else:
            await self._repeat(wire)

    @property
    def _member(self) -> GroupMember:
        assert self.member is not None
        return self.member

    async def _stay(self) -> None:
        """Join if it must, else a heartbeat; some heartbeats come before it has given up."""
        member = self._member
        if member.must_join:
            await member.join()
        else:
            if self._rng.below(2):
                member.revoke()
            await member.beat()
        now = _as_it_is(member)
        if not self._former or self._former[-1][:2] != now[:2]:
            self._former = [*self._former, now][-FORMER_SELVES_MAX:]

    async def _commit(self, wire: GroupWire, member: FormerSelf) -> None:
        """Once or twice; who gets no answer looks what became of it."""
        owned = sorted(member.owned)
        for _ in range(1 + self._rng.below(2) if owned else 0):
            partition = owned[self._rng.below(len(owned))]
            try:
                await commit_offset(wire, self._history, member, partition)
            except Unanswered:
                await self._read(wire, partition)
                raise

    async def _read(self, wire: GroupWire, partition: int) -> None:
        asked = self._history.ask()
        value = await wire.committed_offset(partition)
        self._history.read(partition, value, asked)

    def _die(self, wire: GroupWire) -> None:
        """It is killed, or only taken for dead; another process begins in its place."""
        self._leave_ghost()
        self.member = self._new_member(wire)

    async def _leave(self) -> None:
        self._leave_ghost()
        await self._member.leave()

    def _leave_ghost(self) -> None:
        member = self._member
        if member.owned:
            ghost = copy(member)
            ghost.owned = set(member.owned)
            self._ghosts = [*self._ghosts, ghost][-GHOSTS_MAX:]

    async def _haunt(self, wire: GroupWire) -> None:
        """A ghost commits or sends a heartbeat; one that is refused may try again later."""
        if not self._ghosts:
            return
        at = self._rng.below(len(self._ghosts))
        ghost = copy(self._ghosts[at])
        ghost.owned = set(ghost.owned)
        if self._rng.below(3):
            await self._commit(wire, _as_it_is(ghost))
        else:
            await ghost.beat()
        self._ghosts[at] = ghost

    async def _repeat(self, wire: GroupWire) -> None:
        """What was sent in an older epoch comes late."""
        older = self._former[:-1]
        if not older:
            return
        former = older[self._rng.below(len(older))]
        mine = [one for one in self._former if one.name == former.name]
        newer = [one for one in mine if one.epoch > former.epoch]
        if self._rng.below(3) or len(newer) < HEARD_FOR:
            await self._commit(wire, former)
        else:
            await former.beat(wire, self._history)

    async def _try(self, work: Awaitable[None]) -> bool:
        """Whether it was answered."""
        is_answered = True
        try:
            await work
        except Refused:
            await self._pause(RETRY_S_MAX)
        except Unanswered:
            is_answered = False
            await self._pause(RETRY_S_MAX)
        return is_answered

    async def _pause(self, longest_s: float) -> None:
        await asyncio.sleep(longest_s / 2 ** self._rng.below(9))

    # --- members ---------------------------------------------------------------------------------

    def _new_member(self, wire: GroupWire) -> GroupMember:
        instance_id = self._instance_id if self.member is None else self.member.name.instance_id
        if self._history.has_generations:
            return ClassicMember(
                wire, self._history, instance_id, self._plan, self._make_id, self._dies_in_round
            )
        return ConsumerMember(wire, self._history, instance_id, self._make_id)

    def _dies_in_round(self) -> bool:
        return not self.calm.is_set() and self._rng.below(12) == 0

    def _make_id(self) -> str:
        self._made += 1
        return f"member-{self._number}-{self._made}"

    def _plan(self, member_ids: Sequence[str]) -> dict[str, Part]:
        """Share all partitions out, beginning anywhere; every plan has a name."""
        self._plans += 1
        name = f"plan-{self._number}-{self._plans}".encode()
        first, count = self._rng.below(len(member_ids)), len(member_ids)
        owned: dict[str, set[int]] = {one: set() for one in member_ids}
        for at, partition in enumerate(self._partitions):
            owned[member_ids[(first + at) % count]].add(partition)
        return {one: Part(frozenset(numbers), name) for one, numbers in owned.items()}


def _as_it_is(member: GroupMember) -> FormerSelf:
    return FormerSelf(member.name, member.epoch, frozenset(member.owned))
