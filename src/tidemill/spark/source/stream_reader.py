"""`spark.readStream.format("tidemill")`: the driver's side of a stream.

Theory of operation. Spark keeps one process with one `StreamReader` for each source of a query. It
asks in turn where the stream begins, how far the next batch can go, and which tasks there are
between two offsets. Offsets are the JSON of `offset_json`.

*Beginning.* `initialOffset` is called more than once, and "latest" moves: it is resolved once and
kept. After a crash in the first batch it is called in a new process; `offset_json` describes how
that batch keeps its start.

*Next batch.* An idle query calls `latestOffset` a hundred times a second, so the call waits: a
Fetch at the ends of the partitions is parked at the broker (`_tail`). If it is not answered within
`_WAIT_S`, `latestOffset` returns the offset that it was given. The ends are requested only after an
answer, or when the topics are due for their check once a second.

*Loss.* An end never goes back: a newly elected leader may know less than the previous one. If an
end stays behind, or if a topic was deleted or created again, that is `DataLoss`.
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
    offsets_at,
    resolve_places,
    resolve_subscription,
)
from tidemill.spark.source.range_reading import address_of, read_ranges
from tidemill.spark.source.time_alignment import admit_by_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]

_log = logging.getLogger(__name__)

_WAIT_S: Final = 0.2
"""How long `latestOffset` waits for new data. The query may have other sources to ask."""
_TAIL_WAIT_MS: Final = 1_000
"""How long the Fetch is parked at the broker; it outlives calls of `latestOffset`."""
_BEHIND_S_MAX: Final = 30.0
"""How long an end may be below the position that was read."""
_AHEAD_MS: Final = 3_600_000
"""How far records may be ahead of the clock and still be aligned."""
_FIXED_KINDS: Final = frozenset({PlaceKind.EARLIEST, PlaceKind.OFFSET})
"""Places that resolve to the same offsets after a restart."""


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
        """Tasks get options and schema; the driver's state stays in the driver."""
        return {"_options": self._options, "_schema": self._schema, "_driver": None}

    def initialOffset(self) -> dict[str, object]:
        return self._on_driver().initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Our options hold the limits; any value but ReadAllAvailable makes them apply."""
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
    """The state of the stream in the driver's process."""

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
        self._behind_since: float | None = None
        self._last_loss = ""
        self._aligned_at_ms = 0
        """No batch has to look for its end at an earlier time."""
        self.known_ends: PartitionOffsets = {}
        """The last known ends, for Spark's reports."""

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
            positions |= await self._progress.committed_start(
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
        """A group made for this query and kept in its offsets; None if the user has named one."""
        if self._options.group_id is not None or not self._options.commit_offsets:
            return None
        if self._group is None:
            self._group = f"{self._options.group_id_prefix}-{SystemRng().uuid()}"
        return self._group

    # --- the next batch --------------------------------------------------------------------------

    def next_offset(self, start: QueryOffset, *, is_limited: bool) -> QueryOffset | None:
        """Where the next batch ends; None if there is no data for one yet."""
        self._adopt_group(start)
        found = self._wait_for_next(start, is_limited)
        if not start.initial:
            self._progress.commit(self._group_of(start), start.positions, is_idle=found is None)
        return found

    def _wait_for_next(self, start: QueryOffset, is_limited: bool) -> QueryOffset | None:
        waits = self._target is None and self._covered is not None
        has_new_data = self._has_new_data(start) if waits else True
        if not has_new_data and not self._topics_are_due():
            return None
        found = self._client.run(
            lambda cluster: self._next(cluster, start, is_limited), self._retry_limits
        )
        if found is None and has_new_data and self._target is None:
            self._client.pause(_WAIT_S)  # too little data: Spark would ask again at once
        return found

    def fix_target(self) -> None:
        async def ends(cluster: ClusterClient) -> PartitionOffsets:
            covered = await resolve_subscription(cluster, self._options.subscription)
            return await latest_offsets(cluster, covered.partitions, self._options.isolation_level)

        self._target = self._client.run(ends, self._retry_limits)

    def commit(self, end: QueryOffset) -> None:
        self._adopt_group(end)
        self._progress.commit(self._group_of(end), end.positions, is_idle=False)

    def _adopt_group(self, offset: QueryOffset) -> None:
        """Take over the query's group from its checkpoint."""
        if offset.group is not None and self._options.group_id is None:
            self._group = offset.group

    def _group_of(self, offset: QueryOffset) -> str:
        return self._options.group_id or offset.group or self._private_group() or ""

    def _has_new_data(self, start: QueryOffset) -> bool:
        """Whether there are records beyond those read; waits up to `_WAIT_S` for them."""
        covered = self._covered
        self._tail.positions = {
            p: position
            for p, position in start.positions.items()
            if covered is None or p in covered.partitions
        }
        try:
            return bool(self._client.run_once(self._tail.poll_batches(_WAIT_S)))
        except KafkaError:
            return True  # for example out of range: `_next` finds and reports the cause

    async def _next(
        self, cluster: ClusterClient, start: QueryOffset, is_limited: bool
    ) -> QueryOffset | None:
        covered = await self._refresh_topics(cluster)
        fresh = self._fresh_partitions(start, covered)
        starts = await earliest_offsets(cluster, fresh) if fresh else {}
        if start.initial:
            starts |= {p: start.positions[p] for p in covered.partitions if p in start.positions}
        positions = {
            p: starts[p] if p in starts else start.positions[p] for p in covered.partitions
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
        if self._is_aligned(waiting, limits):
            admitted = await self._admit_by_time(cluster, positions, ends, limits.offsets_max or 1)
        else:
            admitted = admit(positions, ends, limits, sizes)
        return QueryOffset(
            admitted,
            covered.topic_ids,
            self._private_group(),
            starts,
        )

    def _is_aligned(self, waiting: int, limits: TriggerLimits) -> bool:
        is_backlog = limits.offsets_max is not None and waiting > limits.offsets_max
        return self._options.align_timestamps and is_backlog and limits.bytes_max is None

    async def _admit_by_time(
        self,
        cluster: ClusterClient,
        positions: PartitionOffsets,
        ends: PartitionOffsets,
        offsets_max: int,
    ) -> PartitionOffsets:
        level = self._options.isolation_level
        batch = await admit_by_time(
            lambda time_ms: offsets_at(cluster, ends, time_ms, level),
            positions,
            ends,
            offsets_max=offsets_max,
            times_ms=range(self._aligned_at_ms, self._clock.wall_ms() + _AHEAD_MS),
        )
        self._aligned_at_ms = batch.time_ms
        return batch.ends

    async def _refresh_topics(self, cluster: ClusterClient) -> SubscribedPartitions:
        if self._covered is None or self._topics_are_due():
            self._covered = await resolve_subscription(cluster, self._options.subscription)
            self._covered_at = self._clock.monotonic()
        return self._covered

    def _topics_are_due(self) -> bool:
        age_ms = (self._clock.monotonic() - self._covered_at) * 1000
        return age_ms >= self._options.metadata_ttl_ms

    def _fresh_partitions(
        self, start: QueryOffset, covered: SubscribedPartitions
    ) -> list[TopicPartition]:
        """New partitions, and those of new topics. DataLoss if a known partition is missing."""
        gone = sorted(start.positions.keys() - set(covered.partitions))
        if gone:
            self._report_loss(f"{gone[0]} no longer exists: its unread records are gone")
        recreated = {
            topic
            for topic, topic_id in covered.topic_ids.items()
            if start.topic_ids.get(topic, topic_id) != topic_id
        }
        if recreated:
            self._report_loss(
                f"topic {min(recreated)} was deleted and created again: its unread records are gone"
            )
        return [p for p in covered.partitions if p not in start.positions or p.topic in recreated]

    async def _ends(
        self, cluster: ClusterClient, positions: Mapping[TopicPartition, int]
    ) -> PartitionOffsets:
        if self._target is not None:
            ends = {p: self._target.get(p, position) for p, position in positions.items()}
        else:
            ends = await latest_offsets(cluster, positions, self._options.isolation_level)
        self.known_ends = ends
        behind = sorted(p for p, end in ends.items() if end < positions[p])
        self._check_regression(behind, positions, ends)
        return {p: max(end, positions[p]) for p, end in ends.items()}

    def _check_regression(
        self,
        behind: list[TopicPartition],
        positions: Mapping[TopicPartition, int],
        ends: PartitionOffsets,
    ) -> None:
        if not behind:
            self._behind_since = None
            return
        now = self._clock.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        if now - self._behind_since > _BEHIND_S_MAX:
            first = behind[0]
            self._behind_since = None
            self._report_loss(
                f"{first} ends at {ends[first]}, before {positions[first]}, which was read"
            )

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

    def _report_loss(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(what)
        if self._last_loss != what:
            _log.warning("%s; continuing", what)
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
