"""The silence of a new leader: those that it has vouched for may still act. Pure.

A follower that stops following notes when it took in its leader's last answer. If it is elected, it
is silent until `SILENCE_S` after that: by then the vouch has run out (`vouch.py`). A former leader
that fetches from its successor knows of it and has stopped: nobody waits for it any longer. A
process that starts does not know for whom it has vouched, and is silent at first.
"""

from __future__ import annotations

from typing import Final, final

from tidemill.replication.vouching.vouch import NO_VOUCH

__all__ = ["SILENCE_S", "Silence"]

SILENCE_S: Final = 1.2
"""More than `VOUCH_S`: the clocks of two brokers may run at different speeds."""
_NOBODY_KNOWN: Final = -1


@final
class Silence:
    """For whom this broker may have vouched in one partition, and when last."""

    __slots__ = ("_heard_at",)

    def __init__(self, began_at: float) -> None:
        """An earlier life of this process may have vouched for anybody until `began_at`."""
        self._heard_at = {_NOBODY_KNOWN: began_at}

    def heard(self, leader_id: int, at: float) -> None:
        """The last answer of this leader that was taken in, when we stop following it."""
        self._heard_at[leader_id] = max(at, self._heard_at.get(leader_id, NO_VOUCH))

    def has_fetched(self, broker_id: int) -> None:
        """This broker follows us in our epoch: it leads no longer."""
        self._heard_at.pop(broker_id, None)

    def holds(self, now: float) -> bool:
        """Whether somebody may still act because of our vouch."""
        for leader_id in [one for one, at in self._heard_at.items() if now >= at + SILENCE_S]:
            del self._heard_at[leader_id]
        return bool(self._heard_at)
