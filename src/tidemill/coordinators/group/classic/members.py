"""The members of one classic group, with counts that avoid iterating over them.

All operations are O(1) except iteration and what needs it: the rebalance timeout, once per phase,
and the topics, once per change (S41).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from tidemill.coordinators.group.base.group import DeadlineKey, DeadlineKind
from tidemill.coordinators.group.classic.protocols import ProtocolSupport
from tidemill.coordinators.group.classic.subscription import try_subscribed_topics
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.generated.group_metadata_record import MemberMetadata
from tidemill.wire.generated.join_group import JoinGroupResponse
from tidemill.wire.generated.sync_group import SyncGroupResponse

__all__ = ["ClassicMember", "ClassicMembers"]


@final
class ClassicMember:
    """One consumer, from its first JoinGroup until it leaves or is dropped."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_key",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        member_id: str,
        *,
        group_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: dict[str, bytes],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        """Set for a static member (KIP-345): it may return under another member id."""
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        """Metadata by protocol, the preferred one first."""
        self.assignment = b""
        """Its part of the newest plan in the log; opaque bytes."""
        self.is_new = True
        """No JoinGroup answer has made it part of a generation yet."""
        self.join: Deferred[JoinGroupResponse] | None = None
        self.sync: Deferred[SyncGroupResponse] | None = None
        self.session_key = DeadlineKey(group_id, DeadlineKind.SESSION, member_id)

    @property
    def is_parked(self) -> bool:
        """It waits for the coordinator, so its silence does not mean that it failed."""
        return self.join is not None or self.sync is not None

    @property
    def metadata_bytes(self) -> int:
        """The most that its metadata takes in a record, whichever protocol is chosen."""
        return max(map(len, self.protocols.values()), default=0)

    def offers_the_same(self, protocols: dict[str, bytes]) -> bool:
        """Whether these are its protocols, in the same order and with the same metadata."""
        return list(self.protocols.items()) == list(protocols.items())

    def apply_record(self, record: MemberMetadata, protocol: str) -> None:
        """Apply its record; its other protocols are kept only if the chosen one is unchanged."""
        self.client_id = record.client_id
        self.client_host = record.client_host
        self.session_timeout_ms = record.session_timeout
        self.rebalance_timeout_ms = record.rebalance_timeout
        if record.rebalance_timeout < 0:  # version 0 has no such field
            self.rebalance_timeout_ms = record.session_timeout
        self.assignment = record.assignment
        if self.protocols.get(protocol) != record.subscription:
            self.protocols = {protocol: record.subscription}


@final
class ClassicMembers:
    """The members by id, in the order in which they joined."""

    __slots__ = (
        "_by_id",
        "_by_instance",
        "_topics",
        "joined",
        "leader_id",
        "metadata_bytes",
        "pending",
        "support",
        "unsynced",
    )

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self._by_instance: dict[str, str] = {}
        """Member ids of static members by instance id."""
        self._topics: dict[str, frozenset[str] | None] = {}
        """Results of `try_topics` since the members last changed."""
        self.leader_id: str | None = None
        self.joined = 0
        """Members with a parked JoinGroup."""
        self.metadata_bytes = 0
        self.support = ProtocolSupport()
        self.pending: dict[str, None] = {}
        """Ids given out with MEMBER_ID_REQUIRED, oldest first; they are not members yet."""
        self.unsynced: dict[str, None] = {}
        """Members that know the generation and have not asked for their assignment yet."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self._by_id.values())

    def get(self, member_id: str) -> ClassicMember | None:
        return self._by_id.get(member_id)

    def try_id_of_instance(self, instance_id: str) -> str | None:
        return self._by_instance.get(instance_id)

    def identify(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The sender of a request. KafkaError: unknown, or its instance id has a newer member."""
        if instance_id:
            known = self._by_instance.get(instance_id)
            if known is not None and known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, instance_id)
        member = self._by_id.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, member_id)
        return member

    def try_topics(self, protocol: str) -> frozenset[str] | None:
        """All topics that members subscribe to; None if one subscription cannot be read."""
        if protocol not in self._topics:
            self._topics = {protocol: self._try_topics_of_all(protocol)}
        return self._topics[protocol]

    def _try_topics_of_all(self, protocol: str) -> frozenset[str] | None:
        topics: set[str] = set()
        for member in self:
            of_member = try_subscribed_topics(member.protocols.get(protocol, b""))
            if of_member is None:
                return None
            topics |= of_member
        return frozenset(topics)

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined, and all clients that were given an id."""
        return self.joined == len(self._by_id) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        """The longest timeout of all members: a phase waits for the slowest."""
        return max(member.rebalance_timeout_ms for member in self)

    def add(self, member: ClassicMember) -> None:
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member)

    def remove(self, member: ClassicMember) -> None:
        """The member must not be parked: the caller answers it first."""
        assert not member.is_parked
        del self._by_id[member.member_id]
        self.unsynced.pop(member.member_id, None)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._by_id), None)
        self._uncount(member)

    def offer(self, member: ClassicMember, protocols: dict[str, bytes]) -> None:
        """The member joined again, perhaps with other protocols or metadata."""
        self._uncount(member)
        member.protocols = protocols
        self._count(member)

    def park_join(self, member: ClassicMember, parked: Deferred[JoinGroupResponse]) -> None:
        assert member.join is None, "the earlier JoinGroup must be answered first"
        member.join = parked
        self.joined += 1

    def try_take_join(self, member: ClassicMember) -> Deferred[JoinGroupResponse] | None:
        """The member's parked JoinGroup, if any; the caller must answer it."""
        parked, member.join = member.join, None
        if parked is not None:
            self.joined -= 1
        return parked

    def _count(self, member: ClassicMember) -> None:
        self._topics.clear()
        self.support.add(member.protocols)
        self.metadata_bytes += member.metadata_bytes

    def _uncount(self, member: ClassicMember) -> None:
        self._topics.clear()
        self.support.remove(member.protocols)
        self.metadata_bytes -= member.metadata_bytes
