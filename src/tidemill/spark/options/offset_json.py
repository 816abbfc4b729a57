"""The position of a query, as the JSON that Spark keeps in its checkpoint.

    {"logs": {"0": 123, "1": 456}, "_v": {"group": "...", "ids": {"logs": "..."}, "starts": {...}}}

Topics are written as in Spark's Kafka source, so offsets can be copied from its checkpoints. Spark
compares offsets as text, so everything is sorted. Our own fields are under `_v`:

ids      the id of each topic: a topic that was deleted and created again has a new one.
epochs   the epoch of the leader that named the end of each partition: after a change of leader, the
         new one tells whether it has the records up to there. Offsets of older versions have none.
group    the consumer group for progress, if the user did not name one.
starts   where partitions begin that the previous offset did not have, or had to be moved in.
initial  true for the answer of `initialOffset`; absent for the end of a batch.

`starts` closes a gap in Spark's protocol. Spark logs where batch 0 ends, but not where it begins:
after a crash it asks for the initial offset again, and "latest" may have moved. So the end of batch
0 carries its own start, and the planner uses that instead of the initial offset. The same applies
to partitions that appear while a query runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition

__all__ = ["PRIVATE_KEY", "PartitionOffsets", "QueryOffset", "parse_partition_numbers"]

PRIVATE_KEY = "_v"

PartitionOffsets = dict[TopicPartition, int]


@final
@dataclass(frozen=True, slots=True)
class QueryOffset:
    """A position in every partition of a query: `positions` are the next offsets to read."""

    positions: PartitionOffsets
    topic_ids: dict[str, str] = field(default_factory=dict)
    group: str | None = None
    starts: PartitionOffsets = field(default_factory=dict)
    initial: bool = False
    epochs: PartitionOffsets = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """For Spark; equal offsets give equal text."""
        private: dict[str, object] = {}
        if self.epochs:
            private["epochs"] = _nested(self.epochs)
        if self.group is not None:
            private["group"] = self.group
        if self.topic_ids:
            private["ids"] = dict(sorted(self.topic_ids.items()))
        if self.initial:
            private["initial"] = True
        if self.starts:
            private["starts"] = _nested(self.starts)
        result: dict[str, object] = dict(_nested(self.positions))
        if private:
            result[PRIVATE_KEY] = private
        return dict(sorted(result.items()))

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> QueryOffset:
        """An offset of ours or of Spark's Kafka source. UserError if it is neither."""
        private = data.get(PRIVATE_KEY, {})
        if not isinstance(private, Mapping):
            raise UserError(f"the offset's {PRIVATE_KEY!r} is not an object: {private!r}")
        group, ids = private.get("group"), private.get("ids", {})
        starts, epochs = private.get("starts", {}), private.get("epochs", {})
        if not all(isinstance(entry, Mapping) for entry in (ids, starts, epochs)):
            raise UserError(f"the offset's {PRIVATE_KEY!r} is damaged: {private!r}")
        return cls(
            positions=parse_partition_numbers(_public(data), "offset"),
            topic_ids={str(topic): str(topic_id) for topic, topic_id in ids.items()},
            group=None if group is None else str(group),
            starts=parse_partition_numbers(starts, "offset"),
            initial=bool(private.get("initial", False)),
            epochs=parse_partition_numbers(epochs, "epochs"),
        )

    def start_of(self, partition: TopicPartition, end: QueryOffset) -> int:
        """Where the batch from here to `end` begins in one of the partitions of `end`.

        `end` carries the start of a partition that is new, whose topic was created again, or whose
        log was cut off before the position. If this is an initial offset, `end` carries the starts
        of all partitions.
        """
        known = end.starts.get(partition)
        if self.initial:
            return end.positions[partition] if known is None else known
        position = self.positions.get(partition)
        if position is None or self._was_recreated(partition.topic, end):
            return 0 if known is None else known
        return known if known is not None and self._has_new_leader(partition, end) else position

    def _has_new_leader(self, partition: TopicPartition, end: QueryOffset) -> bool:
        before, after = self.epochs.get(partition), end.epochs.get(partition)
        return before is not None and after is not None and before < after

    def _was_recreated(self, topic: str, end: QueryOffset) -> bool:
        before, after = self.topic_ids.get(topic), end.topic_ids.get(topic)
        return before is not None and after is not None and before != after


def parse_partition_numbers(data: object, what: str) -> PartitionOffsets:
    """`{"topic": {"0": 23}}` as an object or as text. UserError says what is wrong with it."""
    if isinstance(data, str):
        try:
            data = json.loads(data)
        except ValueError as error:
            raise UserError(f"{what} is not JSON ({error}): {data}") from None
    wrong = UserError(f'{what} must look like {{"topic": {{"0": 23}}}}, not {data}')
    if not isinstance(data, Mapping):
        raise wrong
    numbers: PartitionOffsets = {}
    for topic, partitions in _public(data).items():
        if not isinstance(partitions, Mapping):
            raise wrong
        for index, number in partitions.items():
            if not (str(index).isdecimal() and isinstance(number, int)):
                raise wrong
            numbers[TopicPartition(topic, int(index))] = number
    return numbers


def _public(data: Mapping[str, object]) -> dict[str, object]:
    return {topic: value for topic, value in data.items() if topic != PRIVATE_KEY}


def _nested(numbers: PartitionOffsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for partition, number in sorted(numbers.items()):
        nested.setdefault(partition.topic, {})[str(partition.partition)] = number
    return nested
