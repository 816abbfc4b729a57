"""What both kinds of consumer group have in common: how the shard sees them, what they may see.

A *classic* group elects a leader among its members, which makes the plan; a *consumer* group
(KIP-848) is told its plan by the coordinator. Both live in the same shard, share its deadlines and
the store of committed offsets, and a name belongs to one kind at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, final

from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta, MetadataImage

__all__ = [
    "Caller",
    "CommitIdentity",
    "DeadlineKey",
    "DeadlineKind",
    "Group",
    "GroupType",
    "ShardContext",
]


class GroupType(Enum):
    """The words of ListGroups v5."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class DeadlineKind(Enum):
    """What can run out."""

    SESSION = "session"
    """A member was not heard of."""
    REBALANCE = "rebalance"
    """Classic: the joining phase ends (no member). Consumer: a member did not revoke in time."""
    SYNC = "sync"
    """Classic: members that did not ask for their assignment in time."""
    PENDING_JOIN = "pending join"
    """Classic: a member id was given out and nobody came back with it."""


class DeadlineKey(NamedTuple):
    """Whose deadline, for what; the member is empty where the whole group waits."""

    group_id: str
    kind: DeadlineKind
    member_id: str = ""


class Caller(NamedTuple):
    """Who asks, and an id for them should they turn out to be new."""

    client_id: str
    client_host: str
    """As Kafka writes it: an address behind a slash."""
    fresh_member_id: str
    """A random id that nobody has; used only if the member needs one."""


class CommitIdentity(NamedTuple):
    """Who commits or reads offsets, as far as the request says."""

    member_id: str
    generation: int
    """The generation of a classic group, the member epoch of a consumer group; -1: no member."""
    instance_id: str | None = None


@final
@dataclass(slots=True)
class ShardContext:
    """What a group may see of its shard; one for all groups of a shard."""

    config: GroupConfig
    deadlines: Deadlines[DeadlineKey]
    image: MetadataImage
    """The newest; the shard replaces it before it tells groups of a change."""
    rebalances: int = 0
    """Counted by the groups, for the metrics page."""


class Group(Protocol):
    """One group of either kind, as the shard treats them."""

    @property
    def group_id(self) -> str: ...

    @property
    def group_type(self) -> GroupType: ...

    @property
    def protocol_type(self) -> str:
        """ "consumer" for consumers, others for Connect and the like, empty if never joined."""
        ...

    @property
    def state_name(self) -> str:
        """Kafka's word: Empty, PreparingRebalance, Stable, Assigning, Reconciling, ..."""
        ...

    @property
    def is_empty(self) -> bool:
        """Nobody is a member."""
        ...

    @property
    def empty_since_ms(self) -> int:
        """Wall time since when nobody is a member; from then on offsets may expire."""
        ...

    def subscribes_to(self, topic: str) -> bool:
        """Whether a live member wants this topic: its offsets are not deleted or expired."""
        ...

    def check_commit(self, who: CommitIdentity, now: Now) -> None:
        """KafkaError if `who` may not commit; a member's commit is a sign of life (T46)."""
        ...

    def check_fetch(self, who: CommitIdentity) -> None:
        """KafkaError if `who` names a member that is not, or an old epoch (T45)."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group, but for its offsets."""
        ...

    def loaded(self, now: Now) -> None:
        """The log was replayed: give every member a fresh session."""
        ...

    def deadline_passed(self, key: DeadlineKey, now: Now) -> Result[None]: ...

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """Topics came, went or grew; `ShardContext.image` is already the new one."""
        ...

    def parked(self) -> Sequence[Deferred[Any]]:
        """Everyone who waits for an answer of this group."""
        ...
