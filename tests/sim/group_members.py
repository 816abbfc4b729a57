"""Members of a group, one class for each protocol: what they send, and what the judge is told.

A member never has two requests on their way. Where it does not know what became of a join or of its
departure, it goes on under another id: that request may still arrive, and would speak for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tests.sim.group_wire import GroupWire, Part, Refused, Unanswered
from tests.support.group_history import GroupHistory, MemberName
from tidemill.client.network.errors import error_code
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tidemill.wire.generated.join_group import JoinGroupResponse

__all__ = ["ClassicMember", "ConsumerMember", "FormerSelf", "GroupMember", "commit_offset"]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class GroupMember(Protocol):
    """One member, from its first join on; `Refused` ends its membership."""

    name: MemberName
    epoch: int
    owned: set[int]
    """What it still reads."""
    must_join: bool

    async def join(self) -> None: ...

    async def beat(self) -> None: ...

    async def leave(self) -> None: ...

    def revoke(self) -> None:
        """Stop reading what it was told to give up."""
        ...


class FormerSelf(NamedTuple):
    """A member as it was in an epoch."""

    name: MemberName
    epoch: int
    owned: frozenset[int]

    async def beat(self, wire: GroupWire, history: GroupHistory) -> None:
        """Send once more what it might have sent then."""
        asked = history.ask()
        if history.has_generations:
            await wire.beat(self.name, self.epoch)
        else:
            await wire.consumer_beat(self.name, self.epoch, self.owned)
        history.accepted(self.name, self.epoch, asked)


async def commit_offset(
    wire: GroupWire, history: GroupHistory, member: FormerSelf, partition: int
) -> None:
    """Commit the next offset of a partition, in the epoch that the member believes in."""
    (name, epoch, _), asked = member, history.ask()
    sent = history.begin_commit(name, epoch, partition, asked)
    try:
        await wire.commit(name, epoch, partition, sent.value)
    except Refused:
        history.refused_commit(sent)
        raise
    history.committed(name, epoch, partition, asked, sent)


class ClassicMember:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup; it gives up everything when it joins."""

    def __init__(
        self,
        wire: GroupWire,
        history: GroupHistory,
        instance_id: str | None,
        plan: Callable[[Sequence[str]], dict[str, Part]],
        make_id: Callable[[], str],
        dies_in_round: Callable[[], bool],
    ) -> None:
        """`plan` shares out the partitions if this member leads."""
        self._wire = wire
        self._history = history
        self._plan = plan
        self._make_id = make_id
        self._dies_in_round = dies_in_round
        self.name = MemberName("", instance_id)
        self.epoch = 0
        self.owned: set[int] = set()
        self.must_join = True

    async def join(self) -> None:
        """A whole round. Refused: it must join again."""
        self.owned = set()
        self._history.joins(self.name)
        asked = self._history.ask()
        try:
            joined = await self._join()
        except Unanswered:
            is_static = self.name.instance_id is not None
            self.name = MemberName("", self._make_id() if is_static else None)
            raise
        self.name = MemberName(joined.member_id, self.name.instance_id)
        self.epoch = joined.generation_id
        self._history.joined(self.name, self.epoch, asked)
        if self._dies_in_round():
            self.name = MemberName("", self.name.instance_id)
            return
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        plan = self._plan([one.member_id for one in joined.members]) if leads else {}
        await self._sync(plan)
        self.must_join = False

    async def _join(self) -> JoinGroupResponse:
        while True:
            joined = await self._wire.join(self.name)
            code = error_code(joined.error_code)
            if code is ErrorCode.NONE:
                return joined
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self.name = MemberName(joined.member_id, self.name.instance_id)
                continue
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.name = MemberName("", self.name.instance_id)
            if code is not ErrorCode.REBALANCE_IN_PROGRESS:
                self._wire.forget_coordinator()
            raise Refused(code)

    async def _sync(self, plan: dict[str, Part]) -> None:
        asked = self._history.ask()
        try:
            part = await self._wire.sync(self.name, self.epoch, plan)
        except Refused as refusal:
            self._note(refusal.code)
            raise
        except Unanswered:
            self.name = MemberName("", self.name.instance_id)
            raise
        self.owned = set(part.partitions)
        self._history.told_partitions(self.name, self.epoch, part.partitions, asked, part.plan)

    async def beat(self) -> None:
        asked = self._history.ask()
        try:
            await self._wire.beat(self.name, self.epoch)
        except Refused as refusal:
            self._note(refusal.code)
            raise
        self._history.confirmed(self.name, self.epoch, asked)

    def _note(self, code: ErrorCode) -> None:
        self.must_join = True
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._give_up()
            self.name = MemberName("", self.name.instance_id)

    async def leave(self) -> None:
        self._give_up()
        name, self.name = self.name, MemberName("", self.name.instance_id)
        self.must_join = True
        await self._wire.leave(name)

    def revoke(self) -> None:
        """Its next join does."""

    def _give_up(self) -> None:
        self.owned = set()
        self._history.gave_up(self.name)


class ConsumerMember:
    """ConsumerGroupHeartbeat; it may take its time to give up partitions."""

    def __init__(
        self,
        wire: GroupWire,
        history: GroupHistory,
        instance_id: str | None,
        make_id: Callable[[], str],
    ) -> None:
        self._wire = wire
        self._history = history
        self._make_id = make_id
        self.name = MemberName(make_id(), instance_id)
        self.epoch = JOIN_EPOCH
        self.owned: set[int] = set()
        self.must_join = True
        self._told: frozenset[int] = frozenset()
        self._tells_all = True

    async def join(self) -> None:
        self._give_up()
        asked = self._history.ask()
        try:
            answer = await self._wire.consumer_beat(self.name, JOIN_EPOCH, ())
        except Unanswered:
            self.name = self._renamed()
            raise
        self._history.joined(self.name, answer.member_epoch, asked)
        self.must_join = False
        self._take(answer, asked_all=True)
        self._history.told_partitions(self.name, self.epoch, self._told, asked)

    async def beat(self) -> None:
        """Say what it owns after an error, and while that is not what it was told."""
        lists = self._tells_all or self.owned != self._told
        if lists:
            self._history.gave_up(self.name, self.owned)
        asked = self._history.ask()
        try:
            answer = await self._wire.consumer_beat(
                self.name, self.epoch, self.owned if lists else None
            )
        except Refused:
            self.must_join = True
            self._give_up()
            raise
        except Unanswered:
            self._tells_all = True
            raise
        before = self.epoch
        self._history.accepted(self.name, before, asked)
        self._take(answer, asked_all=lists)
        if answer.assignment is not None or self.epoch != before:
            self._history.told_partitions(self.name, self.epoch, self._told, asked)
        else:
            self._history.confirmed(self.name, self.epoch, asked)

    def _take(self, answer: ConsumerGroupHeartbeatResponse, *, asked_all: bool) -> None:
        assert answer.assignment is not None or not asked_all, "a full answer has an assignment"
        self.epoch, self._tells_all = answer.member_epoch, False
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            self._told = frozenset(number for one in given for number in one.partitions)
            self.owned |= self._told

    def revoke(self) -> None:
        """Its next heartbeat says so."""
        if self.owned - self._told:
            self.owned &= self._told
            self._tells_all = True

    async def leave(self) -> None:
        """A static member comes back under another id, and finds its place."""
        is_static = self.name.instance_id is not None
        self._give_up()
        name, self.name = self.name, self._renamed()
        self.must_join = True
        epoch = STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH
        await self._wire.consumer_beat(name, epoch, None)
        self._history.left(name)

    def _renamed(self) -> MemberName:
        return MemberName(self._make_id(), self.name.instance_id)

    def _give_up(self) -> None:
        self.owned, self._told = set(), frozenset()
        self._tells_all = True
        self._history.gave_up(self.name)
