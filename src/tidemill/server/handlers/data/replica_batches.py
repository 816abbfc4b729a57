"""ReplicaBatches (10003), version 0: stored batches as they are, for a replica with damage.

Any replica answers, whoever leads and whatever is committed: the replica that asks compares what it
gets with its own log (`storage/rewriting/segment_mend.py`). What is damaged here too is refused,
and mended here as well. Only if this is known does the answer say up to where: a disk that is busy,
or a fault that nobody has looked at, is no reason to give records up. Where the log starts above
what was asked for, the answer begins there.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.server.handlers.data.cold_reads import ColdRead, ColdSlice
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.server.request.partition_access import count_refusal
from tidemill.storage.log.interface import LogSlice
from tidemill.storage.log.log_checks import verify_stored
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import CorruptBatch
from tidemill.wire.generated.fetch import PartitionData
from tidemill.wire.generated.replica_batches import ReplicaBatchesRequest, ReplicaBatchesResponse

__all__ = ["HANDLER"]


def handle(context: DataContext, request: ReplicaBatchesRequest) -> Answer:
    context.require_broker()
    partition = _find(context, request)
    log = partition.log
    offset = max(request.fetch_offset, log.log_start_offset)
    max_bytes = max(0, min(request.max_bytes, context.services.config.current.fetch_max_bytes))
    try:
        found = log.read(offset, max_bytes=max_bytes, end_offset=log.log_end_offset)
    except KafkaError as error:
        damaged = log.damage.try_find(offset)
        if damaged is None:
            raise
        return ReplicaBatchesResponse(
            error_code=count_refusal(context, error), damage_end_offset=damaged.end_offset
        )
    if found.load is not None:
        return _load(context, found)
    try:
        verify_stored(found.chunks, next_offset_max=log.log_end_offset)
    except CorruptBatch:
        log.doubt(offset)
        return ReplicaBatchesResponse(error_code=int(ErrorCode.KAFKA_STORAGE_ERROR))
    return ReplicaBatchesResponse(records=b"".join(found.chunks))


async def _load(context: DataContext, found: LogSlice) -> ReplicaBatchesResponse:
    """A read in a thread checks what it finds, and tells the mender of damage."""
    data = PartitionData()
    await ColdRead(context, [ColdSlice(data, found)]).run()
    return ReplicaBatchesResponse(error_code=data.error_code, records=data.records)


def _find(context: DataContext, request: ReplicaBatchesRequest) -> Partition:
    name = context.image.names.get(request.topic_id)
    partition = None
    if name is not None:
        partition = context.services.replicas.find(name, request.partition_index)
    if partition is None or partition.topic_id != request.topic_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "its log is not open")
    if partition.offline:
        raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "the log directory is offline")
    if partition.as_follower.is_being_cut:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its log is being cut")
    return partition


HANDLER = Handler(
    api_key=ApiKey.REPLICA_BATCHES,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(ReplicaBatchesResponse),
    is_internal=True,
)
