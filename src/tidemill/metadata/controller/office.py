"""The office of the controller: how this broker takes it, keeps it, and gives it up.

A broker takes the office by one write that makes `/controller` and raises the controller epoch. The
version of that epoch's node is its *term*: every write of the controller checks it (I33), so the
writes of one that was deposed fail, even if it does not know that.

Nobody takes office without the newest settings, which have the levels of features and the names of
drained brokers. Guesses would let in brokers that must stay out, and refill those to be left.

A controller that most brokers do not hear gives its office up (ADR 0027), and rests for a while.

All methods are called with the cluster's lock held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import StoreUnavailable
from tidemill.metadata.image import nodes
from tidemill.metadata.image.image_keeper import ALL, ImageKeeper
from tidemill.metadata.rules.decisions import is_unheard
from tidemill.metadata.store.coord import Check, Coord, CoordConflict, Create, Delete, Node, Op, Put

__all__ = ["Office"]

_SETTINGS_LOOK_S = 5.0
"""Between two looks at settings that cannot be read, by a broker that could take office."""
_REST_S = 10.0
"""How long a broker that gave up its office leaves it to others."""
_UNHEARD_S = 6.0
"""How long most brokers must say that they do not hear it: who was only late is heard by then."""


@final
class Office:
    """Whether this broker is the controller, as far as it knows."""

    def __init__(
        self,
        coord: Coord,
        keeper: ImageKeeper,
        *,
        broker_id: int,
        clock: Clock,
        alarm: Callable[[str], None],
        look_again: Callable[[float], None],
        taken: Callable[[], None],
        left: Callable[[], None],
    ) -> None:
        """`look_again` is told a time at which to campaign, or to look who hears us, once more."""
        self._coord = coord
        self._keeper = keeper
        self._broker_id = broker_id
        self._clock = clock
        self._alarm = alarm
        self._look_again = look_again
        self._taken = taken
        self._left = left
        self.term: int | None = None
        """The version of the controller epoch's node since this broker is the controller, as far as
        it knows; else None."""
        self._waits_for_settings = False
        """Whether it was said that this broker does not take office because of them."""
        self._unheard_since: float | None = None
        """Since when most brokers say that they do not hear this controller."""
        self._rests_until = 0.0
        """Until then it does not become the controller: the others did not hear it."""

    # --- taken -----------------------------------------------------------------------------------

    async def campaign(self, broker_epoch: int) -> None:
        """Become the controller, unless another broker does, or the settings are not known."""
        if self._clock.monotonic() < self._rests_until:
            self._look_again(self._rests_until)
            return
        if not self._keeper.knows_settings:
            self._wait_for_settings()
            return
        self._waits_for_settings = False
        epoch = await self._coord.get(nodes.CONTROLLER_EPOCH)
        if epoch is None:
            self._alarm(f"{nodes.CONTROLLER_EPOCH}: missing; no broker can become the controller")
            return
        try:
            next_epoch = nodes.decode_counter(nodes.CONTROLLER_EPOCH, epoch) + 1
        except nodes.BadNode as bad:
            self._alarm(str(bad))
            return
        own = nodes.StoredController(self._broker_id, next_epoch, broker_epoch)
        ops: list[Op] = [
            Create(nodes.CONTROLLER, nodes.encode_controller(own), ephemeral=True),
            Put(nodes.CONTROLLER_EPOCH, nodes.encode_counter(next_epoch), epoch.version),
        ]
        if nodes.SETTINGS in self._keeper.versions:
            ops.append(Check(nodes.SETTINGS, self._keeper.versions[nodes.SETTINGS]))
        try:
            await self._coord.multi(ops)
        except CoordConflict:
            self._keeper.mark(ALL)
            return
        except StoreUnavailable:
            self._keeper.mark(ALL)  # perhaps it is the controller now: `resume` finds that
            raise
        self._take(epoch.version + 1)

    def _wait_for_settings(self) -> None:
        """Say once that this broker stays out of office, and look again later."""
        if not self._waits_for_settings:
            self._alarm(
                f"this broker does not become the controller: it cannot read {nodes.SETTINGS}, "
                "which has the levels that the cluster has agreed on, and does not guess them; put "
                "the newest good copy back"
            )
        self._waits_for_settings = True
        self._look_again(self._clock.monotonic() + _SETTINGS_LOOK_S)

    async def resume(self, broker_epoch: int) -> None:
        """Take the office that this broker has won without hearing of it."""
        node = await self._coord.get(nodes.CONTROLLER, newest=True)
        epoch = await self._coord.get(nodes.CONTROLLER_EPOCH, newest=True)
        if node is None:
            self._keeper.mark(ALL)
            return
        if epoch is None:
            self._alarm(f"{nodes.CONTROLLER_EPOCH}: missing; no broker can be the controller")
            return
        try:
            found = nodes.decode_controller(nodes.CONTROLLER, node)
            current = nodes.decode_counter(nodes.CONTROLLER_EPOCH, epoch)
        except nodes.BadNode as bad:
            self._alarm(str(bad))
            return
        if found == nodes.StoredController(self._broker_id, current, broker_epoch):
            self._take(epoch.version)

    def _take(self, term: int) -> None:
        self.term = term
        self._unheard_since = None
        self._taken()

    # --- given up --------------------------------------------------------------------------------

    def step_down(self) -> None:
        """Act no more as the controller; the store may still name this broker."""
        self.term = None
        self._left()

    async def maybe_give_up(self) -> None:
        """Let another broker be the controller if most of them get no answer from this one."""
        now = self._clock.monotonic()
        if not is_unheard(self._keeper.image):
            self._unheard_since = None
        elif self._unheard_since is None:
            self._unheard_since = now
            self._look_again(now + _UNHEARD_S)
        elif now < self._unheard_since + _UNHEARD_S:
            self._look_again(self._unheard_since + _UNHEARD_S)
        elif self.term is not None:
            await self.give_up(self.term)

    async def give_up(self, term: int) -> None:
        """Leave the office to others, and rest."""
        self._alarm("most brokers get no answer from this controller: another one takes over")
        self.step_down()
        self._rests_until = self._clock.monotonic() + _REST_S
        self._keeper.mark(ALL)
        node = await self._coord.get(nodes.CONTROLLER, newest=True)
        if node is not None and self._is_own(node):
            own = Check(nodes.CONTROLLER_EPOCH, term)  # a late delete must not meet a successor
            await self._coord.multi([own, Delete(nodes.CONTROLLER, node.version)])

    def _is_own(self, node: Node) -> bool:
        try:
            found = nodes.decode_controller(nodes.CONTROLLER, node)
        except nodes.BadNode as bad:
            self._alarm(str(bad))
            return False
        return found.broker_id == self._broker_id
