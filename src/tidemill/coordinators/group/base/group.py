"""The interface of both kinds of group towards the shard, and the context that a shard gives them.

In a *classic* group the members elect a leader, which assigns the partitions (the *plan*). In a
*consumer* group (KIP-848) the coordinator assigns them. Both kinds live in the same shard and share
its deadlines and its store of committed offsets. A name belongs to one kind at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, final

from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.group_keys import ConsumerTimeouts, consumer_timeouts
from tidemill.metadata.image.metadata_image import Delta, MetadataImage
from tidemill.metadata.image.overrides import group_owner
from tidemill.wire.generated.offset_commit import OffsetCommitRequestTopic

__all__ = [
    "Caller",
    "CommitIdentity",
    "DeadlineKey",
    "DeadlineKind",
    "Group",
    "GroupType",
    "ShardContext",
    "TopicMatcher",
    "TopicSearch",
]


class GroupType(Enum):
    """The type names of ListGroups v5."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class DeadlineKind(Enum):
    """What a deadline is for."""

    SESSION = "session"
    """A member sent no sign of life."""
    REBALANCE = "rebalance"
    """Classic: the joining phase ends (no member). Consumer: a member has not revoked."""
    SYNC = "sync"
    """Members have not asked for their assignment. Classic: no member; consumer: the member."""
    PENDING_JOIN = "pending join"
    """Classic: no client has joined with a member id that was given out. Consumer: a member that
    uses the classic protocol was told to join again and has not."""
    TAKEOVER = "takeover"
    """The group was of the other kind until now: its members have no sessions yet (no member)."""
    PATTERNS = "patterns"
    """Consumer: regular expressions are to be evaluated further (no member)."""


class DeadlineKey(NamedTuple):
    """Group, kind and member of a deadline; the member is empty where it is the whole group's."""

    group_id: str
    kind: DeadlineKind
    member_id: str = ""

    @property
    def size_bytes(self) -> int:
        """The size of its names in a record."""
        return len(self.group_id.encode()) + len(self.member_id.encode())


class Caller(NamedTuple):
    """The client that sends a request, and a member id for it in case it is new."""

    client_id: str
    client_host: str
    """In Kafka's notation: a slash, then the address."""
    fresh_member_id: str
    """A new random id; used only if the member needs one."""
    sees_topic: Callable[[str], bool] = lambda _name: True
    """Whether the client may see a topic that it did not name."""


class CommitIdentity(NamedTuple):
    """The sender of a request for offsets, as the request names it."""

    member_id: str
    generation: int
    """The generation of a classic group, the member epoch of a consumer group; -1: no member."""
    instance_id: str | None = None


class TopicSearch(Protocol):
    """The evaluation of one regular expression; whoever holds it keeps how far it is."""

    def try_match(self, topics: Mapping[str, object]) -> tuple[str, ...] | None:
        """The matching topics, sorted; None after one slice of work, if more is left."""
        ...


class TopicMatcher(Protocol):
    """Evaluates regular expressions over topic names, in slices."""

    def check(self, pattern: str) -> None:
        """INVALID_REGULAR_EXPRESSION, with the reason, if it cannot be used."""
        ...

    def try_search(self, pattern: str) -> TopicSearch | None:
        """The evaluation of this expression; None while too many others are going on."""
        ...


@final
@dataclass(slots=True)
class ShardContext:
    """What the groups of a shard see of it; they all share one context."""

    config: GroupConfig
    """The newest configuration; the shard replaces it when it changes."""
    deadlines: Deadlines[DeadlineKey]
    image: MetadataImage
    """The newest image; the shard replaces it before it tells the groups of a change."""
    matcher: TopicMatcher
    rebalances: int = 0
    """Counted by the groups, for the metrics page."""

    def consumer_timeouts(self, group_id: str) -> ConsumerTimeouts:
        """What the members of this group of the consumer protocol are held to now."""
        return consumer_timeouts(self.image.overrides_of(group_owner(group_id)), self.config)


class Group(Protocol):
    """One group of either kind, as the shard sees it."""

    @property
    def group_id(self) -> str: ...

    @property
    def group_type(self) -> GroupType: ...

    @property
    def protocol_type(self) -> str:
        """ "consumer" for consumers, other types for Connect and others, empty if never joined."""
        ...

    @property
    def state_name(self) -> str:
        """Kafka's name: Empty, PreparingRebalance, Stable, Assigning, Reconciling, ..."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        ...

    @property
    def expects_members(self) -> bool:
        """Whether clients were given member ids and have not joined with them yet."""
        ...

    @property
    def empty_since_ms(self) -> int:
        """Wall time at which the last member left; offsets may expire from then on."""
        ...

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, so that its offsets must stay."""
        ...

    def check_commit(
        self, who: CommitIdentity, topics: Sequence[OffsetCommitRequestTopic], now: Now
    ) -> None:
        """KafkaError if `who` may not commit; a member's commit is a sign of life (T46)."""
        ...

    def check_fetch(self, who: CommitIdentity) -> None:
        """KafkaError if `who` names an unknown member or an old epoch (T45)."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group; its offsets are not included."""
        ...

    def loaded(self, now: Now) -> None:
        """The log has been replayed: give every member a new session."""
        ...

    def deadlines_passed(self, keys: Sequence[DeadlineKey], now: Now) -> Result[None]:
        """Decide on all of the group's deadlines that have passed, in the order of their times.

        They come together, because the records of one decision are replayed only after the call: a
        second decision would not see the first.
        """
        ...

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """Topics were created, deleted or grown; `ShardContext.image` is already the new image."""
        ...

    def parked(self) -> Sequence[Deferred[Any]]:
        """All parked requests of this group."""
        ...
