"""A coordination store that fails: every request that needs it is answered with an error code."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, StoreUnavailable
from tidemill.wire.generated import alter_configs, incremental_alter_configs
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidemill.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic

NEW = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
TOPIC = 2
CASES = [
    (CreateTopicsRequest(topics=[NEW]), 7, lambda answer: answer.topics[0]),
    (
        DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]),
        6,
        lambda answer: answer.responses[0],
    ),
    (
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=9, assignments=None)]
        ),
        3,
        lambda answer: answer.results[0],
    ),
    (
        alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=[alter_configs.AlterableConfig(name="retention.ms", value="5")],
                )
            ]
        ),
        2,
        lambda answer: answer.responses[0],
    ),
    (
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=[
                        incremental_alter_configs.AlterableConfig(name="retention.ms", value="5")
                    ],
                )
            ]
        ),
        1,
        lambda answer: answer.responses[0],
    ),
    (
        MetadataRequest(topics=[MetadataRequestTopic(name="new")]),
        12,
        lambda answer: answer.topics[0],
    ),
    (FindCoordinatorRequest(coordinator_keys=["g"]), 6, lambda answer: answer.coordinators[0]),
    (InitProducerIdRequest(transactional_id=None), 5, lambda answer: answer),
]
RETRIABLE = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@pytest.mark.parametrize(
    ("request_", "version", "entry_of"), CASES, ids=[type(case[0]).__name__ for case in CASES]
)
def test_a_store_that_fails_is_answered_with_a_retriable_error(broker, request_, version, entry_of):
    async def fail(*_arguments, **_options):
        raise StoreUnavailable("the disk is full")

    broker.make_topic("t")
    broker.session.multi = broker.session.get = broker.session.children = fail
    entry = entry_of(broker.call(request_, version))
    assert entry.error_code in RETRIABLE
