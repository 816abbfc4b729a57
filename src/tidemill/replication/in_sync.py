"""The in-sync set of one partition as its leader must fear it to be, in one leader epoch. Pure.

Theory of operation. The controller alone changes the in-sync set, by compare-and-set on the
partition epoch. A leader proposes changes and hears of the outcome late, or never. The marks must
not pass a replica that the controller may elect, so they count a member as soon as a proposal that
names it is sent, and until it is certain that the proposal was not and cannot be made:

    committed   the set of the highest partition epoch that was seen in this leader epoch
    feared      whoever an unsettled proposal could have put in
    maximal     committed + feared: the marks are the minimum over these, and over candidates

| event                                                   | action                                 |
|---------------------------------------------------------|----------------------------------------|
| a change is wanted and nothing is unsettled             | propose it; base = the partition epoch |
| answer or image with a partition epoch above the base   | committed = its set, feared = nobody   |
| image with a partition epoch that is known              | keep feared                            |
| definite no, all attempts on this base were answered    | feared = nobody                        |
| definite no after an unanswered attempt, or the         | keep feared, propose what is wanted    |
|   partition is in another state than the base           |   now; the committed set is a *touch*  |
| timeout, lost connection, no controller, other errors   | keep feared, propose the same again    |

A compare-and-set on a base cannot happen once the partition epoch is higher: that is what settles.
A *candidate* is no member, but has caught up and may join: the marks wait for it, because it could
never catch up with marks that run ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tidemill.core.error_codes import ErrorCode
from tidemill.replication.isr import UNKNOWN_OFFSET, FollowerPosition

__all__ = ["InSync", "Members", "ids_of"]

Members = tuple[tuple[int, int], ...]
"""Broker ids, each with the broker epoch that it is proposed in."""

DEFINITE_REFUSALS: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)
"""The controller looked at the proposal and will not make it."""
OTHER_STATES: Final = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH)
"""The partition is no longer in the state that was proposed on; perhaps by this very proposal."""


def ids_of(members: Members) -> tuple[int, ...]:
    return tuple([broker_id for broker_id, _ in members])


@final
class InSync:
    """The sets of one partition in one leader epoch, and the proposal that is unsettled."""

    __slots__ = (
        "_candidates",
        "_has_unanswered",
        "_leader_id",
        "_proposed",
        "committed",
        "counted",
        "feared",
        "is_unsettled",
        "maximal",
        "partition_epoch",
    )

    def __init__(self, leader_id: int, isr: tuple[int, ...], partition_epoch: int) -> None:
        self._leader_id = leader_id
        self._candidates: tuple[int, ...] = ()
        self._settle(isr, partition_epoch)

    def _settle(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.committed = isr
        self.partition_epoch = partition_epoch
        """The state that is known, and the base of proposals."""
        self._withdraw()

    def _withdraw(self) -> None:
        self.is_unsettled = False
        """Some proposal on this base can still be made."""
        self._has_unanswered = False
        """Some attempt on this base was not answered."""
        self._proposed: Members | None = None
        """What is to be sent again."""
        self._fear(())

    def _fear(self, feared: tuple[int, ...]) -> None:
        self.feared = feared
        self.maximal = (*self.committed, *feared)
        self._count()

    def _count(self) -> None:
        others = tuple([one for one in self._candidates if one not in self.maximal])
        self.counted = (*self.maximal, *others)
        """Whose positions the marks respect."""

    def set_candidates(self, candidates: tuple[int, ...]) -> None:
        self._candidates = candidates
        self._count()

    # --- proposals -------------------------------------------------------------------------------

    def try_next_proposal(self, wanted: Members) -> Members | None:
        """What to propose on `partition_epoch` now; None if there is nothing to change."""
        if self._proposed is not None:
            return self._proposed
        if self.is_unsettled or ids_of(wanted) != self.committed:
            return wanted
        return None

    def sent(self, proposed: Members) -> None:
        """From now on the controller may have made it."""
        self._proposed = proposed
        self.is_unsettled = True
        ids = ids_of(proposed)
        joining = [one for one in ids if one not in self.committed and one not in self.feared]
        self._fear((*self.feared, *joining))

    def unanswered(self, base: int) -> None:
        """An attempt on `base` timed out or lost its connection."""
        if base == self.partition_epoch:
            self._has_unanswered = True

    def refused(self, base: int, code: ErrorCode) -> None:
        """An attempt on `base` was answered with an error."""
        if base != self.partition_epoch:
            return
        if code in DEFINITE_REFUSALS:
            if self._has_unanswered:
                self._proposed = None
            else:
                self._withdraw()
        elif code in OTHER_STATES:
            self._proposed = None
        else:
            self._has_unanswered = True

    def saw(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """A state of the partition in this leader epoch; whether it was news."""
        if partition_epoch <= self.partition_epoch:
            return False
        self._settle(isr, partition_epoch)
        return True

    def accepted(self, base: int, isr: tuple[int, ...], partition_epoch: int) -> None:
        """An attempt on `base` was made, or changed nothing: the partition's state after it."""
        if self.saw(isr, partition_epoch) or base != self.partition_epoch:
            return
        if not self._has_unanswered:
            self._withdraw()
        else:
            self._proposed = None

    # --- marks -----------------------------------------------------------------------------------

    def is_alone(self, minimum: int) -> bool:
        """Whether no other replica is in sync or needs to be: the leader's log decides alone."""
        return minimum <= 1 and self.counted == (self._leader_id,)

    def agreed(
        self, end: int, flushed: int, followers: Mapping[int, FollowerPosition], minimum: int
    ) -> tuple[int, int]:
        """Up to where all that count have appended, and have flushed; `end` and `flushed`: ours.

        Below the minimum nothing is agreed: the agreement of too small a set is not a promise
        (KIP-966). Neither is it where a member's position is unknown.
        """
        if len(self.committed) < minimum:
            return UNKNOWN_OFFSET, UNKNOWN_OFFSET
        for broker_id in self.counted:
            if broker_id == self._leader_id:
                continue
            position = followers.get(broker_id)
            if position is None:
                return UNKNOWN_OFFSET, UNKNOWN_OFFSET
            end = min(end, position.log_end_offset)
            flushed = min(flushed, position.flushed_offset)
        return end, flushed
