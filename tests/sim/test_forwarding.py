"""Requests for the controller, asked of any broker of three."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.sim.replicas import eventually
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.generated import incremental_alter_configs as incremental
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidemill.wire.generated.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidemill.wire.generated.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidemill.wire.generated.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidemill.wire.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

IDS = (0, 1, 2)
TOPIC, BROKER = 2, 4
TIMEOUT_S = 60.0


def run(scenario: Callable[[SimWorld, ClusterClient], Awaitable[None]], **values: object) -> None:
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
            await cluster.refresh([])
            await scenario(world, cluster)

    keys = {key.replace("_", "."): value for key, value in values.items()}
    SimWorld(5, values=keys).run(main)


def others(world: SimWorld) -> list[int]:
    """The brokers that are not the controller."""
    return [one for one in IDS if not world.broker(one).cluster.is_controller]


def create(name: str) -> CreateTopicsRequest:
    wanted = CreatableTopic(name=name, num_partitions=2, replication_factor=3)
    return CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)


def test_T22_whoever_creates_a_topic_at_any_broker_finds_it_there_at_once():
    async def scenario(world: SimWorld, cluster: ClusterClient) -> None:
        for broker_id in others(world):
            name = f"by-{broker_id}"
            made = await cluster.ask_broker(broker_id, create(name), CreateTopicsResponse)
            assert [one.error_code for one in made.topics] == [ErrorCode.NONE]
            found = world.broker(broker_id).cluster.image.topics[name]
            assert made.topics[0].topic_id == found.topic_id
            again = await cluster.ask_broker(broker_id, create(name), CreateTopicsResponse)
            assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS

    run(scenario)


def test_partitions_configs_and_deletions_are_passed_on_too():
    async def scenario(world: SimWorld, cluster: ClusterClient) -> None:
        asked = others(world)[0]
        image = world.broker(asked).cluster
        await cluster.ask_broker(asked, create("t"), CreateTopicsResponse)
        wider = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=5, assignments=None)]
        )
        grown = await cluster.ask_broker(asked, wider, CreatePartitionsResponse)
        assert [(one.error_code, one.error_message) for one in grown.results] == [(0, None)]
        assert len(image.image.topics["t"].partitions) == 5
        keys = [incremental.AlterableConfig(name="retention.ms", value="7")]
        own = [incremental.AlterableConfig(name="log.retention.ms", value="9")]
        bad = [incremental.AlterableConfig(name="log.retention.ms", value="nine")]
        resources = [
            incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=keys),
            incremental.AlterConfigsResource(
                resource_type=BROKER, resource_name=str(asked), configs=own
            ),
            incremental.AlterConfigsResource(resource_type=BROKER, configs=bad),
        ]
        answer = await cluster.ask_broker(
            asked,
            incremental.IncrementalAlterConfigsRequest(resources=resources),
            incremental.IncrementalAlterConfigsResponse,
        )
        codes = [one.error_code for one in answer.responses]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_CONFIG]
        assert image.image.topics["t"].config.retention_ms == 7
        assert image.live.current.topic_defaults.log_retention_ms == 9
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
        await cluster.ask_broker(asked, gone, DeleteTopicsResponse)
        assert not image.image.topics

    run(scenario)


def test_metadata_and_groups_create_their_topics_at_any_broker():
    async def scenario(world: SimWorld, cluster: ClusterClient) -> None:
        first, second = others(world)
        wanted = MetadataRequest(
            topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
        )
        found = await cluster.ask_broker(first, wanted, MetadataResponse)
        assert [one.error_code for one in found.topics] == [ErrorCode.NONE]
        looked_up = FindCoordinatorRequest(coordinator_keys=["g"])
        answer = await cluster.ask_broker(second, looked_up, FindCoordinatorResponse)
        assert answer.coordinators[0].error_code == ErrorCode.NONE

    run(scenario, auto_create_topics_enable="true")


def test_a_request_waits_for_the_next_controller_if_there_is_none():
    async def scenario(world: SimWorld, cluster: ClusterClient) -> None:
        asked = others(world)[0]
        (controller,) = set(IDS) - set(others(world))
        world.session(controller).expire()
        made = await cluster.ask_broker(asked, create("t"), CreateTopicsResponse)
        assert made.topics[0].error_code == ErrorCode.NONE
        brokers = [world.broker(one).cluster for one in IDS]
        await eventually(lambda: all("t" in one.image.topics for one in brokers))

    run(scenario)


def test_a_controller_that_does_not_answer_leaves_the_outcome_open():
    async def scenario(world: SimWorld, cluster: ClusterClient) -> None:
        asked = others(world)[0]
        (controller,) = set(IDS) - set(others(world))
        await cluster.ask_broker(asked, create("first"), CreateTopicsResponse)
        await asyncio.sleep(1.0)
        world.net.isolate(f"broker-{controller}", [f"broker-{asked}"])
        connection = await cluster.connection(asked)
        answer = await connection.request(create("t"), CreateTopicsResponse, timeout_s=TIMEOUT_S)
        assert answer.topics[0].error_code in {
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_CONTROLLER,
        }

    run(scenario)


def test_T22_a_topic_that_was_made_at_one_broker_is_known_at_all_of_them_at_once():
    async def scenario(world: SimWorld, cluster: ClusterClient) -> None:
        for number in range(10):
            await cluster.ask_controller(create(f"t{number}"), CreateTopicsResponse)
            for broker_id in others(world):
                wanted = MetadataRequest(topics=[MetadataRequestTopic(name=f"t{number}")])
                found = await cluster.ask_broker(broker_id, wanted, MetadataResponse)
                assert found.topics[0].error_code == ErrorCode.NONE
            await asyncio.sleep(0.1)

    run(scenario, auto_create_topics_enable="false")
