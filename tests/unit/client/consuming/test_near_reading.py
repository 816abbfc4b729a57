"""A consumer with a rack reads from the replica that the leader names (KIP-392)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_cluster import HANG_UP, FakeBroker, FakeCluster
from tests.unit.client.consuming.test_consumer import consumer, read, store
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.consuming.consumer import EARLIEST, Consumer
from tidemill.client.consuming.read_brokers import NEAR_S
from tidemill.core.errors import ErrorCode
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.fetch import FetchRequest, FetchResponse

LEADER, NEAR = 1, 2
RACK = "b"


def fetches(broker: FakeBroker) -> list[FetchRequest]:
    return [request for key, request in broker.requests if key is ApiKey.FETCH]


class Racks:
    """Broker 1 leads and names broker 2, which has the records too."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(brokers=2)
        self.partition = self.cluster.add_topic("t").partitions[0]
        self.leader, self.near = self.cluster.brokers[LEADER], self.cluster.brokers[NEAR]
        self.from_leader = self.leader.handlers[ApiKey.FETCH]
        self.leader.handlers[ApiKey.FETCH] = self.name_near
        self.near.handlers[ApiKey.FETCH] = self.from_leader
        self.refusals = 0

    def name_near(self, request: FetchRequest, version: int) -> FetchResponse:
        answer = self.from_leader(request, version)
        assert isinstance(answer, FetchResponse)
        if request.rack_id == RACK:
            data = answer.responses[0].partitions[0]
            data.records, data.preferred_read_replica = b"", NEAR
        return answer

    def refuse(self, request: FetchRequest, version: int) -> FetchResponse:
        self.refusals += 1
        self.near.handlers[ApiKey.FETCH] = self.from_leader
        answer = self.from_leader(request, version)
        assert isinstance(answer, FetchResponse)
        data = answer.responses[0].partitions[0]
        data.records, data.error_code = b"", ErrorCode.OFFSET_OUT_OF_RANGE
        return answer

    def hang_up(self, request: FetchRequest, version: int) -> object:
        self.refusals += 1
        self.near.handlers[ApiKey.FETCH] = self.from_leader
        return HANG_UP

    async def reading(self) -> Consumer:
        made = consumer(self.cluster, rack=RACK)
        await made.assign("t", EARLIEST)
        return made


def test_F65_records_come_from_the_near_replica_that_the_leader_names():
    racks = Racks()

    async def scenario():
        store(racks.partition, b"a")
        reading = await racks.reading()
        got = await read(reading, 1)
        store(racks.partition, b"b")
        return got + await read(reading, 1)

    assert run_virtually(scenario()) == [(0, 0, b"a"), (0, 1, b"b")]
    assert len(fetches(racks.leader)) == 1
    assert {request.rack_id for request in fetches(racks.near)} == {RACK}


@pytest.mark.parametrize("fault", ["refuse", "hang_up"])
def test_after_a_refusal_or_a_lost_connection_the_leader_decides_again(fault):
    racks = Racks()
    racks.near.handlers[ApiKey.FETCH] = getattr(racks, fault)

    async def scenario():
        store(racks.partition, b"a")
        return await read(await racks.reading(), 1)

    assert run_virtually(scenario()) == [(0, 0, b"a")]
    assert racks.refusals == 1
    assert len(fetches(racks.leader)) == 2


def test_the_leader_is_asked_again_after_a_while():
    racks = Racks()

    async def scenario():
        store(racks.partition, b"a")
        reading = await racks.reading()
        await read(reading, 1)
        await asyncio.sleep(NEAR_S)
        store(racks.partition, b"b")
        return await read(reading, 1)

    assert run_virtually(scenario()) == [(0, 1, b"b")]
    assert len(fetches(racks.leader)) == 2


def test_without_a_rack_the_leader_serves():
    racks = Racks()

    async def scenario():
        store(racks.partition, b"a")
        reading = consumer(racks.cluster)
        await reading.assign("t", EARLIEST)
        return await read(reading, 1)

    assert run_virtually(scenario()) == [(0, 0, b"a")]
    assert fetches(racks.near) == []
