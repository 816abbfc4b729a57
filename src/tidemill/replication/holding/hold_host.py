"""What the holds of all partitions of one broker share: its clocks, and who is to be looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from tidemill.core.clock import Clock
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_shelves import Spill
from tidemill.replication.holding.hold_clocks import BelievedWall, SteadyTime

if TYPE_CHECKING:
    from tidemill.replication.holding.partition_holds import PartitionHolds

__all__ = ["HoldHost"]


@final
class HoldHost:
    """The clocks of holds, and the partitions that wait for the releaser."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._believed = BelievedWall(wall_ms=clock.wall_ms(), boot_s=clock.boottime())
        self.partitions: dict[PartitionHolds, None] = {}
        """All that have had a held record; as many as partitions at most."""
        self.to_look_at: dict[PartitionHolds, None] = {}
        """Something may be due there, or due at another time than before."""
        self.to_replay: dict[PartitionHolds, None] = {}
        """Their books are behind their logs."""
        self.to_write: deque[tuple[PartitionHolds, HoldBook, Spill]] = deque()
        """Parts of large books: at most two of each."""
        self.to_keep: dict[PartitionHolds, None] = {}
        """A snapshot of their books may be due."""
        self.wake: Callable[[], None] = lambda: None

    def wall_ms(self) -> int:
        """The wall clock as far as it is believed."""
        return self._believed.now_ms(wall_ms=self._clock.wall_ms(), boot_s=self._clock.boottime())

    @property
    def clock_steps(self) -> int:
        """How often the wall clock was suddenly ahead."""
        return self._believed.steps

    def start_steady(self, newest_stamp_ms: int) -> SteadyTime:
        """The steady time of a leadership that begins."""
        return SteadyTime(
            wall_ms=self.wall_ms(),
            newest_stamp_ms=newest_stamp_ms,
            boot_s=self._clock.boottime(),
        )

    def steady_ms(self, steady: SteadyTime) -> int:
        return steady.now_ms(boot_s=self._clock.boottime())

    def look_at(self, holds: PartitionHolds) -> None:
        self.to_look_at[holds] = None
        self.wake()

    def replay(self, holds: PartitionHolds) -> None:
        self.to_replay[holds] = None
        self.wake()

    def write_spill(self, holds: PartitionHolds, book: HoldBook, spill: Spill) -> None:
        self.to_write.append((holds, book, spill))
        self.wake()

    def keep_all(self) -> None:
        """See whether snapshots are due."""
        self.to_keep.update(self.partitions)
        self.wake()

    def forget(self, holds: PartitionHolds) -> None:
        """The partition is no longer here."""
        for table in (self.partitions, self.to_look_at, self.to_replay, self.to_keep):
            table.pop(holds, None)
