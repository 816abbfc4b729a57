"""`spark.read.format("tidemill")`: the records between two places, planned once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.clock import SystemClock
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.bridge.blocking_client import RetryLimits, client_for
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.options.start_positions import EARLIEST, LATEST, PlaceKind, Places
from tidemill.spark.source.filters import ReadBounds
from tidemill.spark.source.input_task import InputTask
from tidemill.spark.source.log_sizes import LogSizes
from tidemill.spark.source.planning import OffsetRange, plan_tasks
from tidemill.spark.source.positions import earliest_offsets, resolve_places, resolve_subscription
from tidemill.spark.source.range_reading import address_of, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "FilteringBatchReader"]


class BatchReader(DataSourceReader):
    """Reads from `startingOffsets` (earliest) to `endingOffsets` (latest)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.starting is not None and options.starting.for_all == LATEST:
            raise UserError("startingOffsets=latest: a batch would have nothing to read")
        self._options = options
        self._schema = schema
        self._bounds = ReadBounds()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        retry_limits = RetryLimits(
            options.poll_timeout_ms, options.offset_retries, options.offset_retry_interval_ms
        )
        ranges = client_for(address_of(options)).run(self._ranges, retry_limits)
        tasks = plan_tasks(
            ranges,
            partitions_min=options.partitions_min,
            partition_records_max=options.partition_records_max,
        )
        return [InputTask(task) for task in tasks] or [InputTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, InputTask)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_ranges(partition.ranges, self._options, schema)

    async def _ranges(self, cluster: ClusterClient) -> list[OffsetRange]:
        options = self._options
        covered = await resolve_subscription(cluster, options.subscription)
        covered.check_complete()
        wanted = [p for p in covered.partitions if self._bounds.may_hold(p)]
        starts = await self._resolve(cluster, wanted, options.starting or Places(EARLIEST))
        stops = await self._resolve(cluster, wanted, options.ending or Places(LATEST))
        starts = await self._bounds.later_starts(cluster, starts, options.isolation_level)
        bounds = {p: self._bounds.clip(starts[p], stops[p]) for p in wanted}
        sizes = await LogSizes().estimate(cluster, {p: b for p, b in bounds.items() if b[0] < b[1]})
        return [
            OffsetRange(p, start, stop, covered.topic_ids[p.topic], sizes.get(p, 0))
            for p, (start, stop) in bounds.items()
        ]

    async def _resolve(
        self, cluster: ClusterClient, partitions: Sequence[TopicPartition], places: Places
    ) -> dict[TopicPartition, int]:
        named = {p: place for p, place in places.by_partition.items() if p in set(partitions)}
        if self._bounds.is_active:
            places = Places(places.for_all, named, places.option, places.late_is_latest)
        found = await resolve_places(
            cluster,
            partitions,
            places,
            now_ms=SystemClock().wall_ms(),
            group=self._options.group_id,
            isolation_level=self._options.isolation_level,
        )
        return await self._within_log(cluster, found, places)

    async def _within_log(
        self, cluster: ClusterClient, found: dict[TopicPartition, int], places: Places
    ) -> dict[TopicPartition, int]:
        """With failOnDataLoss=false, offsets that retention has deleted move to the log's start."""
        if self._options.fail_on_data_loss:
            return found
        exact = [p for p in found if places.of(p).kind is PlaceKind.OFFSET]
        starts = await earliest_offsets(cluster, exact) if exact else {}
        return found | {p: max(found[p], start) for p, start in starts.items()}


class FilteringBatchReader(BatchReader):
    """With `pushdown=true`: filters reduce what is read.

    A separate class, because Spark refuses a reader with `pushFilters` unless the session's
    `spark.sql.python.filterPushdown.enabled` is on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Return all filters: they only bound what is read, and Spark still filters the rows."""
        self._bounds = ReadBounds.from_filters(filters)
        return iter(filters)
