from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_cluster import FIRST_PORT, HANG_UP, HOST, SILENCE, FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import (
    BrokerUnreachable,
    ConnectionClosed,
    ConnectionLost,
    RequestTimedOut,
    WouldBlock,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidemill.wire.generated.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidemill.wire.generated.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.generated.produce import ProduceRequest


async def connect(cluster: FakeCluster, **options) -> BrokerConnection:
    return await BrokerConnection.open(cluster.net, HOST, FIRST_PORT, timeout_s=5, **options)


async def ask(connection: BrokerConnection, timeout_s: float = 5) -> MetadataResponse:
    return await connection.request(
        MetadataRequest(topics=[]), MetadataResponse, timeout_s=timeout_s
    )


def test_a_request_goes_out_at_the_highest_version_that_both_know():
    async def scenario():
        cluster = FakeCluster()
        cluster.brokers[1].version_max[ApiKey.METADATA] = 9
        await ask(await connect(cluster))
        return cluster.brokers[1].versions

    assert run_virtually(scenario()) == [(ApiKey.API_VERSIONS, 4), (ApiKey.METADATA, 9)]


def test_the_caller_may_ask_for_another_version():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        await connection.request(MetadataRequest(), MetadataResponse, timeout_s=5, version=4)
        return cluster.brokers[1].versions[-1]

    assert run_virtually(scenario()) == (ApiKey.METADATA, 4)


@pytest.mark.parametrize("known", [0, 2, 3])
def test_T2_negotiation_falls_back_to_the_version_that_the_broker_names(known):
    async def scenario():
        cluster = FakeCluster()
        cluster.brokers[1].version_max[ApiKey.API_VERSIONS] = known
        response = await ask(await connect(cluster))
        return cluster.brokers[1].versions[:2], response.cluster_id

    versions, cluster_id = run_virtually(scenario())

    assert versions == [(ApiKey.API_VERSIONS, 4), (ApiKey.API_VERSIONS, known)]
    assert cluster_id == "fake"


def test_a_peer_that_names_a_version_that_cannot_be_is_refused():
    """Whatever listens behind a broker's address must not end the one that asks."""

    async def scenario():
        cluster = FakeCluster()
        cluster.brokers[1].version_max[ApiKey.API_VERSIONS] = -1
        with pytest.raises(KafkaError) as refusal:
            await connect(cluster)
        return refusal.value.code

    assert run_virtually(scenario()) is ErrorCode.UNSUPPORTED_VERSION


def test_an_api_that_the_broker_does_not_offer_is_refused_before_it_is_sent():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        with pytest.raises(KafkaError) as refusal:
            await connection.request(FindCoordinatorRequest(), FindCoordinatorResponse, timeout_s=5)
        return refusal.value.code, connection.usable

    assert run_virtually(scenario()) == (ErrorCode.UNSUPPORTED_VERSION, True)


def test_T8_pipelined_answers_reach_their_own_requests():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("a", 1)
        cluster.add_topic("b", 2)
        connection = await connect(cluster)
        futures = [
            connection.request_nowait(
                MetadataRequest(topics=topics), MetadataResponse, timeout_s=5, version=1
            )
            for topics in ([], None, [])
        ]
        return [len((await future).topics) for future in futures]

    assert run_virtually(scenario()) == [0, 2, 0]


def test_T8_an_answer_out_of_order_ends_the_connection():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        cluster.brokers[1].handlers[ApiKey.METADATA] = lambda request, version: SILENCE
        future = connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=5)
        cluster.brokers[1].transports[0].feed(b"\0\0\0\x05\0\0\0\x63\0")
        with pytest.raises(ConnectionLost, match="answer 99 where 1 was due"):
            await future
        return connection.usable

    assert run_virtually(scenario()) is False


def test_T33_bytes_after_the_last_field_of_an_answer_end_the_connection():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        cluster.brokers[1].handlers[ApiKey.METADATA] = lambda request, version: SILENCE
        future = connection.request_nowait(
            MetadataRequest(topics=[]), MetadataResponse, timeout_s=5, version=0
        )
        body = b"\0\0\0\1" + b"\0\0\0\0" + b"\0\0\0\0" + b"!"
        cluster.brokers[1].transports[0].feed(len(body).to_bytes(4, "big") + body)
        with pytest.raises(ConnectionLost, match="1 bytes after the message's end"):
            await future

    run_virtually(scenario())


def test_an_answered_request_does_not_time_out_later():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        await ask(connection, timeout_s=2)
        await asyncio.sleep(60)
        return connection.usable

    assert run_virtually(scenario()) is True


def test_an_answer_without_a_request_ends_the_connection():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        cluster.brokers[1].transports[0].feed(b"\0\0\0\x04\0\0\0\0")
        await asyncio.sleep(1)
        with pytest.raises(ConnectionLost, match="an answer without a request"):
            await ask(connection)

    run_virtually(scenario())


def test_answers_that_arrive_byte_by_byte_are_understood():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("slow", 3)
        connection = await connect(cluster)
        cluster.brokers[1].transports[0].read_bytes_max = 1
        response = await connection.request(
            MetadataRequest(topics=None), MetadataResponse, timeout_s=5
        )
        return len(response.topics[0].partitions)

    assert run_virtually(scenario()) == 3


def test_more_than_the_bound_in_flight_would_block():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster, in_flight_max=2)
        cluster.brokers[1].handlers[ApiKey.METADATA] = lambda request, version: SILENCE
        for _ in range(2):
            connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=5)
        with pytest.raises(WouldBlock):
            connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=5)

    run_virtually(scenario())


def test_a_request_waits_for_room_and_is_then_sent():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster, in_flight_max=1)
        await asyncio.gather(*(ask(connection) for _ in range(5)))
        return len(cluster.asked(ApiKey.METADATA))

    assert run_virtually(scenario()) == 5


def test_a_missing_answer_ends_the_connection_and_all_later_requests():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        cluster.brokers[1].handlers[ApiKey.METADATA] = lambda request, version: SILENCE
        late = connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=60)
        with pytest.raises(RequestTimedOut, match=r"did not answer Metadata within 2 s"):
            await ask(connection, timeout_s=2)
        with pytest.raises(RequestTimedOut):
            await late
        return connection.usable

    assert run_virtually(scenario()) is False


def test_a_peer_that_hangs_up_is_distinguished_from_our_own_close():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        cluster.brokers[1].handlers[ApiKey.METADATA] = lambda request, version: HANG_UP
        with pytest.raises(ConnectionLost, match="the broker closed the connection"):
            await ask(connection)

        mine = await connect(FakeCluster())
        mine.close()
        with pytest.raises(ConnectionClosed):
            await ask(mine)

    run_virtually(scenario())


def test_closing_fails_what_is_in_flight():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        cluster.brokers[1].handlers[ApiKey.METADATA] = lambda request, version: SILENCE
        future = connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=5)
        connection.close()
        with pytest.raises(ConnectionClosed):
            await future

    run_virtually(scenario())


def test_an_answer_to_a_cancelled_request_does_not_disturb_the_next():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=5).cancel()
        return (await ask(connection)).cluster_id

    assert run_virtually(scenario()) == "fake"


def test_a_refused_connection_names_its_address():
    async def scenario():
        with pytest.raises(BrokerUnreachable, match=r"elsewhere:1: Connection refused"):
            await BrokerConnection.open(FakeCluster().net, "elsewhere", 1, timeout_s=5)

    run_virtually(scenario())


def test_a_peer_that_does_not_answer_the_greeting_is_given_up():
    async def scenario():
        cluster = FakeCluster()
        cluster.brokers[1].handlers[ApiKey.API_VERSIONS] = lambda request, version: SILENCE
        with pytest.raises(RequestTimedOut):
            await connect(cluster)

    run_virtually(scenario())


def test_T9_produce_with_acks_0_expects_no_answer():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        await connection.send_unanswered(ProduceRequest(acks=0), version=12)
        await ask(connection)
        return [key for key, _ in cluster.requests]

    assert run_virtually(scenario())[-2:] == [ApiKey.PRODUCE, ApiKey.METADATA]


def test_paused_writing_holds_requests_back_until_the_peer_reads():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        connection.pause_writing()
        with pytest.raises(WouldBlock):
            connection.request_nowait(MetadataRequest(), MetadataResponse, timeout_s=5)
        asyncio.get_running_loop().call_later(3, connection.resume_writing)
        return (await ask(connection)).cluster_id

    assert run_virtually(scenario()) == "fake"


def test_records_of_a_fetch_are_views_into_the_frame_and_not_copies():
    async def scenario():
        cluster = FakeCluster()
        connection = await connect(cluster)
        response = FetchResponse()
        payload = b"r" * 100_000
        response.responses = [
            FetchableTopicResponse(topic="t", partitions=[PartitionData(records=payload)])
        ]
        cluster.brokers[1].handlers[ApiKey.FETCH] = lambda request, version: response
        answer = await connection.request(FetchRequest(), FetchResponse, timeout_s=5, version=12)
        records = answer.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        return bytes(records) == payload, len(records.obj) > len(payload)

    assert run_virtually(scenario()) == (True, True)
