"""The answer waits until the logs of a topic are there, since clients use them at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.server.one_broker import OneBroker
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidemill.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic

TURNS = 50

REQUESTS = {
    "CreateTopics": (
        CreateTopicsRequest(
            topics=[CreatableTopic(name="new", num_partitions=2, replication_factor=1)]
        ),
        7,
    ),
    "CreatePartitions": (
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="old", count=3, assignments=None)]
        ),
        3,
    ),
    "Metadata": (
        MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True),
        9,
    ),
    "FindCoordinator": (FindCoordinatorRequest(coordinator_keys=["g"]), 6),
}


@pytest.fixture
def broker():
    made = OneBroker()
    made.make_topic("old")
    made.logs.withheld = True
    yield made
    made.close()


def make_logs(broker):
    broker.logs.withheld = False
    group = broker.replicas.pending_logs.take(1000)
    broker.replicas.open_made(name for name, _ in group)
    broker.replicas.pending_logs.tried(group)


@pytest.mark.parametrize("api", REQUESTS)
def test_T22_the_answer_waits_until_the_logs_are_created(broker, api):
    async def ask():
        answer, _ = broker.start(*REQUESTS[api])
        asking = asyncio.ensure_future(answer)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        was_done = asking.done()
        make_logs(broker)
        await asking
        return was_done

    assert not broker.run(ask())
    assert len(broker.replicas.pending_logs) == 0


def test_T22_an_answer_does_not_wait_for_a_log_that_cannot_be_created(broker):
    async def ask():
        answer, _ = broker.start(*REQUESTS["CreateTopics"])
        asking = asyncio.ensure_future(answer)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        broker.replicas.pending_logs.tried(broker.replicas.pending_logs.take(1000))
        return await asking

    (made,) = broker.run(ask()).topics
    assert made.error_code == ErrorCode.NONE


def test_a_request_that_comes_while_the_offsets_topic_is_created_waits_too(broker):
    async def ask():
        first, _ = broker.start(*REQUESTS["FindCoordinator"])
        asking = [asyncio.ensure_future(first)]
        while OFFSETS_TOPIC not in broker.image.topics:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        second, _ = broker.start(*REQUESTS["FindCoordinator"])
        asking.append(asyncio.ensure_future(second))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        were_done = [one.done() for one in asking]
        make_logs(broker)
        await asyncio.gather(*asking)
        return were_done

    assert broker.run(ask()) == [False, False]


def test_T16_a_partition_whose_log_is_being_created_is_refused_with_a_retriable_error(broker):
    broker.make_topic("new")
    wanted = ListOffsetsTopic(
        name="new", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    request = ListOffsetsRequest(replica_id=-1, topics=[wanted])
    (answered,) = broker.call(request, 6).topics[0].partitions
    code = ErrorCode(answered.error_code)
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code.retriable
