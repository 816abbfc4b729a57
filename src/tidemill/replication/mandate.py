"""Whether a leader may act now: append, answer clients, and move its marks.

    by its lease   nobody can have been told to take over from it (I8, I15)
    by vouches     it has no lease, but all that may be elected promise to keep silent for now
    not at all     it has neither, or is silent itself: the leader before it may still act

`vouching/` says why a vouch and a silence fit together. Times are of the boot clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidemill.core.owner_lease import OwnerLease
from tidemill.replication.led_replicas import LedReplicas
from tidemill.replication.vouching.silence import Silence
from tidemill.replication.waiting.follower_watches import FollowerWatches

__all__ = ["Mandate"]

FIRST_EPOCH: Final = 0
"""Nobody has led before it."""
VOUCHED_IN_SYNC_MIN: Final = 2


@final
class Mandate:
    """What allows this broker to act as the leader of one partition, while it leads."""

    __slots__ = ("_boottime", "_is_silent", "_lease", "_silence")

    def __init__(self, lease: OwnerLease, boottime: Callable[[], float] | None) -> None:
        """`boottime`: only in a cluster whose followers vouch for their leaders."""
        self._lease = lease
        self._boottime = boottime
        self._silence = None if boottime is None else Silence(boottime())
        self._is_silent = False

    @property
    def has_lease(self) -> bool:
        """Whether nobody can have been told to act in this broker's place."""
        return self._lease.may_act

    # --- silence ---------------------------------------------------------------------------------

    def epoch_began(self, leader_epoch: int) -> None:
        """This broker leads from now on; the leader of an earlier epoch may still act."""
        self._is_silent = self._silence is not None and leader_epoch > FIRST_EPOCH

    @property
    def is_silent(self) -> bool:
        """Whether this broker leads, and the leader before it may still act by our vouch."""
        if self._is_silent and self._silence is not None and self._boottime is not None:
            self._is_silent = self._silence.holds(self._boottime())
        return self._is_silent

    def stopped_following(self, leader_id: int, answered_at: float) -> None:
        """We have vouched for this leader; when its last answer was taken in."""
        if self._silence is not None:
            self._silence.heard(leader_id, answered_at)

    def was_fetched_by(self, broker_id: int) -> None:
        """This broker follows us: it does not act as a leader any more."""
        if self._is_silent and self._silence is not None:
            self._silence.has_fetched(broker_id)

    # --- vouches ---------------------------------------------------------------------------------

    def is_vouched(self, led: LedReplicas, watches: FollowerWatches) -> bool:
        """Whether all that may be elected promise to be silent for now: no lease is needed."""
        if self._boottime is None:
            return False
        # One that has nobody else in sync would be alone, and nobody vouches for it.
        if len(led.in_sync.maximal) < VOUCHED_IN_SYNC_MIN or not self._lease.is_let_in:
            return False
        return self._boottime() < watches.vouched_until(led.others_electable())
