"""`spark.readStream.format("tidemill")`: the driver's side of a stream.

Theory of operation. Spark keeps one process with one `StreamReader` for each source of a query, and
calls it in turn: where does the stream begin, how far can the next batch go, which tasks are there
between two offsets. Offsets are the JSON of `offset_json`.

*Beginning.* `initialOffset` is called more than once, and "latest" moves: it is resolved once and
kept. After a crash in the first batch it is called in a new process; `offset_json` says how that
batch still begins where it began.

*Next batch.* An idle query calls `latestOffset` a hundred times a second. So it waits: a Fetch at
the ends of the partitions lies at the broker until something comes (`_tail`), and `latestOffset`
returns what it was given when nothing has come within `_WAIT_S`. Only then, or when an answer has
come, are the ends asked for. SubscribedPartitions and topic ids are looked at once a second.

*Loss.* An end never goes back: a leader that was just chosen may know less than the one before it.
If it stays so, or if a topic was deleted or made anew, that is `DataLoss`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemill.client.consuming.consumer import Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.clock import SystemClock
from tidemill.core.errors import KafkaError, UserError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SystemRng
from tidemill.spark.bridge.blocking_client import BlockingClient, RetryLimits
from tidemill.spark.options.offset_json import PartitionOffsets, QueryOffset
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.options.start_positions import LATEST, PlaceKind, Places
from tidemill.spark.source.admission import TriggerLimits, admit, waiting_offsets
from tidemill.spark.source.data_loss import DataLoss
from tidemill.spark.source.group_progress import GroupProgress
from tidemill.spark.source.input_task import InputTask
from tidemill.spark.source.log_sizes import estimated_bytes
from tidemill.spark.source.planning import OffsetRange, plan_tasks
from tidemill.spark.source.positions import (
    SubscribedPartitions,
    earliest_offsets,
    latest_offsets,
    resolve_places,
    resolve_subscription,
)
from tidemill.spark.source.range_reading import address_of, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]

_log = logging.getLogger(__name__)

_WAIT_S: Final = 0.2
"""How long `latestOffset` waits for something new. A query may have other sources to look at."""
_TAIL_WAIT_MS: Final = 1_000
"""How long the Fetch lies at the broker; it outlives calls of `latestOffset`."""
_BACKWARDS_S: Final = 30.0
"""How long an end may lie before what was read."""
_FIXED_KINDS: Final = frozenset({PlaceKind.EARLIEST, PlaceKind.OFFSET})
"""Places that mean the same after a restart."""


@final
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of one query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise UserError(f"{options.ending.option} is for batches: a stream has no end")
        self._options = options
        self._schema = schema
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tasks get options and schema; what the driver knows stays there."""
        return {"_options": self._options, "_schema": self._schema, "_driver": None}

    def initialOffset(self) -> dict[str, object]:
        return self._on_driver().initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limits are our own options; anything but ReadAllAvailable says that they count."""
        limits = (self._options.trigger_offsets_max, self._options.trigger_bytes_max)
        if limits == (None, None) and self._options.trigger_offsets_min is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.trigger_offsets_max or (1 << 62))

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        is_limited = not isinstance(limit, ReadAllAvailable)
        found = self._on_driver().next_offset(QueryOffset.from_json(start), is_limited=is_limited)
        return start if found is None else found.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:
        known = self._on_driver().known_ends
        return QueryOffset(known).to_json() if known else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().fix_target()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        tasks = self._on_driver().plan(QueryOffset.from_json(start), QueryOffset.from_json(end))
        return [InputTask(task) for task in tasks] or [InputTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, InputTask)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_ranges(partition.ranges, self._options, schema)

    def commit(self, end: dict[str, object]) -> None:
        self._on_driver().commit(QueryOffset.from_json(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def _on_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver


@final
class _Driver:
    """What the driver's process knows of the stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._client = BlockingClient(address_of(options))
        self._retry_limits = RetryLimits(
            options.poll_timeout_ms, options.offset_retries, options.offset_retry_interval_ms
        )
        self._progress = GroupProgress(self._client, enabled=options.commit_offsets)
        self._tail = Consumer(
            self._client.new_cluster(),
            max_wait_ms=_TAIL_WAIT_MS,
            fetch_bytes_max=1,
            partition_bytes_max=1,
            retry_s=options.poll_timeout_ms / 1000,
            isolation_level=options.isolation_level,
            read_ahead=False,
        )
        self._initial: QueryOffset | None = None
        self._group: str | None = options.group_id
        self._covered: SubscribedPartitions | None = None
        self._covered_at = 0.0
        self._target: PartitionOffsets | None = None
        """With Trigger.AvailableNow: where the query ends."""
        self._last_batch_at = self._clock.monotonic()
        self._backwards_since: float | None = None
        self._last_loss = ""
        self.known_ends: PartitionOffsets = {}
        """The ends that were last seen, for reports."""

    def close(self) -> None:
        self._client.close()

    # --- the beginning ---------------------------------------------------------------------------

    def initial_offset(self) -> QueryOffset:
        if self._initial is None:
            self._initial = self._client.run(self._resolve_initial, self._retry_limits)
            if self._options.group_id is not None and not self._start_is_fixed():
                self._progress.commit_start(self._options.group_id, self._initial.positions)
        return self._initial

    async def _resolve_initial(self, cluster: ClusterClient) -> QueryOffset:
        covered = await resolve_subscription(cluster, self._options.subscription)
        covered.check_complete()
        positions = await resolve_places(
            cluster,
            covered.partitions,
            self._options.starting or Places(LATEST),
            now_ms=self._clock.wall_ms(),
            group=self._options.group_id,
            isolation_level=self._options.isolation_level,
        )
        if self._options.group_id is not None and not self._start_is_fixed():
            positions |= await self._progress.known_start(
                cluster, self._options.group_id, list(covered.partitions)
            )
        return QueryOffset(positions, covered.topic_ids, self._private_group(), initial=True)

    def _start_is_fixed(self) -> bool:
        places = self._options.starting or Places(LATEST)
        kinds = {place.kind for place in places.by_partition.values()}
        if places.for_all is not None:
            kinds.add(places.for_all.kind)
        return kinds <= _FIXED_KINDS

    def _private_group(self) -> str | None:
        """A group of the query's own, kept in its offsets; none if the user has named one."""
        if self._options.group_id is not None or not self._options.commit_offsets:
            return None
        if self._group is None:
            self._group = f"{self._options.group_id_prefix}-{SystemRng().uuid()}"
        return self._group

    # --- the next batch --------------------------------------------------------------------------

    def next_offset(self, begun: QueryOffset, *, is_limited: bool) -> QueryOffset | None:
        """Where the next batch ends; None if there is nothing for one yet."""
        self._adopt(begun)
        found = self._wait_for_next(begun, is_limited)
        if not begun.initial:
            self._progress.commit(self._group_of(begun), begun.positions, is_idle=found is None)
        return found

    def _wait_for_next(self, begun: QueryOffset, is_limited: bool) -> QueryOffset | None:
        waits = self._target is None and self._covered is not None
        has_news = self._has_news(begun) if waits else True
        if not has_news and not self._topics_are_due():
            return None
        found = self._client.run(
            lambda cluster: self._next(cluster, begun, is_limited), self._retry_limits
        )
        if found is None and has_news and self._target is None:
            self._client.pause(_WAIT_S)  # too little yet: Spark asks again at once
        return found

    def fix_target(self) -> None:
        async def ends(cluster: ClusterClient) -> PartitionOffsets:
            covered = await resolve_subscription(cluster, self._options.subscription)
            return await latest_offsets(cluster, covered.partitions, self._options.isolation_level)

        self._target = self._client.run(ends, self._retry_limits)

    def commit(self, end: QueryOffset) -> None:
        self._adopt(end)
        self._progress.commit(self._group_of(end), end.positions, is_idle=False)

    def _adopt(self, offset: QueryOffset) -> None:
        """A checkpoint knows the query's group better than we do."""
        if offset.group is not None and self._options.group_id is None:
            self._group = offset.group

    def _group_of(self, offset: QueryOffset) -> str:
        return self._options.group_id or offset.group or self._private_group() or ""

    def _has_news(self, begun: QueryOffset) -> bool:
        """Whether something lies behind what was read; waits up to `_WAIT_S` for it."""
        covered = self._covered
        self._tail.positions = {
            p: position
            for p, position in begun.positions.items()
            if covered is None or p in covered.partitions
        }
        try:
            return bool(self._client.run_once(self._tail.poll_batches(_WAIT_S)))
        except KafkaError:
            return True  # out of range, or worse: `_next` looks, and knows what to say

    async def _next(
        self, cluster: ClusterClient, begun: QueryOffset, is_limited: bool
    ) -> QueryOffset | None:
        covered = await self._look_at_topics(cluster)
        fresh = self._fresh_partitions(begun, covered)
        starts = await earliest_offsets(cluster, fresh) if fresh else {}
        if begun.initial:
            starts |= {p: begun.positions[p] for p in covered.partitions if p in begun.positions}
        positions = {
            p: starts[p] if p in starts else begun.positions[p] for p in covered.partitions
        }
        ends = await self._ends(cluster, positions)
        limits = self._limits(is_limited)
        waiting = waiting_offsets(positions, ends)
        if not (waiting or fresh) or self._is_too_early(waiting, limits):
            return None
        sizes = None
        if limits.bytes_max is not None:
            ranges = {p: (positions[p], ends[p]) for p in ends if ends[p] > positions[p]}
            sizes = await estimated_bytes(cluster, ranges)
        self._last_batch_at = self._clock.monotonic()
        return QueryOffset(
            admit(positions, ends, limits, sizes),
            covered.topic_ids,
            self._private_group(),
            starts,
        )

    async def _look_at_topics(self, cluster: ClusterClient) -> SubscribedPartitions:
        if self._covered is None or self._topics_are_due():
            self._covered = await resolve_subscription(cluster, self._options.subscription)
            self._covered_at = self._clock.monotonic()
        return self._covered

    def _topics_are_due(self) -> bool:
        age_ms = (self._clock.monotonic() - self._covered_at) * 1000
        return age_ms >= self._options.metadata_ttl_ms

    def _fresh_partitions(
        self, begun: QueryOffset, covered: SubscribedPartitions
    ) -> list[TopicPartition]:
        """New partitions, and those of new topics. DataLoss if a known partition is missing."""
        gone = sorted(begun.positions.keys() - set(covered.partitions))
        if gone:
            self._lose(f"{gone[0]} does not exist any more: what was not read of it is gone")
        anew = {
            topic
            for topic, topic_id in covered.topic_ids.items()
            if begun.topic_ids.get(topic, topic_id) != topic_id
        }
        if anew:
            self._lose(f"topic {min(anew)} was deleted and made anew: what was not read is gone")
        return [p for p in covered.partitions if p not in begun.positions or p.topic in anew]

    async def _ends(
        self, cluster: ClusterClient, positions: Mapping[TopicPartition, int]
    ) -> PartitionOffsets:
        if self._target is not None:
            ends = {p: self._target.get(p, position) for p, position in positions.items()}
        else:
            ends = await latest_offsets(cluster, positions, self._options.isolation_level)
        self.known_ends = ends
        behind = sorted(p for p, end in ends.items() if end < positions[p])
        self._watch_backwards(behind, positions, ends)
        return {p: max(end, positions[p]) for p, end in ends.items()}

    def _watch_backwards(
        self,
        behind: list[TopicPartition],
        positions: Mapping[TopicPartition, int],
        ends: PartitionOffsets,
    ) -> None:
        if not behind:
            self._backwards_since = None
            return
        now = self._clock.monotonic()
        if self._backwards_since is None:
            self._backwards_since = now
        if now - self._backwards_since > _BACKWARDS_S:
            first = behind[0]
            self._backwards_since = None
            self._lose(f"{first} ends at {ends[first]}, before {positions[first]}, which was read")

    def _limits(self, is_limited: bool) -> TriggerLimits:
        if not is_limited:
            return TriggerLimits()
        options = self._options
        offsets_min = options.trigger_offsets_min if self._target is None else None
        return TriggerLimits(
            options.trigger_offsets_max,
            options.trigger_bytes_max,
            offsets_min,
            options.trigger_delay_max_ms,
        )

    def _is_too_early(self, waiting: int, limits: TriggerLimits) -> bool:
        if limits.offsets_min is None or waiting >= limits.offsets_min:
            return False
        waited_ms = (self._clock.monotonic() - self._last_batch_at) * 1000
        return waited_ms < limits.delay_max_ms

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(what)
        if self._last_loss != what:
            _log.warning("%s; going on", what)
        self._last_loss = what

    # --- tasks -----------------------------------------------------------------------------------

    def plan(self, start: QueryOffset, end: QueryOffset) -> list[tuple[OffsetRange, ...]]:
        bounds = {p: (start.start_of(p, end), stop) for p, stop in end.positions.items()}
        bounds = {p: (begin, stop) for p, (begin, stop) in bounds.items() if begin < stop}
        sizes = self._client.run(
            lambda cluster: estimated_bytes(cluster, bounds), self._retry_limits
        )
        ranges = [
            OffsetRange(p, begin, stop, end.topic_ids.get(p.topic), sizes[p])
            for p, (begin, stop) in bounds.items()
        ]
        return plan_tasks(
            ranges,
            partitions_min=self._options.partitions_min,
            partition_records_max=self._options.partition_records_max,
        )
