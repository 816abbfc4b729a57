"""Divides a request by the owners of what it names, and joins their answers. Pure.

The messages of a dozen APIs have the same two shapes: topics with partitions, and lists of names.
Only the names of their fields differ; the tables have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, final
from uuid import UUID

from tidemill.core.ids import ZERO_UUID
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.message import Message

__all__ = [
    "BY_LEADER",
    "BY_NAMES",
    "NamesShape",
    "PartitionsShape",
    "copied",
    "divided_by_leader",
    "divided_by_name",
    "joined",
    "joined_names",
]


@final
class PartitionsShape(NamedTuple):
    """The fields of an API whose requests name partitions of topics."""

    topics: str
    partitions: str
    number: str
    """Of a partition; empty: the partition is its number."""
    answered_topics: str
    answered_partitions: str
    topic: str = "name"


BY_LEADER: dict[ApiKey, PartitionsShape] = {
    ApiKey.PRODUCE: PartitionsShape(
        "topic_data", "partition_data", "index", "responses", "partition_responses"
    ),
    ApiKey.FETCH: PartitionsShape(
        "topics", "partitions", "partition", "responses", "partitions", topic="topic"
    ),
    ApiKey.LIST_OFFSETS: PartitionsShape(
        "topics", "partitions", "partition_index", "topics", "partitions"
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: PartitionsShape(
        "topics", "partitions", "partition", "topics", "partitions", topic="topic"
    ),
    ApiKey.DELETE_RECORDS: PartitionsShape(
        "topics", "partitions", "partition_index", "topics", "partitions"
    ),
    ApiKey.DESCRIBE_PRODUCERS: PartitionsShape(
        "topics", "partition_indexes", "", "topics", "partitions"
    ),
}


@final
class NamesShape(NamedTuple):
    """The fields of an API whose requests list groups or transactional ids."""

    names: str
    name: str
    """Of an entry; empty: the entry is its name."""
    answers: str
    is_transactional: bool = False


BY_NAMES: dict[ApiKey, NamesShape] = {
    ApiKey.DESCRIBE_GROUPS: NamesShape("groups", "", "groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: NamesShape("group_ids", "", "groups"),
    ApiKey.DELETE_GROUPS: NamesShape("groups_names", "", "results"),
    ApiKey.OFFSET_FETCH: NamesShape("groups", "group_id", "groups"),
    ApiKey.DESCRIBE_TRANSACTIONS: NamesShape(
        "transactional_ids", "", "transaction_states", is_transactional=True
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: NamesShape(
        "transactions", "transactional_id", "results_by_transaction", is_transactional=True
    ),
}


def divided_by_leader(
    request: Message, shape: PartitionsShape, leader: Callable[[str, UUID, int], int]
) -> dict[int, Message]:
    """What each owner is asked, in the order of the request."""
    parts: dict[int, Message] = {}
    for topic in getattr(request, shape.topics):
        name, topic_id = getattr(topic, shape.topic), getattr(topic, "topic_id", ZERO_UUID)
        inside: dict[int, Any] = {}
        for one in getattr(topic, shape.partitions):
            owner = leader(name, topic_id, getattr(one, shape.number) if shape.number else one)
            if owner not in inside:
                inside[owner] = copied(topic, **{shape.partitions: []})
            getattr(inside[owner], shape.partitions).append(one)
        for owner, part in inside.items():
            if owner not in parts:
                parts[owner] = copied(request, **{shape.topics: []})
            getattr(parts[owner], shape.topics).append(part)
    return parts


def joined(answers: Iterable[Message], shape: PartitionsShape) -> Message:
    """One answer for all partitions; a topic is in it once. There is at least one answer."""
    first, *others = answers
    topics = getattr(first, shape.answered_topics)
    known = {_topic_key(topic, shape): topic for topic in topics}
    for answer in others:
        _raise_throttle(first, answer)
        for topic in getattr(answer, shape.answered_topics):
            there = known.setdefault(_topic_key(topic, shape), topic)
            if there is topic:
                topics.append(topic)
            else:
                more = getattr(topic, shape.answered_partitions)
                getattr(there, shape.answered_partitions).extend(more)
    return first


def _topic_key(topic: Any, shape: PartitionsShape) -> tuple[str, UUID]:  # noqa: ANN401 - of any API
    return getattr(topic, shape.topic), getattr(topic, "topic_id", ZERO_UUID)


def divided_by_name(
    request: Message, shape: NamesShape, owner: Callable[[str], int]
) -> dict[int, Message]:
    """What each coordinator is asked, in the order of the request. KafkaError of `owner`."""
    parts: dict[int, Message] = {}
    for entry in getattr(request, shape.names):
        found = owner(getattr(entry, shape.name) if shape.name else entry)
        if found not in parts:
            parts[found] = copied(request, **{shape.names: []})
        getattr(parts[found], shape.names).append(entry)
    return parts


def joined_names(answers: Iterable[Message], field: str) -> Message:
    """One answer with the entries of all. There is at least one answer; the first error counts."""
    first, *others = answers
    for answer in others:
        _raise_throttle(first, answer)
        getattr(first, field).extend(getattr(answer, field))
        if not getattr(first, "error_code", 0):
            _adopt_error(first, answer)
    return first


def _adopt_error(into: Any, answer: Any) -> None:  # noqa: ANN401 - of any API
    if hasattr(into, "error_code"):
        into.error_code = answer.error_code


def _raise_throttle(into: Any, answer: Any) -> None:  # noqa: ANN401 - of any API
    into.throttle_time_ms = max(into.throttle_time_ms, answer.throttle_time_ms)


def copied(message: Any, **changes: object) -> Any:  # noqa: ANN401 - a message of the same type
    """The message with other values in some fields; the values of the others are shared."""
    fields: Iterator[str] = iter(type(message).__slots__)
    return type(message)(**{name: changes.get(name, getattr(message, name)) for name in fields})
