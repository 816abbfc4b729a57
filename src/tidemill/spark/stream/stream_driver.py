"""The driver's side of a stream: its beginning, its batches and their tasks.

*Beginning.* `initialOffset` is called more than once, and "latest" moves: it is resolved once and
kept. After a crash in the first batch it is called in a new process; `offset_json` describes how
that batch keeps its start.

*Next batch.* An idle query calls `latestOffset` a hundred times a second, so the call waits: a
Fetch at the ends of the partitions is parked at the broker (`tail_watch`). If nothing comes within
`_WAIT_S`, `latestOffset` returns the offset that it was given. The ends are requested only after
something came, or when the topics are due for their check once a second.

*Loss.* `topic_watch` finds topics that are gone, `end_watch` records that are. What may pass by
itself is waited for; a run with Trigger.AvailableNow does not end before that is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tidemill.client.consuming.consumer import Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import list_offsets
from tidemill.core.clock import SystemClock
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SystemRng
from tidemill.spark.bridge.blocking_client import BlockingClient, RetryLimits
from tidemill.spark.options.offset_json import PartitionOffsets, QueryOffset
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.options.start_positions import LATEST, Places
from tidemill.spark.source.admission import TriggerLimits, admit, waiting_offsets
from tidemill.spark.source.data_loss import LossReport
from tidemill.spark.source.log_sizes import LogSizes
from tidemill.spark.source.planning import OffsetRange, plan_tasks
from tidemill.spark.source.positions import (
    earliest_offsets,
    resolve_places,
    resolve_subscription,
)
from tidemill.spark.source.range_reading import address_of
from tidemill.spark.stream.end_watch import EndWatch
from tidemill.spark.stream.group_progress import GroupProgress
from tidemill.spark.stream.tail_watch import TailWatch
from tidemill.spark.stream.time_admission import admit_by_time
from tidemill.spark.stream.topic_watch import CoveredTopics, TopicWatch

__all__ = ["StreamDriver"]

_WAIT_S: Final = 0.2
"""How long `latestOffset` waits for new data. The query may have other sources to ask."""
_TAIL_WAIT_MS: Final = 1_000
"""How long the Fetch is parked at the broker; it outlives calls of `latestOffset`."""


@final
class StreamDriver:
    """The state of the stream in the driver's process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._client = BlockingClient(address_of(options))
        self._retry_limits = RetryLimits(
            options.poll_timeout_ms, options.offset_retries, options.offset_retry_interval_ms
        )
        self._progress = GroupProgress(self._client, enabled=options.commit_offsets)
        self._tail = TailWatch(self._tail_consumer(), self._clock)
        self._losses = LossReport(fail=options.fail_on_data_loss)
        self._topics = TopicWatch(options, self._losses, self._clock)
        self._ends = EndWatch(options, self._losses, self._clock)
        self._sizes = LogSizes()
        self._initial: QueryOffset | None = None
        self._group: str | None = options.group_id
        self._last_batch_at = self._clock.monotonic()

    def _tail_consumer(self) -> Consumer:
        return Consumer(
            self._client.new_cluster(),
            max_wait_ms=_TAIL_WAIT_MS,
            fetch_bytes_max=1,
            partition_bytes_max=1,
            retry_s=self._options.poll_timeout_ms / 1000,
            isolation_level=self._options.isolation_level,
            read_ahead=False,
        )

    @property
    def known_ends(self) -> PartitionOffsets:
        """The last known ends, for Spark's reports."""
        return {partition: end.offset for partition, end in self._ends.listed.items()}

    def close(self) -> None:
        self._client.close()

    # --- the beginning ---------------------------------------------------------------------------

    def initial_offset(self) -> QueryOffset:
        if self._initial is None:
            self._initial = self._client.run(self._resolve_initial, self._retry_limits)
            if (group := self._remembering_group()) is not None:
                self._progress.commit_start(group, self._initial.positions)
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
        if (group := self._remembering_group()) is not None:
            wanted = list(covered.partitions)
            positions |= await self._progress.committed_start(cluster, group, wanted)
        return QueryOffset(positions, covered.topic_ids, self._private_group(), initial=True)

    def _remembering_group(self) -> str | None:
        """The group that keeps the start of a query until its first batch is logged.

        A start that the user has named is not kept: Spark does not tell us the checkpoint, so the
        one of an earlier query would override what the user asks for now.
        """
        return self._options.group_id if self._options.starting is None else None

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
        waits = not self._ends.has_target and self._topics.last is not None
        has_new_data = self._has_new_data(start) if waits else True
        if not has_new_data and not self._topics.is_due:
            return None
        found = self._ask_for_next(start, is_limited)
        while found is None and self._ends.has_target and self._may_lose_records():
            self._client.pause(_WAIT_S)
            found = self._ask_for_next(start, is_limited)
        if found is None and has_new_data and not self._ends.has_target:
            self._client.pause(_WAIT_S)  # too little data: Spark would ask again at once
        return found

    def _ask_for_next(self, start: QueryOffset, is_limited: bool) -> QueryOffset | None:
        return self._client.run(
            lambda cluster: self._next(cluster, start, is_limited), self._retry_limits
        )

    def _may_lose_records(self) -> bool:
        """Whether there is a sign of loss that is not decided yet; `PATIENCE_S` bounds it."""
        return self._topics.may_pass or self._ends.may_pass

    def fix_target(self) -> None:
        self._client.run(self._ends.fix_target, self._retry_limits)

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
        covered = self._topics.last
        known = set() if covered is None else set(covered.partitions)
        positions = {p: position for p, position in start.positions.items() if p in known}
        try:
            fetched = self._client.run_once(self._tail.wait(positions, _WAIT_S))
        except KafkaError:
            return True  # for example out of range: `_next` finds and reports the cause
        for piece in fetched:
            self._sizes.observe(piece)
        return bool(fetched)

    async def _next(
        self, cluster: ClusterClient, start: QueryOffset, is_limited: bool
    ) -> QueryOffset | None:
        covered = await self._topics.covered(cluster, start)
        continued = start.epochs.keys() - set(covered.fresh)
        known_epochs = {p: start.epochs[p] for p in sorted(continued)}
        starts = await self._new_starts(cluster, start, covered, known_epochs)
        positions = {
            p: starts[p] if p in starts else start.positions[p] for p in covered.partitions
        }
        ends = await self._ends.ends(cluster, positions)
        limits = self._limits(is_limited)
        waiting = waiting_offsets(positions, ends)
        if not (waiting or covered.fresh) or self._is_too_early(waiting, limits):
            return None
        admitted = await self._admit(cluster, positions, ends, limits)
        self._last_batch_at = self._clock.monotonic()
        after = admitted | covered.missing
        epochs = known_epochs | self._ends.epochs(admitted)
        return QueryOffset(
            after,
            covered.topic_ids,
            self._private_group(),
            starts | (covered.missing if start.initial else {}),
            epochs={p: epoch for p, epoch in epochs.items() if p in after},
        )

    async def _admit(
        self,
        cluster: ClusterClient,
        positions: PartitionOffsets,
        ends: PartitionOffsets,
        limits: TriggerLimits,
    ) -> PartitionOffsets:
        """Where the batch ends: as far as the limits allow; with alignTimestamps, at one time."""
        waiting = {p: (positions[p], ends[p]) for p in ends if ends[p] > positions[p]}
        sizes: dict[TopicPartition, int] = {}
        if limits.bytes_max is not None:
            sizes = await self._sizes.estimate(cluster, waiting)
        shared = admit(positions, ends, limits, sizes)
        if shared == ends or len(waiting) < 2 or not self._options.align_timestamps:
            return shared
        heads_ms = await self._sizes.head_times(cluster, {p: positions[p] for p in waiting})
        now_ms = self._clock.wall_ms()
        steps = admit_by_time(positions, ends, limits, sizes, heads_ms=heads_ms, now_ms=now_ms)
        try:
            time_ms = next(steps)
            while True:
                time_ms = steps.send(await self._offsets_at(cluster, waiting, time_ms))
        except StopIteration as done:
            result: PartitionOffsets = done.value
            return result

    async def _offsets_at(
        self,
        cluster: ClusterClient,
        waiting: Mapping[TopicPartition, tuple[int, int]],
        time_ms: int,
    ) -> PartitionOffsets:
        found = await list_offsets(
            cluster,
            dict.fromkeys(waiting, time_ms),
            isolation_level=self._options.isolation_level,
        )
        return {p: at.offset if at.offset >= 0 else waiting[p][1] for p, at in found.items()}

    async def _new_starts(
        self,
        cluster: ClusterClient,
        start: QueryOffset,
        covered: CoveredTopics,
        known_epochs: PartitionOffsets,
    ) -> PartitionOffsets:
        """Where partitions begin that do not simply continue at their position in `start`."""
        starts = await earliest_offsets(cluster, covered.fresh) if covered.fresh else {}
        if start.initial:
            known = set(covered.partitions) - starts.keys()
            return starts | {p: start.positions[p] for p in known}
        present = {p: known_epochs[p] for p in covered.partitions if p in known_epochs}
        return starts | await self._ends.cut_off(cluster, present, start.positions)

    def _limits(self, is_limited: bool) -> TriggerLimits:
        if not is_limited:
            return TriggerLimits()
        options = self._options
        offsets_min = None if self._ends.has_target else options.trigger_offsets_min
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

    # --- tasks -----------------------------------------------------------------------------------

    def plan(self, start: QueryOffset, end: QueryOffset) -> list[tuple[OffsetRange, ...]]:
        if start.initial and (group := self._remembering_group()) is not None:
            # The batch is logged with its start: the group need not keep it for a restart, and
            # must not keep it for another query.
            self._progress.commit(group, end.starts, is_idle=True)
        bounds = {p: (start.start_of(p, end), stop) for p, stop in end.positions.items()}
        bounds = {p: (begin, stop) for p, (begin, stop) in bounds.items() if begin < stop}
        sizes = self._client.run(
            lambda cluster: self._sizes.estimate(cluster, bounds), self._retry_limits
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
