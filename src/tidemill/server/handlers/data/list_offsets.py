"""ListOffsets (2), versions 1..11: where a partition begins and ends, and the offset of a time.

v1 one offset and its time; v2 isolation level; v4 leader epochs; v5 OFFSET_NOT_AVAILABLE,
LEADER_NOT_AVAILABLE before; v6 flexible; v7 the greatest timestamp (-3); v8 earliest local (-4); v9
latest tiered (-5); v10 a timeout; v11 earliest pending upload (-6).

"Latest" is the high watermark, or the last stable offset for read_committed; a follower gets the
log end. A new leader may know a lower high watermark than its predecessor announced. Until its
watermark has reached the start of its own epoch it does not name an end, so that no offset ever
goes back (KIP-207).

The search for a time goes record by record and may read and decompress batches, so it runs in a
thread.

Of a view, times are those of the records that it shows (`view_times`); the ends are its base's.

There is no tiered storage: "earliest local" is the log start, the other two are unknown (T39).
Left out: the timeout, which is for remote storage; asking a follower (replica id -2).
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.replication.partition import Partition
from tidemill.server.handlers.data.view_times import ViewTimes
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.partition_access import (
    PARTITIONS_PER_SLICE,
    count_refusal,
    find_led_partition,
)
from tidemill.storage.log.interface import PartitionLog, TimedOffset
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import NO_TIMESTAMP
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

__all__ = ["HANDLER"]

FIRST_WITH_LEADER_EPOCH = 4
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class SpecialTimestamp(IntEnum):
    """Negative timestamps that name a place in the log."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


_FIRST_VERSION: dict[int, int] = {
    SpecialTimestamp.LATEST: 1,
    SpecialTimestamp.EARLIEST: 1,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}


def handle(context: DataContext, request: ListOffsetsRequest) -> Answer:
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no such isolation level")
    if request.replica_id >= 0 and not context.allows(Operation.CLUSTER_ACTION, cluster()):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _list_offsets(context, request)


async def _list_offsets(context: DataContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    pacer = Pacer(PARTITIONS_PER_SLICE)
    view_times = ViewTimes(context)
    for wanted_topic in request.topics:
        answered = ListOffsetsTopicResponse(name=wanted_topic.name)
        response.topics.append(answered)
        for wanted in wanted_topic.partitions:
            await pacer.step()
            entry = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            answered.partitions.append(entry)
            try:
                found = await _try_find(context, request, wanted_topic.name, wanted, view_times)
            except (KafkaError, StorageFault) as error:
                entry.error_code = count_refusal(context, error)
            else:
                _fill(entry, found, context.version)
    return response


def _fill(entry: ListOffsetsPartitionResponse, found: TimedOffset | None, version: int) -> None:
    if found is None:
        return
    entry.offset = found.offset
    entry.timestamp = found.timestamp_ms
    if version >= FIRST_WITH_LEADER_EPOCH:
        entry.leader_epoch = found.leader_epoch


async def _try_find(
    context: DataContext,
    request: ListOffsetsRequest,
    name: str,
    wanted: ListOffsetsPartition,
    view_times: ViewTimes,
) -> TimedOffset | None:
    """The offset that was asked for; None if there is no such record, which is not an error."""
    timestamp, version = wanted.timestamp, context.version
    if timestamp < 0 and version < _FIRST_VERSION.get(timestamp, version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    partition = find_led_partition(context, Operation.DESCRIBE, name, wanted.partition_index)
    partition.check_epoch(wanted.current_leader_epoch)
    log = partition.log
    end_offset = _end_offset(partition, request)
    match timestamp:
        case SpecialTimestamp.EARLIEST | SpecialTimestamp.EARLIEST_LOCAL:
            start = log.log_start_offset
            return TimedOffset(start, NO_TIMESTAMP, log.epochs.epoch_at(start))
        case SpecialTimestamp.LATEST_TIERED | SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
            return None
        case SpecialTimestamp.LATEST:
            _check_end_known(partition, request, version)
            return TimedOffset(end_offset, NO_TIMESTAMP, partition.leader_epoch)
        case SpecialTimestamp.MAX_TIMESTAMP:
            _check_end_known(partition, request, version)
    view = context.image.topic(name)
    if view is not None and view.is_view:
        found = await _try_find_shown(view_times, view, partition, timestamp, end_offset)
    else:
        found = await context.services.disk.run(
            partial(_try_find_stored, log, timestamp, end_offset)
        )
    if found is None:
        _check_end_known(partition, request, version)
    return found


async def _try_find_shown(
    times: ViewTimes, view: TopicImage, partition: Partition, timestamp: int, end_offset: int
) -> TimedOffset | None:
    if timestamp == SpecialTimestamp.MAX_TIMESTAMP:
        return await times.greatest(view, partition, end_offset=end_offset)
    return await times.first_from(view, partition, timestamp, end_offset=end_offset)


def _try_find_stored(log: PartitionLog, timestamp: int, end_offset: int) -> TimedOffset | None:
    """For `Disk.run`."""
    if timestamp == SpecialTimestamp.MAX_TIMESTAMP:
        return log.max_timestamp(end_offset=end_offset)
    return log.offset_by_time(timestamp, end_offset=end_offset)


def _end_offset(partition: Partition, request: ListOffsetsRequest) -> int:
    if request.replica_id >= 0:
        return partition.log.log_end_offset
    if request.isolation_level == READ_COMMITTED:
        return partition.last_stable_offset()
    return partition.high_watermark


def _check_end_known(partition: Partition, request: ListOffsetsRequest, version: int) -> None:
    """KafkaError while the last leader may have announced a higher end than we know."""
    if request.replica_id >= 0 or partition.high_watermark >= partition.epoch_start_offset:
        return
    if version >= FIRST_WITH_OFFSET_NOT_AVAILABLE:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)


def _refuse(request: ListOffsetsRequest, error: KafkaError) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=wanted.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=one.partition_index, error_code=int(error.code)
                    )
                    for one in wanted.partitions
                ],
            )
            for wanted in request.topics
        ]
    )


HANDLER = Handler(api_key=ApiKey.LIST_OFFSETS, versions=(1, 11), handle=handle, refuse=_refuse)
