"""What the members of one group were told, and the promises I26 and I28.

Two protocols, one vocabulary: an *epoch* is a generation of the classic protocol, or the epoch of a
member of the consumer protocol. A member *holds* a partition from the answer that gives it to the
request with which it gives it up: one that no longer lists it, a new join, or a departure.

What must hold:

- In one epoch a partition has at most one owner; a generation has one plan.
- A member is told of a partition only when every other holder has given it up, or was silent for so
  long that it may have been fenced.
- From then on whatever that holder sends with its old epoch is refused, and so is a commit for the
  partition with an older epoch. In the classic protocol a whole generation ends at once: when a
  member was told its part of the next plan.
- Epochs never go back.

Only answers whose records are in the log prove something. In the classic protocol that is SyncGroup
alone: a coordinator that fails in the midst of a round is followed by one that knows of no round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.offset_register import Fate, OffsetRegister, SentCommit

__all__ = ["Asked", "GroupHistory", "MemberName"]

FOR_EVER = 1 << 62
ROUNDING_S = 0.01
"""Brokers count in milliseconds."""


class MemberName(NamedTuple):
    """Who sends a request."""

    member_id: str
    instance_id: str | None = None

    @property
    def owner(self) -> str:
        """A static member that comes back under another id is the same owner."""
        return self.instance_id or self.member_id


class Asked(NamedTuple):
    """A request that was sent."""

    moment: int
    time_s: float
    is_stale: bool
    """A broker that believes in an old lease may answer it."""


@dataclass(slots=True)
class _Claim:
    """What one member believes to own."""

    name: MemberName
    epoch: int = 0
    told: frozenset[int] = frozenset()
    """The assignment that it was last told."""
    held: dict[int, int] = field(default_factory=dict)
    """What it has not given up, and when it was told of each."""
    sound_s: float = 0.0
    """When it last asked for an answer that left it everything: it may be fenced for its silence
    since then, or because it was told to give something up and did not."""

    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Moments, and the epoch that it was told then; each is newer than the one before."""

    def note_answer(self, asked: Asked) -> None:
        if self.held.keys() <= self.told:
            self.sound_s = asked.time_s


class _Tenure(NamedTuple):
    """From this moment on the partition belongs to an owner, in this epoch."""

    moment: int
    epoch: int
    owner: str


class _Fence(NamedTuple):
    """From this moment on, requests of a member with this epoch or an older one are refused."""

    moment: int
    epoch: int
    why: str


class GroupHistory:
    """Requests and answers of all members of a group; raises when a promise is broken."""

    def __init__(
        self,
        name: str,
        *,
        time: Callable[[], float],
        patience_s: float,
        is_stale: Callable[[], bool] = lambda: False,
        stale_s: float = 6.0,
        has_generations: bool = False,
    ) -> None:
        """`patience_s`: a member that is silent for so long may be fenced.

        `is_stale`: a broker may believe in an old lease, and did not for less than `stale_s`.
        `has_generations`: of the classic protocol.
        """
        self.name = name
        self.has_generations = has_generations
        self._time = time
        self._patience_s = patience_s
        self._is_stale = is_stale
        self._stale_s = stale_s
        self._moment = 0
        self._claims: dict[str, _Claim] = {}
        self._tenures: dict[int, list[_Tenure]] = defaultdict(list)
        self._fences: dict[str, _Fence] = {}
        self._instances: dict[str, list[str]] = defaultdict(list)
        """The member ids of each instance id, the newest last."""
        self._newest_epochs: list[tuple[int, int]] = [(0, 0)]
        """Moments, and the newest epoch that anybody was told until then."""
        self._plans: dict[int, bytes] = {}
        self._owners: dict[tuple[int, int], str] = {}
        """By epoch and partition."""
        self._registers: dict[int, OffsetRegister] = {}
        self.told = 0
        self.refused = 0

    # --- requests --------------------------------------------------------------------------------

    def ask(self) -> Asked:
        """A request is about to be sent."""
        return Asked(self._next(), self._time(), self._is_stale())

    def _next(self) -> int:
        self._moment += 1
        return self._moment

    def _is_fresh(self, asked: Asked) -> bool:
        """Whether no broker with an old lease can have answered."""
        took_s = self._time() - asked.time_s
        return not asked.is_stale and not self._is_stale() and took_s < self._stale_s

    # --- ownership -------------------------------------------------------------------------------

    def joined(self, name: MemberName, epoch: int, asked: Asked) -> None:
        """A join was answered: from now on the member is in this epoch, and owns nothing."""
        newest = self._newest_epoch(asked)
        assert epoch >= newest or not self._is_fresh(asked), (
            f"I28: {self._place(name, epoch)} joined, but the group was in {newest}"
        )
        if not self.has_generations:
            self._note_epoch(epoch)
            self._enter(name)

    def told_partitions(
        self,
        name: MemberName,
        epoch: int,
        partitions: Collection[int],
        asked: Asked,
        plan: bytes = b"",
    ) -> None:
        """An answer gave a member these partitions, and no others."""
        self.told += 1
        self.accepted(name, epoch, asked)
        if self.has_generations:
            self._check_plan(name, epoch, partitions, plan)
            self._enter(name)
        claim = self._claims.setdefault(name.member_id, _Claim(name))
        assert epoch >= claim.epoch, f"I28: {self._place(name, epoch)} was in {claim.epoch}"
        for partition in sorted(partitions):
            self._check_owner(name, epoch, partition, asked)
        moment = self._next()
        claim.epoch, claim.told = epoch, frozenset(partitions)
        for partition in claim.told:
            claim.held.setdefault(partition, moment)
            self._note_tenure(partition, _Tenure(moment, epoch, name.owner))
        claim.note_answer(asked)
        if not claim.epochs or claim.epochs[-1][1] < epoch:
            claim.epochs.append((moment, epoch))
        self._note_epoch(epoch)

    def confirmed(self, name: MemberName, epoch: int, asked: Asked) -> None:
        """An answer left everything as it was."""
        self.accepted(name, epoch, asked)
        claim = self._claims.get(name.member_id)
        if claim is not None and claim.epoch == epoch:
            claim.note_answer(asked)

    def gave_up(self, name: MemberName, kept: Collection[int] = ()) -> None:
        """The member is about to tell that it owns only these."""
        self._next()
        claim = self._claims.get(name.member_id)
        if claim is not None:
            for partition in [one for one in claim.held if one not in kept]:
                del claim.held[partition]

    def joins(self, name: MemberName) -> None:
        """The member is about to join in the classic protocol: it owns nothing any more, nor does
        a process before it with its instance id."""
        for claim in list(self._claims.values()):
            if claim.name.owner == name.owner:
                self.gave_up(claim.name)

    def left(self, name: MemberName) -> None:
        """Its departure was answered, in the consumer protocol: it is in the log."""
        self._fences[name.member_id] = _Fence(self._next(), FOR_EVER, "it has left")

    def accepted(self, name: MemberName, epoch: int, asked: Asked) -> None:
        """A request of a member in this epoch was not refused."""
        if not self._is_fresh(asked):
            return
        self._check_fence(name, epoch, asked)
        if self.has_generations:
            newest = self._newest_epoch(asked)
            assert epoch >= newest, (
                f"I26: {self._place(name, epoch)} was accepted in generation {newest}"
            )
        else:
            self._check_not_outdated(name, epoch, asked)

    def owned(self, names: Iterable[MemberName]) -> dict[int, list[str]]:
        """What these members were last told: partitions with their owners."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in names:
            claim = self._claims.get(name.member_id)
            for partition in claim.told & claim.held.keys() if claim is not None else ():
                found[partition].append(name.owner)
        return found

    # --- offsets ---------------------------------------------------------------------------------

    def begin_commit(
        self, name: MemberName, epoch: int, partition: int, asked: Asked
    ) -> SentCommit:
        return self._register(partition).commit(asked.moment, self._place(name, epoch))

    def committed(
        self, name: MemberName, epoch: int, partition: int, asked: Asked, sent: SentCommit
    ) -> None:
        """A commit was acknowledged: whatever was answered, it is in the log."""
        sent.settle(Fate.DONE, self._next())
        self._check_fence(name, epoch, asked)
        place = f"{self._place(name, epoch)} committed partition {partition}"
        newest = self._newest_epoch(asked)
        assert not self.has_generations or epoch >= newest, f"I26: {place} in generation {newest}"
        for tenure in self._tenures[partition]:
            is_over = tenure.moment < asked.moment and epoch < tenure.epoch
            assert not is_over or tenure.owner == name.owner, (
                f"I26: {place}, which {tenure.owner} has had since epoch {tenure.epoch}"
            )

    def refused_commit(self, sent: SentCommit) -> None:
        self.refused += 1
        sent.settle(Fate.REFUSED, self._next())

    def read(self, partition: int, value: int, asked: Asked) -> None:
        """Somebody read the committed offset."""
        if self._is_fresh(asked):
            register = self._register(partition)
            register.read(value, asked=asked.moment, answered=self._next())

    @property
    def acknowledged(self) -> int:
        return sum(one.done for one in self._registers.values())

    def check_offsets(self) -> None:
        """I28, over all that was sent and read."""
        for register in self._registers.values():
            register.check()

    def _register(self, partition: int) -> OffsetRegister:
        name = f"{self.name}, partition {partition}"
        return self._registers.setdefault(partition, OffsetRegister(name))

    # --- checks ----------------------------------------------------------------------------------

    def _check_owner(self, name: MemberName, epoch: int, partition: int, asked: Asked) -> None:
        place = f"I26: {self._place(name, epoch)} was told of partition {partition}"
        first = self._owners.setdefault((epoch, partition), name.owner)
        assert first == name.owner, f"{place}, which {first} has in the same epoch"
        for other in self._claims.values():
            if other.name.owner == name.owner or partition not in other.held:
                continue
            holder = f"{place}, held by {self._place(other.name, other.epoch)}"
            if other.epoch > epoch:  # an answer may be late
                is_late = asked.moment < other.held[partition]
                assert is_late or not self._is_fresh(asked), holder
                continue
            silent_s = self._time() - other.sound_s + ROUNDING_S
            assert silent_s >= self._patience_s, f"{holder}, which was silent for {silent_s:.2f} s"
            why = f"partition {partition} was given to {name.owner}"
            self._fences[other.name.member_id] = _Fence(self._next(), other.epoch, why)

    def _check_plan(
        self, name: MemberName, epoch: int, partitions: Collection[int], plan: bytes
    ) -> None:
        """A generation has one plan; a member that its leader did not know has no part of it."""
        if partitions:
            first = self._plans.setdefault(epoch, plan)
            assert first == plan, (
                f"I26: {self._place(name, epoch)} has plan {plan!r}, not {first!r}"
            )

    def _check_fence(self, name: MemberName, epoch: int, asked: Asked) -> None:
        fence = self._fences.get(name.member_id)
        is_fenced = fence is not None and fence.moment < asked.moment and epoch <= fence.epoch
        assert not is_fenced, f"I26: {self._place(name, epoch)} was accepted: {fence}"

    def _check_not_outdated(self, name: MemberName, epoch: int, asked: Asked) -> None:
        """One epoch behind is fine: the last answer may have been lost."""
        claim = self._claims.get(name.member_id)
        told = [] if claim is None else claim.epochs
        newer = [one for moment, one in told if one > epoch and moment < asked.moment]
        assert len(newer) < 2, f"I26: {self._place(name, epoch)} was accepted, it knew of {newer}"

    def _enter(self, name: MemberName) -> None:
        """The log has this member: another one with its instance id has not."""
        if name.instance_id is None:
            return
        ids = self._instances[name.instance_id]
        if name.member_id in ids:
            return
        for former in ids:
            self._fences[former] = _Fence(self._next(), FOR_EVER, "it was replaced")
            self._claims.pop(former, None)
        ids.append(name.member_id)

    def _note_tenure(self, partition: int, tenure: _Tenure) -> None:
        known = self._tenures[partition]
        if not any((one.epoch, one.owner) == (tenure.epoch, tenure.owner) for one in known):
            known.append(tenure)

    def _note_epoch(self, epoch: int) -> None:
        if epoch > self._newest_epochs[-1][1]:
            self._newest_epochs.append((self._next(), epoch))

    def _newest_epoch(self, asked: Asked) -> int:
        """The newest epoch that anybody had been told when this was asked."""
        return max(epoch for moment, epoch in self._newest_epochs if moment < asked.moment)

    def _place(self, name: MemberName, epoch: int) -> str:
        word = "generation" if self.has_generations else "epoch"
        return f"{self._time():.3f} {self.name}: {name.owner} ({name.member_id}) in {word} {epoch}"
