"""JoinGroup in a classic group: which clients are admitted, and whether that needs a rebalance.

There are four cases. A client may join without a member id (from v4 on it gets one and joins again
with it), with a new member id that it was just given, as a member, or as a static member that
restarted and knows only its instance id. The last two may find the group unchanged; the others need
a round.
"""

from __future__ import annotations

from typing import NamedTuple, final

from tidemill.coordinators.group.base.group import Caller, ShardContext
from tidemill.coordinators.group.classic.members import ClassicMember
from tidemill.coordinators.group.classic.messages import join_refusal, listed_members
from tidemill.coordinators.group.classic.rounds import Rounds
from tidemill.coordinators.group.classic.states import ClassicState
from tidemill.coordinators.group.classic.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    try_subscribed_topics,
)
from tidemill.coordinators.runtime.shard import Now, Reply, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    CLASSIC_PROTOCOLS_MAX,
    GROUP_RECORD_BYTES_MAX,
    SUBSCRIPTION_BYTES_MAX,
)
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse

__all__ = ["MEMBER_ID_REQUIRED_SINCE", "Join", "Joins", "check_session_timeout"]

MEMBER_ID_REQUIRED_SINCE = 4
_SKIP_ASSIGNMENT_SINCE = 9


class Join(NamedTuple):
    """A JoinGroup request with its version, its sender and its time."""

    request: JoinGroupRequest
    caller: Caller
    version: int
    now: Now
    protocols: dict[str, bytes]

    @classmethod
    def of(cls, request: JoinGroupRequest, caller: Caller, *, version: int, now: Now) -> Join:
        """KafkaError: it offers more protocols or metadata than a member may (S41)."""
        offered = request.protocols
        if len(offered) > CLASSIC_PROTOCOLS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(offered)} protocols")
        if sum(len(protocol.metadata) for protocol in offered) > SUBSCRIPTION_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"metadata of more than {SUBSCRIPTION_BYTES_MAX} bytes"
            )
        protocols = {protocol.name: protocol.metadata for protocol in offered}
        return cls(request, caller, version, now, protocols)

    @property
    def member_id(self) -> str:
        return self.request.member_id

    @property
    def instance_id(self) -> str | None:
        """An empty instance id counts as none: it could not tell two members apart."""
        return self.request.group_instance_id or None

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has no such field: the session timeout serves."""
        timeout_ms = self.request.rebalance_timeout_ms
        return timeout_ms if timeout_ms >= 0 else self.request.session_timeout_ms

    def member(self, member_id: str) -> ClassicMember:
        """The sender as a member with this id."""
        return ClassicMember(
            member_id,
            group_id=self.request.group_id,
            instance_id=self.instance_id,
            client_id=self.caller.client_id,
            client_host=self.caller.client_host,
            session_timeout_ms=self.request.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
        )

    def parked(self, member_id: str) -> Deferred[JoinGroupResponse]:
        return Deferred(join_refusal(member_id, self.version))

    def refusal(self, code: ErrorCode, member_id: str) -> JoinGroupResponse:
        return join_refusal(member_id, self.version)(code)


def check_session_timeout(join: Join, config: GroupConfig) -> None:
    """INVALID_SESSION_TIMEOUT: the broker does not allow it."""
    timeout_ms = join.request.session_timeout_ms
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not low <= timeout_ms <= high:
        raise KafkaError(
            ErrorCode.INVALID_SESSION_TIMEOUT, f"{timeout_ms} ms is not in {low} to {high} ms"
        )


@final
class Joins:
    """Decides on the JoinGroup requests of one group."""

    def __init__(self, rounds: Rounds, context: ShardContext) -> None:
        self._rounds = rounds
        self._context = context

    def join(self, join: Join) -> Result[JoinGroupResponse]:
        """The response, at once or deferred. KafkaError: refused."""
        check_session_timeout(join, self._context.config)
        former = self._try_former_self(join)
        known = former or self._rounds.members.get(join.member_id)
        if not self._has_room(known):
            return self._refuse_full(join, known)
        self._check_protocols(join)
        self._check_record_size(join, known)
        if former is not None:
            return self._return_static(join, former)
        if not join.member_id:
            return self._admit_newcomer(join)
        if join.instance_id is None and join.member_id in self._rounds.members.pending:
            self._rounds.withdraw_id(join.member_id)
            return self._admit(join, join.member_id)
        return self._rejoin(join)

    def _try_former_self(self, join: Join) -> ClassicMember | None:
        """The static member that the sender was before its restart; None if it names none."""
        if join.member_id or join.instance_id is None:
            return None
        members = self._rounds.members
        return members.get(members.try_id_of_instance(join.instance_id) or "")

    # --- refusals --------------------------------------------------------------------------------

    def _has_room(self, known: ClassicMember | None) -> bool:
        """In a joining phase only members that joined count: after `group.max.size` was lowered,
        the last ones to join are refused."""
        members = self._rounds.members
        if self._rounds.state is ClassicState.PREPARING_REBALANCE:
            joined = known is not None and known.join is not None
            return joined or members.joined < self._context.config.group_max_size
        return known is not None or len(members) < self._context.config.group_max_size

    def _refuse_full(self, join: Join, known: ClassicMember | None) -> Result[JoinGroupResponse]:
        code = ErrorCode.GROUP_MAX_SIZE_REACHED
        if known is None:
            raise KafkaError(code, f"{self._context.config.group_max_size} members")
        effects = self._rounds.remove([known], join.now)
        response = join.refusal(code, join.member_id)
        return Result(response, effects.records, effects.replies)

    def _check_protocols(self, join: Join) -> None:
        rounds = self._rounds
        if rounds.state is ClassicState.EMPTY:
            suits = bool(join.request.protocol_type and join.protocols)
        else:
            suits = join.request.protocol_type == rounds.protocol_type
            suits = suits and rounds.members.support.has_common(join.protocols)
        if not suits:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"{join.request.protocol_type!r} with {len(join.protocols)} protocols",
            )

    def _check_record_size(self, join: Join, known: ClassicMember | None) -> None:
        """One member's metadata must not make the group's record too large for the log (S41)."""
        before = 0 if known is None else known.metadata_bytes
        added = max(map(len, join.protocols.values())) - before
        if self._rounds.members.metadata_bytes + added > GROUP_RECORD_BYTES_MAX:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"metadata of all members of more than {GROUP_RECORD_BYTES_MAX} bytes",
            )

    # --- newcomers -------------------------------------------------------------------------------

    def _admit_newcomer(self, join: Join) -> Result[JoinGroupResponse]:
        """A client without a member id. A dynamic one must first join again with the id it is given
        (KIP-394): otherwise a client that gives up and retries would leave a dead member each time.
        """
        member_id = join.caller.fresh_member_id
        if join.instance_id is None and join.version >= MEMBER_ID_REQUIRED_SINCE:
            self._rounds.give_out_id(member_id, join.request.session_timeout_ms, join.now)
            return Result(join.refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return self._admit(join, member_id)

    def _admit(self, join: Join, member_id: str) -> Result[JoinGroupResponse]:
        rounds = self._rounds
        if rounds.state is ClassicState.EMPTY:
            rounds.protocol_type = join.request.protocol_type
        member = join.member(member_id)
        rounds.members.add(member)
        return self._park(join, member)

    # --- members ---------------------------------------------------------------------------------

    def _rejoin(self, join: Join) -> Result[JoinGroupResponse]:
        rounds = self._rounds
        member = rounds.members.identify(join.member_id, join.instance_id)
        if self._needs_no_round(member, join):
            rounds.extend_session(member, join.now)
            return Result(rounds.joined_response(member))
        rounds.members.offer(member, join.protocols)
        member.session_timeout_ms = join.request.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        return self._park(join, member)

    def _needs_no_round(self, member: ClassicMember, join: Join) -> bool:
        """The member may have missed our answer: if unchanged, it gets the answer again (T41).

        A leader that joins a stable group again asks for a round: it saw its topics change.
        """
        rounds = self._rounds
        if not member.offers_the_same(join.protocols):
            return False
        if rounds.state is ClassicState.STABLE:
            return member.member_id != rounds.members.leader_id
        return rounds.state is ClassicState.COMPLETING_REBALANCE

    def _park(
        self, join: Join, member: ClassicMember, replies: list[Reply] | None = None
    ) -> Result[JoinGroupResponse]:
        parked = join.parked(member.member_id)
        replies = (replies or []) + self._rounds.park_join(member, parked, join.now)
        others = [reply for reply in replies if reply[0] is not parked]
        own = [response for answered, response in replies if answered is parked]
        return Result(own[0] if own else parked, replies=others)

    # --- static members --------------------------------------------------------------------------

    def _return_static(self, join: Join, former: ClassicMember) -> Result[JoinGroupResponse]:
        """A static member returns under a new id (T42)."""
        member = join.member(join.caller.fresh_member_id)
        if self._rounds.state is ClassicState.STABLE and self._wants_the_same(member, former):
            return self._resume(join, member, former)
        return self._park(join, member, self._rounds.replace(former, member))

    def _wants_the_same(self, member: ClassicMember, former: ClassicMember) -> bool:
        """Whether the plan still fits the member: same protocols, same topics.

        Its metadata may differ in the partitions it owns: after a restart it owns none.
        """
        if list(member.protocols) != list(former.protocols):
            return False
        name = self._rounds.protocol_name
        if self._rounds.protocol_type != CONSUMER_PROTOCOL_TYPE or name is None:
            return True
        topics = try_subscribed_topics(member.protocols[name])
        return topics == try_subscribed_topics(former.protocols[name])

    def _resume(
        self, join: Join, member: ClassicMember, former: ClassicMember
    ) -> Result[JoinGroupResponse]:
        """No round: a record with the new id goes to the log, and its replay changes the group."""
        rounds = self._rounds
        led = rounds.members.leader_id
        leads = led == former.member_id
        after = [member if other is former else other for other in rounds.members]
        plan = {other.member_id: other.assignment for other in rounds.members}
        plan[member.member_id] = former.assignment
        leader_id = member.member_id if leads else led or ""
        record = rounds.plan_record(join.now, members=after, leader_id=leader_id, plan=plan)
        rounds.expect_returning(member, join.now)
        may_skip = join.version >= _SKIP_ASSIGNMENT_SINCE
        response = JoinGroupResponse(
            generation_id=rounds.generation,
            protocol_type=rounds.protocol_type,
            protocol_name=rounds.protocol_name,
            # A client that cannot be told to skip the plan must not learn that it is the leader:
            # it would make a second plan for this generation (KIP-814).
            leader=leader_id if may_skip else led or "",
            skip_assignment=may_skip and leads,
            member_id=member.member_id,
            members=listed_members(after, rounds.protocol_name or "") if may_skip and leads else [],
        )
        return Result(response, [record])
