"""The regular expressions that members of one consumer group subscribe with, and their topics.

A member may name topics, or send one regular expression, or both. The coordinator evaluates the
expression over the names of all topics (KIP-848, S37) and subscribes the member to what matches.
Members with the same expression share its result. The result is hard state: it is in the log, so
that the next coordinator assigns the same partitions before it has evaluated anything.

Evaluation is bounded work. The matcher does one slice per call. What a heartbeat leaves over is
continued by a deadline of the group, milliseconds later, so that everything else gets its turn;
until the end the members keep the topics of the last result.

An evaluation that was begun ends, over the topics of that time, whatever other groups and later
topics do; then the topics that came meanwhile follow.

Topics that come and go make the results stale. The next heartbeat of any member evaluates them
again, for the topics that its sender may see, as in Kafka. The matcher remembers its results, so
this costs the evaluation of the new names, once for all groups with this expression.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import final

from tidemill.coordinators.group.base.group import (
    DeadlineKey,
    DeadlineKind,
    ShardContext,
    TopicSearch,
)
from tidemill.coordinators.group.base.records import encode_record, encode_tombstone
from tidemill.coordinators.group.consumer.records import VERSION, MemberMetadata
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    CONSUMER_PATTERNS_MAX,
    CONSUMER_SUBSCRIPTION_CHARS_MAX,
    PATTERN_PAUSE_MS,
)
from tidemill.wire.generated.consumer_group_regular_expression_record import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)

__all__ = ["PatternTopics", "TopicPatterns", "subscription_of", "with_matches"]

PatternTopics = Mapping[str, tuple[str, ...]]
"""The topics of each pattern, sorted."""

SeesTopic = Callable[[str], bool]
"""Whether the sender of a heartbeat may see a topic."""


@final
class _Evaluation:
    """All patterns of a group over the topics of one image, as far as it is: soft state."""

    __slots__ = ("matched", "search", "topics")

    def __init__(self, topics: Mapping[str, object]) -> None:
        self.topics = topics
        self.matched: dict[str, tuple[str, ...]] = {}
        """By pattern, whoever may see the topics."""
        self.search: TopicSearch | None = None
        """Of the pattern that is not evaluated to its end; held here so that it goes on."""


@final
class TopicPatterns:
    """The patterns of one group; only replay changes the topics that they stand for."""

    def __init__(self, group_id: str, context: ShardContext) -> None:
        self._group_id = group_id
        self._context = context
        self._topics: dict[str, tuple[str, ...]] = {}
        """By pattern; a pattern that was never evaluated to its end is not here."""
        self._names: frozenset[str] | None = None
        """All these topics; None: to be collected."""
        self._unfinished: SeesTopic | None = None
        """Soft state: an evaluation goes on after the heartbeat that began it, on whose behalf."""
        self._evaluation: _Evaluation | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether some patterns are not evaluated over the newest topics yet."""
        return self._unfinished is not None

    def match(self, topic: str) -> bool:
        """Whether one of the patterns stands for the topic."""
        if self._names is None:
            self._names = frozenset(chain.from_iterable(self._topics.values()))
        return topic in self._names

    def check(self, pattern: str | None, used: Collection[str]) -> None:
        """INVALID_REGULAR_EXPRESSION if a member cannot subscribe with this pattern."""
        if not pattern or pattern in used:
            return
        if len(used) >= CONSUMER_PATTERNS_MAX:
            raise _invalid(f"the group has {CONSUMER_PATTERNS_MAX} regular expressions already")
        self._context.matcher.check(pattern)

    def topics_of(self, used: Collection[str]) -> PatternTopics:
        """The topics of these patterns, as the log has them."""
        return {pattern: self._topics.get(pattern, ()) for pattern in used}

    def evaluate(
        self,
        used: Collection[str],
        sees_topic: SeesTopic,
        *,
        own: str | None = None,
        now: Now,
        records: list[CoordinatorRecord],
    ) -> PatternTopics:
        """The topics of these patterns among the newest, and records of those that changed.

        Patterns that need more than a slice, or that match too much, keep their topics. If the
        sender's own matches too much and has none yet: INVALID_REGULAR_EXPRESSION. Later it would
        end all consumers with this pattern when a topic is created.
        """
        self._unfinished = None
        newest = self._context.image.topics
        evaluation = self._evaluation = self._evaluation or _Evaluation(newest)
        found = dict(self.topics_of(used))
        for pattern in found:
            matched = self._try_match(pattern, evaluation)
            if matched is None:
                self._go_on_later(sees_topic, now)
                return found
            topics = tuple(filter(sees_topic, matched))
            if _fits(topics, refuse=pattern == own and pattern not in self._topics):
                found[pattern] = topics
                if topics != self._topics.get(pattern):
                    records.append(self._record(pattern, topics, now))
        self._evaluation = None
        if found and evaluation.topics is not newest:
            self._go_on_later(sees_topic, now)
        return found

    def evaluate_more(
        self, used: Collection[str], *, now: Now, records: list[CoordinatorRecord]
    ) -> PatternTopics:
        """Continue what the last heartbeat left over."""
        if self._unfinished is None:
            return self.topics_of(used)
        return self.evaluate(used, self._unfinished, now=now, records=records)

    def _go_on_later(self, sees_topic: SeesTopic, now: Now) -> None:
        self._unfinished = sees_topic
        self.postpone(now)

    def postpone(self, now: Now) -> None:
        """Continue the evaluation after a pause."""
        key = DeadlineKey(self._group_id, DeadlineKind.PATTERNS)
        self._context.deadlines.set(key, now.monotonic_ms + PATTERN_PAUSE_MS)

    def _try_match(self, pattern: str, evaluation: _Evaluation) -> tuple[str, ...] | None:
        matched = evaluation.matched.get(pattern)
        if matched is not None:
            return matched
        try:
            search = self._context.matcher.try_search(pattern)
        except KafkaError:
            # The broker that accepted it had another engine: what the log has stays.
            return self._topics.get(pattern, ())
        matched = None if search is None else search.try_match(evaluation.topics)
        if matched is None:
            evaluation.search = search or evaluation.search
        else:
            evaluation.matched[pattern] = matched
        return matched

    # --- records ---------------------------------------------------------------------------------

    def _record(self, pattern: str, topics: tuple[str, ...], now: Now) -> CoordinatorRecord:
        # The version is Kafka's number of the image; Tidemill compares the topics instead.
        value = ConsumerGroupRegularExpressionValue(topics=list(topics), timestamp=now.wall_ms)
        return encode_record(self._key(pattern), value, VERSION)

    def tombstones(self, *, used: Collection[str] = ()) -> list[CoordinatorRecord]:
        """Records that delete all patterns but those that are used."""
        return [
            encode_tombstone(self._key(pattern)) for pattern in self._topics if pattern not in used
        ]

    def _key(self, pattern: str) -> ConsumerGroupRegularExpressionKey:
        return ConsumerGroupRegularExpressionKey(
            group_id=self._group_id, regular_expression=pattern
        )

    def replay(self, pattern: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        self._names = None
        if value is None:
            self._topics.pop(pattern, None)
        else:
            self._topics[pattern] = tuple(sorted(value.topics))


def subscription_of(metadata: MemberMetadata, patterns: PatternTopics) -> MemberMetadata:
    """The metadata with all topics of the member: those it names, and those that match."""
    if metadata.pattern is None:
        return metadata
    topics = patterns.get(metadata.pattern, ())
    if metadata.topics:
        topics = tuple(sorted({*metadata.topics, *topics}))
    return metadata._replace(topics=topics)


def with_matches(names: list[str], patterns: PatternTopics) -> list[str]:
    """The named topics and those that match, sorted."""
    return sorted({*names, *chain.from_iterable(patterns.values())}) if patterns else names


def _fits(topics: tuple[str, ...], *, refuse: bool) -> bool:
    """Whether a member may have so many topics; the same limit as for named ones (S41)."""
    chars, limit = sum(map(len, topics)), CONSUMER_SUBSCRIPTION_CHARS_MAX
    if chars > limit and refuse:
        detail = f"it matches topics whose names have {chars} characters, at most {limit}"
        raise _invalid(f"the regular expression is too wide: {detail}")
    return chars <= limit


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
