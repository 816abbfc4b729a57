"""Group requests to one broker, and the parts of their answers that tests check."""

from __future__ import annotations

from uuid import UUID

from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.generated.delete_groups import DeleteGroupsRequest
from tidemill.wire.generated.list_groups import ListGroupsRequest
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

OFFSETS_TOPIC = "__consumer_offsets"
COMMIT_VERSIONS = range(2, 11)
FETCH_VERSIONS = range(1, 11)
FIRST_WITH_IDS = 10
FIRST_WITH_GROUPS = 8


def commit_request(broker, offset=5, version=9, *, group_id="g", names=("t",), index=0, **fields):
    """The same partition of each topic; topics by id from the version that has ids."""
    topics = []
    for name in names:
        part = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata="m"
        )
        key = {"name": name}
        if version >= FIRST_WITH_IDS:
            topic = broker.image.topic(name)
            key = {"topic_id": UUID(int=404) if topic is None else topic.topic_id}
        topics.append(OffsetCommitRequestTopic(partitions=[part], **key))
    return OffsetCommitRequest(group_id=group_id, topics=topics, **fields)


def commit(broker, offset=5, version=9, **fields):
    """Commit; returns the error codes, one per topic."""
    response = broker.call(commit_request(broker, offset, version, **fields), version)
    return [ErrorCode(topic.partitions[0].error_code) for topic in response.topics]


def fetch_request(broker, version=9, *, groups=("g",), names=("t",), **fields):
    """The first partition of each topic; all topics if `names` is None."""
    if version < FIRST_WITH_GROUPS:
        topics = names and [
            OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in names
        ]
        return OffsetFetchRequest(group_id=groups[0], topics=topics, **fields)
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=group, topics=_topics(broker, version, names))
            for group in groups
        ],
        **fields,
    )


def _topics(broker, version, names):
    if names is None:
        return None
    keys = [{"name": name} for name in names]
    if version >= FIRST_WITH_IDS:
        keys = [{"topic_id": broker.image.topic(name).topic_id} for name in names]
    return [OffsetFetchRequestTopics(partition_indexes=[0], **key) for key in keys]


def fetch(broker, version=9, **fields):
    """Fetch; returns offset, metadata and error code of the first group, one per topic."""
    response = broker.call(fetch_request(broker, version, **fields), version)
    answer = response.groups[0] if version >= FIRST_WITH_GROUPS else response
    return [
        (entry.committed_offset, entry.metadata, ErrorCode(entry.error_code))
        for topic in answer.topics
        for entry in topic.partitions
    ]


def delete_groups(broker, *names, version=2):
    response = broker.call(DeleteGroupsRequest(groups_names=list(names)), version)
    return {one.group_id: ErrorCode(one.error_code) for one in response.results}


def list_groups(broker, version=5, **filters):
    response = broker.call(ListGroupsRequest(**filters), version)
    assert response.error_code == ErrorCode.NONE
    return {one.group_id: one for one in response.groups}


def with_two_groups(broker):
    """A broker with several shards in which groups "a" and "b" have committed."""
    broker.make_topic(OFFSETS_TOPIC, 4)
    broker.make_topic("t")
    commit(broker, 5, group_id="a")
    commit(broker, 6, group_id="b")
    return broker


def coordinate(broker):
    """Make the topics that groups need; the shard of all groups."""
    broker.make_topic(OFFSETS_TOPIC)
    broker.make_topic("t")
    (shard,) = broker.groups.shards()
    return shard


def heartbeat(broker, member_id, *, group_id="g", epoch=0):
    """A heartbeat of the consumer protocol; a first one by default."""
    joining = {
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        "rebalance_timeout_ms": 60_000,
    }
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch, **(joining if not epoch else {})
    )
    return broker.call(request, 1)


def settled_heartbeat(broker, **fields):
    """The answer to a heartbeat long after the last change of the assignment."""
    joined = heartbeat(broker, "m", **fields)
    broker.clock.now_ms += 20_000
    return heartbeat(broker, "m", epoch=joined.member_epoch, **fields)
