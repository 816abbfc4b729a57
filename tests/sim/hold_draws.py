"""What records ask for, drawn from a seed: nothing, a delay, a time of day, a schedule."""

from __future__ import annotations

from tests.sim.hold_history import Asked, HoldHistory
from tests.support.transaction_history import SentTransaction
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld
from tidemill.wire import header_names as names
from tidemill.wire.records import Header

__all__ = ["HoldDraws"]

DELAY_MS_MAX = 20_000
FAR_MS = 3_600_000
"""Longer than any run."""
FAR_ONE_IN = 8
SCHEDULE = b"*/5 * * * * *"


class HoldDraws:
    """The requests of one client."""

    def __init__(
        self,
        world: SimWorld,
        seen: HoldHistory,
        rng: SeededRng,
        *,
        delay_ms_max: int = DELAY_MS_MAX,
    ) -> None:
        self._world = world
        self._seen = seen
        self._rng = rng
        self._delay_ms_max = delay_ms_max

    def record(
        self, partition: TopicPartition, transaction: SentTransaction | None = None
    ) -> tuple[list[Header], Asked]:
        """The headers of a record, and what they ask for; a transaction has no schedules."""
        kind = self._rng.below(100)
        headers: list[Header] = []
        known = [ticket for one, ticket, _ in self._seen.tickets if one == partition]
        if known and self._rng.below(4) == 0:  # sent on with the headers of a release
            headers.append((names.TICKET, b"%d" % known[-1]))
        if kind < 30:
            return headers, Asked("plain", transaction=transaction)
        message_id = b"id-%d" % self._rng.below(12) if self._rng.below(3) == 0 else None
        if kind < 34 and transaction is None:
            message_id = b"tick-%d" % self._rng.below(2)
            headers += [(names.SCHEDULE, SCHEDULE), (names.MESSAGE_ID, message_id)]
            return headers, Asked("schedule", message_id=message_id, is_far=True)
        due, asked = self.due(Asked("hold", message_id=message_id, transaction=transaction))
        headers.append(due)
        if message_id is not None:
            headers.append((names.MESSAGE_ID, message_id))
        return headers, asked

    def due(self, asked: Asked) -> tuple[Header, Asked]:
        """A request for a time, of either kind, and when that is at the earliest."""
        is_far = self._rng.below(FAR_ONE_IN) == 0
        delay_ms = self._rng.below(self._delay_ms_max) + is_far * FAR_MS
        earliest_s = self._world.loop.time() + delay_ms / 1000
        if self._rng.below(2):
            header = names.DELAY_MS, b"%d" % delay_ms
            return header, asked._replace(earliest_s=earliest_s, is_delay=True, is_far=is_far)
        header = names.DELIVER_AT, b"%d" % (self._world.clock.wall_ms() + delay_ms)
        # The wall clock shows whole milliseconds: it may be just before the next one.
        return header, asked._replace(earliest_s=earliest_s - 0.001, is_far=is_far)
