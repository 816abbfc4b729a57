"""TxnOffsetCommit in the terms of OffsetCommit: who may commit, and the answer."""

from __future__ import annotations

from tidemill.coordinators.group.base.group import CommitIdentity, Group
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

__all__ = ["answer_of", "check_group", "plain_request"]


def check_group(group: Group, request: TxnOffsetCommitRequest, now: Now) -> None:
    """KafkaError unless the sender is a member of this generation (KIP-447), or names none.

    Before version 3 a producer cannot name its member: its transactional id alone fences it.
    """
    who = CommitIdentity(request.member_id, request.generation_id, request.group_instance_id)
    if who.generation < 0 and not who.member_id and not who.instance_id:
        return
    try:
        group.check_commit(who, plain_request(request).topics, now)
    except KafkaError as error:
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            return  # a member of this generation: what it read before may still be committed
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.detail) from error
        raise


def plain_request(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """The same offsets, as a commit outside of transactions names them."""
    return OffsetCommitRequest(
        group_id=request.group_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=one.partition_index,
                        committed_offset=one.committed_offset,
                        committed_leader_epoch=one.committed_leader_epoch,
                        committed_metadata=one.committed_metadata,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def answer_of(response: OffsetCommitResponse) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=one.error_code
                    )
                    for one in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )
