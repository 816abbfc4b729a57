"""A group shard with a log and a clock, as the runtime would host it, and requests to it."""

from __future__ import annotations

from uuid import UUID

from tests.support.classic_desk import config, subscription
from tidemill.coordinators.group.base.group import Caller
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.group.shard import GroupShard
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import (
    MetadataImage,
    PartitionImage,
    TopicImage,
    difference,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity
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
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidemill.wire.generated.sync_group import SyncGroupRequest

WALL_MS = 1_700_000_000_000
MINUTE_MS = 60_000
RETENTION_MS = 7 * 24 * 60 * MINUTE_MS
CHECK_INTERVAL_MS = 10 * MINUTE_MS
SLICES_MAX = 10_000
NEWEST_COMMIT = 10
NEWEST_FETCH = 10
GROUP = "g"
EMPTY_CLASSIC = ("classic", "Empty")
"""As `listed` has a group without members that is not of the consumer protocol."""
PARTITION = PartitionImage(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))


def topic_image(name, number, partitions=2):
    return TopicImage(
        name=name,
        topic_id=UUID(int=number),
        partitions=(PARTITION,) * partitions,
        config=TopicConfig(),
    )


def image_of(*topics):
    return MetadataImage(
        topics={topic.name: topic for topic in topics},
        names={topic.topic_id: topic.name for topic in topics},
    )


class ShardDesk:
    """Hosts one shard and keeps its log, which can be replayed into another shard."""

    def __init__(self, *topics, limit=None, log=(), **changed):
        self.config = config(**changed)
        self.image = image_of(*(topics or (topic_image("t", 1),)))
        self.now = Now(0, WALL_MS)
        self.log = list(log)
        self.shard = GroupShard(self.config, self.image, limit, matcher=Re2Matcher())
        for key, value in self.log:
            self.shard.replay(key, value)
        self.shard.loaded(self.now)

    def reloaded(self):
        """Another broker takes over at the same time of the clock."""
        other = ShardDesk(*self.image.topics.values(), log=self.log)
        other.now = self.now
        return other

    def pass_time(self, ms):
        self.now = Now(self.now.monotonic_ms + ms, self.now.wall_ms + ms)
        self.settle()

    def settle(self):
        """Run `expire` until nothing is due; return the records of each slice."""
        slices = []
        while (due := self.shard.next_deadline_ms()) is not None and due <= self.now.monotonic_ms:
            result = self.shard.expire(self.now)
            self.take(result)
            slices.append(result.records)
            assert len(slices) < SLICES_MAX, "deadlines keep firing"
        return slices

    def change_topics(self, *topics):
        before, self.image = self.image, image_of(*topics)
        self.take(self.shard.metadata_changed(difference(before, self.image), self.now))
        self.settle()

    def take(self, result):
        """Append and replay as the runtime does; return the response."""
        self.log += result.records
        for key, value in result.records:
            self.shard.replay(key, value)
        for parked, response in result.replies:
            parked.resolve(response)
        answer = result.response
        return value_of(answer) if isinstance(answer, Deferred) else answer

    # --- offsets ---------------------------------------------------------------------------------

    def commit(self, offset=5, *, version=NEWEST_COMMIT - 1, **fields):
        """Commit one partition; return its error code."""
        response = self.take(
            self.shard.offsets.commit(
                commit_request(offset, **fields), version=version, now=self.now
            )
        )
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def committed(self, topic="t", index=0, *, group_id=GROUP):
        """The offset as a consumer sees it."""
        return (
            self.fetch(topic, [index], group_id=group_id).topics[0].partitions[0].committed_offset
        )

    def fetch(self, topic="t", indexes=(0,), *, group_id=GROUP, **fields):
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes))]
        return self.fetch_topics(topics, group_id=group_id, **fields)

    def fetch_topics(self, topics, *, group_id=GROUP, version=NEWEST_FETCH - 1, **fields):
        wanted = OffsetFetchRequestGroup(group_id=group_id, topics=topics, **fields)
        return self.shard.offsets.fetch(wanted, version=version)

    def delete_offsets(self, topic="t", *indexes, group_id=GROUP):
        partitions = [OffsetDeleteRequestPartition(partition_index=one) for one in indexes or (0,)]
        topics = [OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        request = OffsetDeleteRequest(group_id=group_id, topics=topics)
        response = self.take(self.shard.offsets.delete(request))
        return [ErrorCode(one.error_code) for one in response.topics[0].partitions]

    # --- groups ----------------------------------------------------------------------------------

    def join(self, group_id=GROUP, *, topic="t", protocol_type="consumer", member_id=""):
        """A classic member joins and syncs; return its JoinGroup answer."""
        protocol = JoinGroupRequestProtocol(name="range", metadata=subscription(topic))
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type=protocol_type,
            protocols=[protocol],
        )
        caller = Caller("client", "/192.0.2.1", f"member-of-{group_id}")
        result = self.shard.join(request, caller, version=3, now=self.now)
        joined = self.take(result)
        if joined is None:
            self.settle()
            joined = value_of(result.response)
        if joined.error_code:
            return joined
        self.take(
            self.shard.sync(
                SyncGroupRequest(
                    group_id=group_id,
                    generation_id=joined.generation_id,
                    member_id=joined.member_id,
                ),
                now=self.now,
            )
        )
        return joined

    def leave(self, member_id, group_id=GROUP):
        request = LeaveGroupRequest(
            group_id=group_id, members=[MemberIdentity(member_id=member_id)]
        )
        return self.take(self.shard.leave(request, version=3, now=self.now))

    def heartbeat(
        self, group_id=GROUP, *, member_id="m", epoch=0, topics=("t",), owned=None, **fields
    ):
        """Send one heartbeat of the consumer protocol; `owned` are partitions of topic 1."""
        if owned is not None:
            owned = [RequestTopicPartitions(topic_id=UUID(int=1), partitions=owned)]
        request = ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            subscribed_topic_names=list(topics) if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else owned,
            **fields,
        )
        caller = Caller("client", "/192.0.2.1", "fresh")
        return self.take(self.shard.consumer_heartbeat(request, caller, version=1, now=self.now))

    def listed(self, states=(), types=()):
        return {
            one.group_id: (one.group_type, one.group_state)
            for one in self.shard.list_groups(states, types)
        }

    def delete_group(self, group_id=GROUP):
        return ErrorCode(self.take(self.shard.delete_group(group_id)).error_code)


def commit_request(
    offset=5, *, group_id=GROUP, topic="t", index=0, metadata="", epoch=-1, generation=-1, member=""
):
    partition = OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        committed_metadata=metadata,
    )
    name = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequestTopic(partitions=[partition], **name)],
    )


def value_of(answer):
    values = []
    if answer.resolved:
        answer.then(values.append)
    return values[0] if values else None


def refusal(attempt, *args, **fields):
    """The code of a refusal; fails if the request is not refused."""
    try:
        attempt(*args, **fields)
    except KafkaError as error:
        return error.code
    raise AssertionError("the request was not refused")
