"""S11: a request that changes very many topics leaves turns of the loop to everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import HEAD, Head
from tidemill.metadata.image.metadata_image import Delta
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import (
    ConfigChange,
    PartitionsSpec,
    TopicResult,
    TopicSpec,
)

SLICES = 4
NAMES = [f"t{number}" for number in range(SLICES * PARTITIONS_CHANGED_PER_SLICE)]
SPECS = [TopicSpec(name=name, partitions=1) for name in NAMES]

Request = Callable[[Cluster], Awaitable[list[TopicResult]]]

CHANGES: dict[str, Request] = {
    "partitions": lambda cluster: cluster.create_partitions(
        [PartitionsSpec(name=name, count=2) for name in NAMES]
    ),
    "keys": lambda cluster: cluster.alter_topic_configs(
        [ConfigChange(name=name, changes=[("retention.ms", AlterOp.SET, "5")]) for name in NAMES]
    ),
    "deletion": lambda cluster: cluster.delete_topics(NAMES),
}


async def turns_of(work: Awaitable[list[TopicResult]]) -> int:
    """How often other work gets a turn until this is done; it must succeed for every topic."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert {result.code for result in await task} == {ErrorCode.NONE}
    return turns


def test_S11_many_topics_are_planned_in_slices(run):
    async def scenario() -> None:
        (cluster,) = await SmallCluster().start(0)
        assert await turns_of(cluster.create_topics(SPECS, validate_only=True)) >= SLICES
        assert cluster.image.topics == {}

    run(scenario())


def test_S11_a_topic_of_many_partitions_counts_as_many_when_it_is_planned(run):
    async def scenario() -> None:
        (cluster,) = await SmallCluster().start(0)
        wide = [
            TopicSpec(name=name, partitions=PARTITIONS_CHANGED_PER_SLICE) for name in NAMES[:SLICES]
        ]
        assert await turns_of(cluster.create_topics(wide, validate_only=True)) >= SLICES

    run(scenario())


@pytest.mark.parametrize("name", CHANGES)
def test_S11_changes_of_many_topics_are_planned_and_published_in_slices(run, name):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics(SPECS)
        seen = len(small.members[0].deltas)
        turns = await turns_of(CHANGES[name](cluster))
        published = len(small.members[0].deltas) - seen
        assert published >= SLICES
        assert turns >= 2 * (SLICES - 1)  # the last slice of the plan publishes the first

    run(scenario())


def test_S11_many_new_topics_are_written_at_once_and_published_in_slices(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        before, seen = head_of(small).seq, len(small.members[0].deltas)
        results = await cluster.create_topics(SPECS)
        deltas = small.members[0].deltas[seen:]
        assert head_of(small).seq == before + 1
        assert max(len(delta.topics_changed) for delta in deltas) <= PARTITIONS_CHANGED_PER_SLICE
        assert sorted(name for delta in deltas for name in delta.topics_changed) == sorted(NAMES)
        assert all(result.topic is cluster.image.topics[result.name] for result in results)
        assert small.stored_topics().keys() == cluster.image.topics.keys()

    run(scenario())


def test_S11_topics_whose_publication_was_cut_off_are_read_from_the_store(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        creation = asyncio.ensure_future(cluster.create_topics(SPECS))
        cluster.subscribe(lambda _delta: creation.cancel())
        await asyncio.wait([creation])
        assert 0 < len(cluster.image.topics) < len(NAMES)
        await small.catch_up()
        assert cluster.image.topics.keys() == set(NAMES)

    run(scenario())


async def behind_many_topics() -> tuple[SmallCluster, Cluster]:
    """Broker 1 has not heard of them yet, nor that broker 2 was let in after them."""
    small = SmallCluster()
    controller, follower = await small.start(0, 1)
    small.notices_held = True
    await controller.create_topics(SPECS)
    await small.register(2)
    controller._keeper.mark(nodes.BROKERS)
    await controller.catch_up()
    small.notices_held = False
    assert not follower.image.topics
    return small, follower


def test_S11_a_broker_that_follows_publishes_many_topics_in_slices(run):
    async def scenario() -> None:
        small, follower = await behind_many_topics()
        seen = len(small.members[1].deltas)
        await follower.read_newest()
        deltas = small.members[1].deltas[seen:]
        assert max(len(delta.topics_changed) for delta in deltas) <= PARTITIONS_CHANGED_PER_SLICE
        assert sorted(name for delta in deltas for name in delta.topics_changed) == sorted(NAMES)
        assert follower.image.topics.keys() == set(NAMES)

    run(scenario())


def test_members_are_published_after_all_topics_that_were_read_with_them(run):
    async def scenario() -> None:
        small, follower = await behind_many_topics()
        seen = len(small.members[1].deltas)
        await follower.read_newest()
        *before, last = small.members[1].deltas[seen:]
        assert len(before) == SLICES - 1
        assert {delta.members_changed for delta in before} == {()}
        assert last.members_changed == (2,)
        assert last.after is follower.image
        assert follower.image.members.keys() == {0, 1, 2}

    run(scenario())


def test_I34_no_log_is_a_stray_while_topics_are_published_that_may_have_it(run):
    async def scenario() -> None:
        _, follower = await behind_many_topics()
        known = []
        follower.subscribe(lambda _delta: known.append(follower.own_logs()))
        assert follower.own_logs() is not None
        await follower.read_newest()
        assert known[:-1] == [None] * (SLICES - 1)
        assert follower.own_logs() is not None

    run(scenario())


def test_S11_topics_of_which_a_part_was_published_are_read_again(run):
    async def scenario() -> None:
        _, follower = await behind_many_topics()
        reading = asyncio.ensure_future(follower.read_newest())
        follower.subscribe(lambda _delta: reading.cancel())
        await asyncio.wait([reading])
        assert 0 < len(follower.image.topics) < len(NAMES)
        await follower.catch_up()
        assert follower.image.topics.keys() == set(NAMES)

    run(scenario())


def test_S11_many_partitions_hear_of_a_return_in_slices_and_who_was_let_in_comes_last(run):
    async def scenario() -> None:
        small = SmallCluster()
        cluster, _ = await small.start(0, 1)
        await cluster.create_topics([TopicSpec(name=name, assignments={0: [1]}) for name in NAMES])
        await small.catch_up()
        small.crash(1)
        await small.catch_up()
        await small.register(1, unclean=True)
        seen = len(small.members[0].deltas)
        task = asyncio.ensure_future(cluster.catch_up())
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        await task
        deltas = [delta for delta in small.members[0].deltas[seen:] if not delta.brokers_changed]
        assert max(len(delta.topics_changed) for delta in deltas) <= PARTITIONS_CHANGED_PER_SLICE
        assert sum(len(delta.topics_changed) for delta in deltas) == len(NAMES)
        assert [bool(delta.members_changed) for delta in deltas] == [False] * (SLICES - 1) + [True]
        assert turns >= 2 * (SLICES - 1)  # the changes are put into the draft in slices, too

    run(scenario())


def in_two_steps(
    done: list[str], between: Callable[[], object] = lambda: None
) -> Callable[[Delta], Steps[None]]:
    """A subscriber that notes each half of its work."""

    def follow(delta: Delta) -> Steps[None]:
        done.append(f"first {delta.topics_changed}")
        between()
        yield
        done.append(f"second {delta.topics_changed}")

    return follow


def test_a_change_is_answered_after_all_that_follows_from_it(run):
    async def scenario() -> None:
        (cluster,) = await SmallCluster().start(0)
        done: list[str] = []
        cluster.subscribe_in_steps(in_two_steps(done))
        await cluster.create_topics(SPECS[:1])
        assert done == ["first ('t0',)", "second ('t0',)"]

    run(scenario())


def test_what_follows_from_a_change_comes_to_its_end_if_the_request_is_cancelled(run):
    """Else partitions would keep the roles of the image before: no later image names them."""

    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        done: list[str] = []
        creation = asyncio.ensure_future(cluster.create_topics(SPECS[:1]))
        cluster.subscribe_in_steps(in_two_steps(done, creation.cancel))
        await asyncio.wait([creation])
        assert done == ["first ('t0',)"]
        assert cluster.own_logs() is None  # no log is called a stray meanwhile
        await cluster.create_topics(SPECS[1:2])
        assert done[1:] == ["second ('t0',)", "first ('t1',)", "second ('t1',)"]
        await small.catch_up()
        assert cluster.own_logs() is not None

    run(scenario())


def test_a_bug_in_what_follows_from_a_change_is_met_by_everyone_who_comes_later(run):
    """Else partitions would silently keep the roles of the image before."""

    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)

        def fail() -> None:
            raise ZeroDivisionError

        cluster.subscribe_in_steps(in_two_steps([], fail))
        with pytest.raises(ZeroDivisionError):
            await cluster.create_topics(SPECS[:1])
        assert cluster.own_logs() is None
        with pytest.raises(ZeroDivisionError):
            await small.catch_up()

    run(scenario())


def test_a_lease_counts_with_a_change_after_all_that_follows_from_it(run):
    """Who has one has acted on all that is older than two thirds of a session."""

    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        coord, seen = small.members[0].coord, []
        told = coord.caught_up

        def caught_up(head_version: int) -> None:
            seen.append("caught up")
            told(head_version)

        coord.caught_up = caught_up
        cluster.subscribe_in_steps(in_two_steps(seen))
        await cluster.create_topics(SPECS[:1])
        assert seen == ["first ('t0',)", "second ('t0',)", "caught up"]

    run(scenario())


def head_of(small: SmallCluster) -> Head:
    node = small.server.get(HEAD)
    assert node is not None
    return Head.decode(node.value)
