"""The APIs of coordinators, asked for something ordinary and for something large."""

from __future__ import annotations

from tests.loop.stage import WIDE, Drive, Stage, as_peer
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated import consumer_group_heartbeat
from tidemill.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tidemill.wire.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.generated.delete_groups import DeleteGroupsRequest
from tidemill.wire.generated.describe_groups import DescribeGroupsRequest
from tidemill.wire.generated.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.generated.end_txn import EndTxnRequest
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest
from tidemill.wire.generated.heartbeat import HeartbeatRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.generated.list_groups import ListGroupsRequest
from tidemill.wire.generated.list_transactions import ListTransactionsRequest
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tidemill.wire.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

GROUPS = 100


async def find_coordinator(stage: Stage) -> None:
    await stage.ask(FindCoordinatorRequest(key="g"), 3)


async def classic_group(stage: Stage) -> None:
    """Join, sync, heartbeat, leave: with a subscription of 100 KB."""
    await find_coordinator(stage)
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(100_000))],
    )
    joined = await stage.ask(join, 3)
    member = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
    plan = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(100_000))
    await stage.ask(SyncGroupRequest(assignments=[plan], **member), 3)
    await stage.ask(HeartbeatRequest(**member), 3)
    await stage.ask(DescribeGroupsRequest(groups=["g"]), 4)
    leaving = [MemberIdentity(member_id=joined.member_id)]
    await stage.ask(LeaveGroupRequest(group_id="g", members=leaving), 3)


async def consumer_group(stage: Stage) -> None:
    """A group of the consumer protocol, subscribed to a wide topic."""
    await stage.create("wide", WIDE)
    await find_coordinator(stage)
    beat = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["wide"],
        topic_partitions=[],
    )
    await stage.ask(beat, 0)
    await stage.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 0)


async def transactions(stage: Stage) -> None:
    """A transaction over a wide topic and the offsets of a group, ended by markers of a broker."""
    await stage.create("wide", WIDE)
    await find_coordinator(stage)
    await stage.ask(FindCoordinatorRequest(key_type=1, key="pay"), 3)
    begun = await stage.ask(
        InitProducerIdRequest(transactional_id="pay", transaction_timeout_ms=60_000), 4
    )
    producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    everywhere = AddPartitionsToTxnTopic(name="wide", partitions=list(range(WIDE)))
    await stage.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="pay",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[everywhere],
        ),
        3,
    )
    named = {"transactional_id": "pay", "group_id": "g"}
    await stage.ask(AddOffsetsToTxnRequest(**named, **producer), 3)
    wanted = [
        TxnOffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in range(WIDE)
    ]
    topics = [TxnOffsetCommitRequestTopic(name="wide", partitions=wanted)]
    await stage.ask(TxnOffsetCommitRequest(topics=topics, **named, **producer), 3)
    await stage.ask(DescribeTransactionsRequest(transactional_ids=["pay"]), 0)
    await stage.ask(EndTxnRequest(transactional_id="pay", committed=True, **producer), 3)
    await stage.ask(ListTransactionsRequest(transactional_id_pattern=".*"), 2)
    await markers(stage)


async def markers(stage: Stage) -> None:
    """Markers of another coordinator, for every partition of a wide topic."""
    everywhere = WritableTxnMarkerTopic(name="wide", partition_indexes=list(range(WIDE)))
    marker = WritableTxnMarker(producer_id=99_999, transaction_result=True, topics=[everywhere])
    async with as_peer(stage) as internal:
        await internal.ask(WriteTxnMarkersRequest(markers=[marker]), 2)


async def offsets(stage: Stage) -> None:
    """Commit, fetch and delete the offsets of a wide topic."""
    await stage.create("wide", WIDE)
    await find_coordinator(stage)
    await commit(stage, "g", WIDE)
    asked = [OffsetFetchRequestTopic(name="wide", partition_indexes=list(range(WIDE)))]
    await stage.ask(OffsetFetchRequest(group_id="g", topics=asked), 7)
    forgotten = [OffsetDeleteRequestPartition(partition_index=i) for i in range(WIDE)]
    topics = [OffsetDeleteRequestTopic(name="wide", partitions=forgotten)]
    await stage.ask(OffsetDeleteRequest(group_id="g", topics=topics), 0)


async def many_groups(stage: Stage) -> None:
    """List and delete many groups at once."""
    await stage.create("wide", WIDE)
    await find_coordinator(stage)
    names = [f"g{number}" for number in range(GROUPS)]
    for name in names:
        await commit(stage, name, 1)
    await stage.ask(ListGroupsRequest(), 4)
    await stage.ask(DescribeGroupsRequest(groups=names), 4)
    await stage.ask(DeleteGroupsRequest(groups_names=names), 2)


async def commit(stage: Stage, group: str, partitions: int) -> None:
    wanted = [
        OffsetCommitRequestPartition(partition_index=i, committed_offset=1)
        for i in range(partitions)
    ]
    topics = [OffsetCommitRequestTopic(name="wide", partitions=wanted)]
    await stage.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)


COORDINATORS: dict[str, tuple[Drive, tuple[ApiKey, ...]]] = {
    "find coordinator": (find_coordinator, (ApiKey.FIND_COORDINATOR,)),
    "classic group": (
        classic_group,
        (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP),
    ),
    "consumer group": (
        consumer_group,
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
    ),
    "offsets": (offsets, (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE)),
    "transactions": (
        transactions,
        (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.END_TXN,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
        ),
    ),
    "many groups": (
        many_groups,
        (ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS),
    ),
}
"""What is done, and which APIs that covers."""
