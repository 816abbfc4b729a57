from __future__ import annotations

import pytest

from tests.support.fake_cluster import HANG_UP, SILENCE, FakeCluster
from tests.support.fake_groups import FakeGroups, FakeMember
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.admin.group_admin import GroupAdmin
from tidemill.client.admin.group_description import describe_group
from tidemill.client.admin.group_offsets import GroupOffsets, OffsetAndMetadata
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.records import Record, build_batch

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class World:
    """A cluster in memory with the topic `orders` of two partitions, and clients of it."""

    def __init__(self, brokers: int = 1) -> None:
        self.cluster = FakeCluster(brokers)
        self.groups = FakeGroups(self.cluster)
        self.topic = self.cluster.add_topic("orders", 2)

    def client(self) -> ClusterClient:
        return ClusterClient(self.cluster.net, self.cluster.bootstrap)

    def fill(self, partition: int, records: int) -> None:
        batch = build_batch([Record(b"r")] * records)
        self.topic.partitions[partition].append(bytes(batch))


def test_the_list_is_the_sum_of_what_all_brokers_coordinate():
    world = World(brokers=3)
    for name, broker in (("c", 1), ("a", 3), ("b", 2)):
        world.groups.add(name, coordinator=broker, state="Stable", kind="consumer")

    async def scenario():
        return await GroupAdmin(world.client()).list_groups()

    listed = run_virtually(scenario())
    assert [(g.group_id, g.coordinator) for g in listed] == [("a", 3), ("b", 2), ("c", 1)]
    assert (listed[0].kind, listed[0].state) == ("consumer", "Stable")


def test_a_list_waits_for_coordinators_that_still_load():
    world = World()
    world.groups.add("g")
    world.groups.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3

    async def scenario():
        return [g.group_id for g in await GroupAdmin(world.client()).list_groups()]

    assert run_virtually(scenario()) == ["g"]


@pytest.mark.parametrize(("kind", "assignor"), [("classic", "range"), ("consumer", "uniform")])
def test_T44_both_kinds_of_groups_are_described_alike(kind, assignor):
    world = World()
    members = [FakeMember("m2", [SECOND]), FakeMember("m1", [FIRST], instance_id="left")]
    world.groups.add("g", kind=kind, state="Stable", members=members)

    async def scenario():
        return await describe_group(world.client(), "g")

    described = run_virtually(scenario())
    assert (described.kind, described.state, described.assignor) == (kind, "Stable", assignor)
    facts = [(m.member_id, m.instance_id, m.host, m.assignment) for m in described.members]
    assert facts == [("m1", "left", "10.0.0.1", (FIRST,)), ("m2", None, "10.0.0.1", (SECOND,))]


def test_a_broker_without_the_consumer_protocol_describes_classic_groups():
    world = World()
    world.groups.add("g", state="Stable")
    del world.cluster.brokers[1].handlers[ApiKey.CONSUMER_GROUP_DESCRIBE]

    async def scenario():
        return (await describe_group(world.client(), "g")).kind

    assert run_virtually(scenario()) == "classic"


@pytest.mark.parametrize("version", [5, 6])
def test_an_unknown_group_is_not_found_by_any_broker(version):
    world = World()
    world.cluster.brokers[1].version_max[ApiKey.DESCRIBE_GROUPS] = version

    async def scenario():
        await describe_group(world.client(), "absent")

    with pytest.raises(KafkaError) as refused:
        run_virtually(scenario())
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x01\x7f\xff\xff\xff", b"\xff\xff\x01"])
def test_an_assignment_that_cannot_be_read_counts_as_none(raw):
    world = World()
    world.groups.add("g", state="Stable", members=[FakeMember("m", raw_assignment=raw)])

    async def scenario():
        return (await describe_group(world.client(), "g")).members[0].assignment

    assert run_virtually(scenario()) == ()


def test_F54_requests_go_to_the_coordinator_and_follow_it():
    world = World(brokers=3)
    group = world.groups.add("g", coordinator=2, committed={FIRST: 5})

    async def scenario():
        offsets = GroupOffsets(world.client(), "g")
        before = await offsets.fetch([FIRST])
        group.coordinator = 3
        return before, await offsets.fetch([FIRST])

    assert run_virtually(scenario()) == ({FIRST: OffsetAndMetadata(5, "")},) * 2
    asked = [ApiKey.OFFSET_FETCH in dict(b.requests) for b in world.cluster.brokers.values()]
    assert asked == [False, True, True]


@pytest.mark.parametrize("reaction", [HANG_UP, SILENCE])
def test_F54_after_the_loss_of_a_coordinator_the_group_is_looked_up_again(reaction):
    world = World(brokers=3)
    group = world.groups.add("g", coordinator=2, committed={FIRST: 5})

    async def scenario():
        offsets = GroupOffsets(world.client(), "g")
        await offsets.fetch([FIRST])
        world.cluster.brokers[2].handlers[ApiKey.OFFSET_FETCH] = lambda *_: reaction
        group.coordinator = 3
        with pytest.raises(ClientError):
            await offsets.fetch([FIRST])
        return await offsets.fetch([FIRST])

    assert run_virtually(scenario()) == {FIRST: OffsetAndMetadata(5, "")}


def test_lag_is_the_distance_from_the_committed_offset_to_the_end():
    world = World()
    world.groups.add("g", committed={FIRST: 3})
    world.fill(0, 10)

    async def scenario():
        return await GroupAdmin(world.client()).progress("g", [SECOND])

    first, second = run_virtually(scenario())
    assert (first.partition, first.end_offset, first.lag) == (FIRST, 10, 7)
    assert (second.partition, second.committed, second.lag) == (SECOND, None, None)


@pytest.mark.parametrize("offset", [-1, -2])
def test_a_negative_offset_counts_as_none(offset):
    """Clients commit it to be sent to the start or the end of the log."""
    world = World()
    world.groups.add("g", committed={FIRST: offset})

    async def scenario():
        return await GroupAdmin(world.client()).progress("g", [FIRST])

    (progress,) = run_virtually(scenario())
    assert (progress.committed, progress.lag) == (None, None)


def test_offsets_of_a_deleted_topic_or_partition_have_no_lag():
    world = World()
    gone, never = TopicPartition("gone", 0), TopicPartition("orders", 7)
    world.groups.add("g", committed={gone: 3, never: 1, FIRST: 0})

    async def scenario():
        return await GroupAdmin(world.client()).progress("g")

    found = {one.partition: (one.end_offset, one.lag) for one in run_virtually(scenario())}
    assert found == {gone: (None, None), never: (None, None), FIRST: (0, 0)}


def test_deleting_groups_reports_the_outcome_of_each():
    world = World(brokers=2)
    world.groups.add("busy", members=[FakeMember("m")])
    world.groups.add("idle", coordinator=2)

    async def scenario():
        return await GroupAdmin(world.client()).delete_groups(["busy", "absent", "idle", "idle"])

    assert run_virtually(scenario()) == {
        "busy": ErrorCode.NON_EMPTY_GROUP,
        "absent": ErrorCode.GROUP_ID_NOT_FOUND,
        "idle": ErrorCode.NONE,
    }
    assert list(world.groups.groups) == ["busy"]


def test_a_coordinator_that_a_metadata_refresh_dropped_is_looked_up_again():
    world = World(brokers=2)
    group = world.groups.add("g", coordinator=2)

    async def scenario():
        client = world.client()
        offsets = GroupOffsets(client, "g")
        await offsets.commit({FIRST: 1})
        del world.cluster.brokers[2]
        group.coordinator = 1
        await client.refresh([])
        await offsets.commit({FIRST: 2})

    run_virtually(scenario())
    assert group.committed == {FIRST: 2}


def test_a_coordinator_that_the_metadata_does_not_know_yet_is_asked_for_until_it_does():
    world = World(brokers=2)
    group = world.groups.add("g", coordinator=2)
    unknown = world.cluster.brokers.pop(2)
    found = world.groups.coordinator
    world.groups.coordinator = lambda name: unknown
    asked = []

    def answer(request, version):
        asked.append(request)
        if len(asked) == 3:
            world.cluster.brokers[2] = unknown
            world.groups.coordinator = found
        return original(request, version)

    handlers = world.cluster.brokers[1].handlers
    original, handlers[ApiKey.FIND_COORDINATOR] = handlers[ApiKey.FIND_COORDINATOR], answer

    async def scenario():
        await GroupOffsets(world.client(), "g").commit({FIRST: 1})

    run_virtually(scenario())
    assert group.committed == {FIRST: 1}
    assert len(asked) == 3


def test_T42_static_members_are_removed_by_their_instance_id():
    world = World()
    group = world.groups.add(
        "g", members=[FakeMember("m1", instance_id="left"), FakeMember("m2"), FakeMember("m3")]
    )

    async def scenario():
        client = world.client()
        m1, m2, _ = (await describe_group(client, "g")).members
        return await GroupAdmin(client).remove_members("g", [m1, m2])

    assert run_virtually(scenario()) == {"m1": ErrorCode.NONE, "m2": ErrorCode.NONE}
    assert [m.member_id for m in group.members] == ["m3"]
    (asked,) = world.cluster.asked(ApiKey.LEAVE_GROUP)
    assert [(m.member_id, m.group_instance_id) for m in asked.members] == [
        ("", "left"),
        ("m2", None),
    ]


def test_a_refused_commit_names_the_group_and_the_partition():
    world = World()
    world.groups.refusals = [ErrorCode.UNKNOWN_MEMBER_ID]

    async def scenario():
        await GroupOffsets(world.client(), "g").commit({FIRST: 1})

    with pytest.raises(KafkaError, match="group g, orders-0"):
        run_virtually(scenario())
