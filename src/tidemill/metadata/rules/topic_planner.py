"""What the controller decides about topics: image + request -> the next state of topics. Pure.

Each `plan_` method takes one topic and returns its next `TopicImage`, or raises the KafkaError that
the client gets. `controllership.py` writes the result to the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final
from uuid import UUID

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import (
    TOPIC_NAME_CHARS_MAX,
    ZERO_UUID,
    TopicId,
    is_legal_topic_name,
)
from tidemill.core.limits import PARTITIONS_PER_REQUEST_MAX, PARTITIONS_PER_TOPIC_MAX
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.metadata_image import (
    INTERNAL_TOPICS,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import (
    AlterOp,
    TopicConfig,
    altered_overrides,
    checked_overrides,
    resolve,
)
from tidemill.metadata.image.topic_keys import MIN_ISR
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.placement import Load, count_replicas, place
from tidemill.metadata.rules.store_writes import with_minimum_in_force
from tidemill.metadata.special_topics.internal_topics import (
    checked_internal,
    internal_partitions,
    internal_replicas,
    mended_overrides,
)
from tidemill.metadata.special_topics.views import (
    VIEW_OF,
    check_altered,
    check_no_view,
    check_view_keys,
    replaced_overrides,
    view_base,
)

__all__ = [
    "ConfigChange",
    "PartitionsSpec",
    "TopicPlanner",
    "TopicResult",
    "TopicSpec",
]

_DEFAULT = -1
"""As a partition count or replication factor: use the broker's default (T21)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic that a client wants to create."""

    name: str
    partitions: int = _DEFAULT
    replication_factor: int = _DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Replicas by partition, if the client chooses them."""
    overrides: Mapping[str, str | None] = field(default_factory=dict)
    by_coordinator: bool = False
    """The coordinator of an internal topic asks for it; for anyone else the name is taken."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsSpec:
    """The number of partitions that a topic should have."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None
    """Replicas of the new partitions, if the client chooses them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Changes of one topic's keys; `replace_all` drops every override first (AlterConfigs)."""

    name: str
    changes: Sequence[tuple[str, AlterOp, str | None]]
    replace_all: bool = False


@final
@dataclass(slots=True)
class TopicResult:
    """The outcome for one topic of a request."""

    name: str
    topic: TopicImage | None = None
    """The topic as it is now; None if the request was refused."""
    code: ErrorCode = ErrorCode.NONE
    detail: str = ""
    topic_id: UUID = ZERO_UUID

    def refuse(self, error: KafkaError) -> None:
        self.topic = None
        self.code = error.code
        self.detail = error.detail


@final
class TopicPlanner:
    """The decisions of one request; each one counts what the earlier ones have used."""

    def __init__(
        self,
        image: MetadataImage,
        load: dict[int, Load],
        config: BrokerConfig,
        defaults: TopicConfig,
    ) -> None:
        self._image = image
        self._config = config
        self._defaults = defaults
        self._load = load
        """The load of all live brokers, including what is planned here."""
        self._made: dict[str, TopicImage] = {}
        """Topics that this request creates."""
        self._views = Counter[str]()
        """Views that this request creates, by base."""
        self._spellings: dict[str, str] | None = None
        self._partitions_left = PARTITIONS_PER_REQUEST_MAX

    def plan_topic(self, spec: TopicSpec, topic_id: TopicId) -> Steps[TopicImage]:
        """The new topic. A refused one leaves no trace in later plans."""
        self._check_name(spec)
        if spec.name in INTERNAL_TOPICS:
            spec = self._with_own_settings(spec)
        overrides = checked_overrides(spec.overrides)
        if overrides.get(VIEW_OF):
            partitions = self._viewed_partitions(spec, overrides)
        else:
            check_view_keys(overrides)
            if spec.assignments:
                replicas = self._chosen_replicas(spec)
            else:
                replicas = yield from self._placed_replicas(spec)
            yield
            partitions = tuple(map(new_partition, replicas))
        if self._spellings is not None:
            self._spellings[_collision_key(spec.name)] = spec.name
        made = TopicImage(
            name=spec.name,
            topic_id=topic_id,
            partitions=partitions,
            overrides=overrides,
            config=resolve(overrides, self._defaults),
        )
        self._made[spec.name] = with_minimum_in_force(made)
        return self._made[spec.name]

    def _viewed_partitions(
        self, spec: TopicSpec, overrides: Mapping[str, str]
    ) -> tuple[PartitionImage, ...]:
        base = view_base(
            self._image,
            self._made,
            overrides,
            partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            has_assignments=bool(spec.assignments),
            planned=self._views[overrides[VIEW_OF]],
        )
        self._views[base.name] += 1
        return base.partitions

    def plan_partitions(self, spec: PartitionsSpec) -> Steps[TopicImage]:
        """The topic with more partitions; their number cannot go down."""
        topic = _existing(self._image, spec.name)
        check_no_view(topic)
        if topic.internal:
            detail = (
                "its partitions stay: the state of a group is found by a hash over their number"
            )
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, detail)
        if spec.count > PARTITIONS_PER_TOPIC_MAX:
            detail = f"{spec.count} partitions; a topic has {PARTITIONS_PER_TOPIC_MAX} at most"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
        more = spec.count - len(topic.partitions)
        if more <= 0:
            detail = f"{spec.name} has {len(topic.partitions)} partitions; {spec.count} is not more"
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, detail)
        if spec.assignments is None:
            replicas = yield from self._place(more, topic.replication_factor)
        else:
            if len(spec.assignments) != more:
                detail = f"{len(spec.assignments)} assignments for {more} new partitions"
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
            replicas = self._check_assignments(spec.assignments, topic.replication_factor)
        yield
        added = tuple(map(new_partition, replicas))
        return replace(topic, partitions=topic.partitions + added)

    def plan_config(self, change: ConfigChange) -> TopicImage:
        """The topic with changed overrides."""
        topic = _existing(self._image, change.name)
        before = {} if change.replace_all else topic.overrides
        overrides = altered_overrides(before, change.changes)
        if change.replace_all:
            overrides = replaced_overrides(topic, overrides)
        check_altered(topic, overrides)
        if topic.internal:
            overrides = checked_internal(topic.name, overrides, self._config)
        named = {name for name, _, _ in change.changes}
        changed = self._with_overrides(topic, overrides, named)
        return with_minimum_in_force(changed, may_fall=change.replace_all or MIN_ISR in named)

    def plan_mending(self, topic: TopicImage) -> TopicImage:
        """An internal topic with the settings of its coordinator where its own lose state."""
        overrides = mended_overrides(topic.name, topic.overrides, self._config)
        return with_minimum_in_force(self._with_overrides(topic, overrides, overrides.keys()))

    def _with_overrides(
        self, topic: TopicImage, overrides: dict[str, str], named: Collection[str]
    ) -> TopicImage:
        """The topic with these overrides; a key that is named here has no other value any more."""
        return replace(
            topic,
            overrides=overrides,
            unread={name: text for name, text in topic.unread.items() if name not in named},
            config=resolve(overrides, self._defaults),
        )

    def _with_own_settings(self, spec: TopicSpec) -> TopicSpec:
        """The spec of an internal topic, with its coordinator's settings where it leaves them."""
        overrides = checked_internal(spec.name, checked_overrides(spec.overrides), self._config)
        if spec.assignments:
            return replace(spec, overrides=overrides)
        partitions, factor = spec.partitions, spec.replication_factor
        if partitions == _DEFAULT:
            partitions = internal_partitions(spec.name, self._config)
        if factor == _DEFAULT:
            factor = internal_replicas(spec.name, self._config, len(self._load))
        return replace(spec, partitions=partitions, replication_factor=factor, overrides=overrides)

    def _check_name(self, spec: TopicSpec) -> None:
        name = spec.name
        if not is_legal_topic_name(name):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"a topic name has 1 to {TOPIC_NAME_CHARS_MAX} of a-z A-Z 0-9 . _ - "
                "and is neither . nor ..",
            )
        if name in self._made or name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
        if name in INTERNAL_TOPICS:
            if not spec.by_coordinator:
                detail = "the topic belongs to the broker, which makes it with its own settings"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
            return
        other = self._try_find_collision(name)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} and the topic {other} would share the names of their metrics: "
                "'.' and '_' count as the same",
            )

    def _try_find_collision(self, name: str) -> str | None:
        key = _collision_key(name)
        if "_" not in key:
            return None
        if self._spellings is None:
            names = (*INTERNAL_TOPICS, *self._image.topics, *self._made)
            self._spellings = {_collision_key(one): one for one in names}
        return self._spellings.get(key)

    def _placed_replicas(self, spec: TopicSpec) -> Steps[tuple[tuple[int, ...], ...]]:
        partitions, factor = spec.partitions, spec.replication_factor
        if partitions == _DEFAULT:
            partitions = self._config.num_partitions
        if factor == _DEFAULT:
            factor = self._config.default_replication_factor
        if partitions < 1:
            detail = f"{partitions} partitions; at least 1, or -1 for the default"
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, detail)
        if factor < 1:
            detail = f"{factor} replicas; at least 1, or -1 for the default"
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
        return (yield from self._place(partitions, factor))

    def _place(self, partitions: int, factor: int) -> Steps[tuple[tuple[int, ...], ...]]:
        if factor > len(self._load):
            detail = f"{factor} replicas need as many brokers; {len(self._load)} can take some"
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
        self._check_count(partitions)
        replicas = yield from place(
            self._image.brokers, self._load, partitions=partitions, replication_factor=factor
        )
        return self._kept(replicas)

    def _chosen_replicas(self, spec: TopicSpec) -> tuple[tuple[int, ...], ...]:
        if spec.partitions != _DEFAULT or spec.replication_factor != _DEFAULT:
            detail = "give either assignments or numbers of partitions and replicas"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
        if sorted(spec.assignments) != list(range(len(spec.assignments))):
            detail = "partitions are numbered from 0 without gaps"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        ordered = [spec.assignments[index] for index in range(len(spec.assignments))]
        return self._check_assignments(ordered, len(ordered[0]))

    def _check_assignments(
        self, assignments: Sequence[Sequence[int]], factor: int
    ) -> tuple[tuple[int, ...], ...]:
        self._check_count(len(assignments))
        for replicas in assignments:
            if not replicas or len(replicas) != factor or len(set(replicas)) != len(replicas):
                detail = "every partition needs the same number of replicas, each on its own broker"
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
            unknown = [one for one in replicas if one not in self._load]
            if unknown:
                detail = f"broker {unknown[0]} is not live"
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        chosen = tuple(tuple(one) for one in assignments)
        for one in chosen:
            count_replicas(self._load, one)
        return self._kept(chosen)

    def _check_count(self, partitions: int) -> None:
        if partitions > self._partitions_left:
            detail = f"more than {PARTITIONS_PER_REQUEST_MAX} new partitions in one request"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)

    def _kept(self, replicas: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Count the new partitions, or refuse them and remove their load again."""
        most = self._config.partitions_per_broker_max
        touched = sorted({one for assigned in replicas for one in assigned})
        full = [one for one in touched if self._load[one].replicas > most]
        if full:
            for one in replicas:
                count_replicas(self._load, one, -1)
            detail = f"broker {full[0]} would hold more than {most} partitions"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
        self._partitions_left -= len(replicas)
        return replicas


def _existing(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")
    return topic


def _collision_key(name: str) -> str:
    return name.replace(".", "_")
