"""Moving a cluster's metadata to another store, interrupted at every step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import final

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE, first_levels
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import Head, page_path
from tidemill.metadata.image.stored_fields import dump
from tidemill.metadata.migration import Migration
from tidemill.metadata.store.coord import Create, Delete, Node, Op, Put
from tidemill.metadata.store.memory_store import MemoryCoord, MemoryCoordServer

KEPT = {
    nodes.CONTROLLER_EPOCH: nodes.encode_counter(7),
    nodes.BROKER_EPOCH: nodes.encode_counter(9),
    nodes.PRODUCER_IDS: nodes.encode_counter(3_000),
    nodes.HEAD: Head().encode(),
    nodes.MEMBERS: b"members",
    nodes.SETTINGS: dump(nodes.settings_value(1, {}, first_levels(THIS_SOFTWARE))),
    page_path(3): b"x" * 200_000,
    page_path(4): b"y" * 200_000,
    page_path(63): b"z",
}
STEPS = 6
"""Hold, mark, two pieces, close, open."""


@final
class Racing:
    """A session that lets something else happen after it has seen that no broker runs."""

    def __init__(self, coord: MemoryCoord, happen: Callable[[], Awaitable[None]]) -> None:
        self._coord = coord
        self._happen = happen
        self._looks = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._coord, name)

    async def children(self, path: str) -> list[tuple[str, Node]]:
        found = await self._coord.children(path)
        if path == nodes.BROKERS:
            self._looks += 1
            if self._looks == 2:  # the last time
                await self._happen()
        return found


@final
class DuringCopy:
    """A session with the target that lets something else happen when the copy begins."""

    def __init__(self, coord: MemoryCoord, happen: Callable[[], Awaitable[None]]) -> None:
        self._coord = coord
        self._happen = happen
        self._changes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._coord, name)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._changes += 1
        if self._changes == 2:  # after the mark
            await self._happen()
        await self._coord.multi(ops)


@final
class Interrupted:
    """A session whose `after`-th change fails: done or not, nobody knows."""

    def __init__(self, coord: MemoryCoord, steps: list[int], *, is_done: bool) -> None:
        self._coord = coord
        self._steps = steps
        self._is_done = is_done

    def __getattr__(self, name: str) -> object:
        return getattr(self._coord, name)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._steps[0] -= 1
        if self._steps[0] < 0:
            if self._is_done:
                await self._coord.multi(ops)
            raise StoreUnavailable("cut")
        await self._coord.multi(ops)


async def _new(cluster_id: str = "one") -> MemoryCoordServer:
    server = MemoryCoordServer()
    coord = server.session()
    await coord.start()
    await coord.multi([Create(path, value) for path, value in KEPT.items() if len(value) < 1000])
    for path, value in KEPT.items():
        if len(value) >= 1000:
            await coord.multi([Create(path, value)])
    await coord.multi([Create(nodes.CLUSTER, nodes.encode_cluster_id(cluster_id))])
    return server


async def _move(
    source: MemoryCoordServer,
    target: MemoryCoordServer,
    steps: int = 1_000,
    *,
    is_done: bool = False,
) -> str:
    first, second, left = source.session(), target.session(), [steps]
    await first.start()
    await second.start()
    try:
        return await Migration(
            Interrupted(first, left, is_done=is_done), Interrupted(second, left, is_done=is_done)
        ).run()
    finally:
        await first.close()
        await second.close()


def _stored(server: MemoryCoordServer) -> dict[str, bytes]:
    return {path: node.value for path, node in server.scan("/")}


def _is_usable(server: MemoryCoordServer) -> bool:
    return server.get(nodes.CLUSTER) is not None


def _check_moved(source: MemoryCoordServer, target: MemoryCoordServer) -> None:
    assert _stored(target) == {**KEPT, nodes.CLUSTER: nodes.encode_cluster_id("one")}
    assert not _is_usable(source)
    assert source.get(nodes.MIGRATION) is not None


def test_all_values_move_and_the_store_they_came_from_is_closed(run):
    async def scenario() -> None:
        source, target = await _new(), MemoryCoordServer()
        assert await _move(source, target) == "one"
        _check_moved(source, target)

    run(scenario())


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("steps", range(STEPS))
def test_a_move_that_is_interrupted_anywhere_goes_on_where_it_stopped(run, steps, is_done):
    async def scenario() -> None:
        source, target = await _new(), MemoryCoordServer()
        with pytest.raises(StoreUnavailable):
            await _move(source, target, steps, is_done=is_done)
        assert not (_is_usable(source) and _is_usable(target))
        await _move(source, target)
        _check_moved(source, target)
        assert await _move(source, target) == "one"

    run(scenario())


def test_the_number_of_steps_is_what_the_test_above_interrupts(run):
    async def scenario() -> None:
        source, target = await _new(), MemoryCoordServer()
        await _move(source, target, STEPS)
        _check_moved(source, target)

    run(scenario())


def test_what_changes_in_the_source_before_the_move_goes_on_is_moved_too(run):
    async def scenario() -> None:
        source, target = await _new(), MemoryCoordServer()
        with pytest.raises(StoreUnavailable):
            await _move(source, target, 4)
        coord = source.session()
        await coord.start()
        await coord.multi(
            [
                Put(nodes.HEAD, b"later", 0),
                Delete(page_path(63), 0),
                Create(page_path(5), b"new"),
            ]
        )
        await _move(source, target)
        stored = _stored(target)
        assert (stored[nodes.HEAD], stored[page_path(5)]) == (b"later", b"new")
        assert page_path(63) not in stored

    run(scenario())


def test_a_cluster_moves_back_and_forth(run):
    async def scenario() -> None:
        one, other = await _new(), MemoryCoordServer()
        await _move(one, other)
        await _move(other, one)
        _check_moved(other, one)
        await _move(one, other)
        _check_moved(one, other)

    run(scenario())


def test_running_brokers_are_named(run):
    async def scenario() -> None:
        source = await _new()
        broker = source.session()
        await broker.start()
        await broker.multi([Create("/brokers/4", b"", ephemeral=True)])
        with pytest.raises(UserError, match="brokers are running: 4"):
            await _move(source, MemoryCoordServer())
        assert source.get(nodes.CONTROLLER) is None

    run(scenario())


def test_a_controller_refuses_the_move(run):
    async def scenario() -> None:
        source = await _new()
        broker = source.session()
        await broker.start()
        await broker.multi([Create(nodes.CONTROLLER, b"", ephemeral=True)])
        with pytest.raises(UserError, match="stop all brokers"):
            await _move(source, MemoryCoordServer())

    run(scenario())


def test_another_cluster_is_not_overwritten(run):
    async def scenario() -> None:
        source, target = await _new(), await _new("two")
        with pytest.raises(UserError, match="another cluster in it, two"):
            await _move(source, target)
        with pytest.raises(UserError, match="both stores have cluster one"):
            await _move(source, await _new())
        with pytest.raises(UserError, match="has no cluster"):
            await _move(MemoryCoordServer(), source)

    run(scenario())


def test_a_store_with_something_else_in_it_is_refused(run):
    async def scenario() -> None:
        target = MemoryCoordServer()
        coord = target.session()
        await coord.start()
        await coord.multi([Create(nodes.HEAD, b"")])
        with pytest.raises(UserError, match="not empty"):
            await _move(await _new(), target)

    run(scenario())


def test_a_store_with_nodes_of_another_program_is_refused_and_keeps_them(run):
    async def scenario() -> None:
        target = MemoryCoordServer()
        coord = target.session()
        await coord.start()
        await coord.multi([Create("/theirs", b"precious")])
        with pytest.raises(UserError, match="not empty"):
            await _move(await _new(), target)
        assert _stored(target) == {"/theirs": b"precious"}

    run(scenario())


def test_a_broker_that_registers_after_the_last_look_stops_the_move(run):
    async def scenario() -> None:
        small, target = SmallCluster(), MemoryCoordServer()
        await small.start(0)
        await small.members.pop(0).cluster.close()
        first, second = small.server.session(), target.session()
        await first.start()
        await second.start()
        with pytest.raises(UserError, match="something else writes"):
            await Migration(Racing(first, lambda: small.register(0)), second).run()
        await first.close()
        await small.catch_up()
        assert small.members[0].cluster.is_controller
        assert not _is_usable(target)

    run(scenario())


async def _register(coord: MemoryCoord) -> None:
    at = await coord.get(nodes.BROKER_EPOCH)
    await coord.multi(
        [
            Put(nodes.BROKER_EPOCH, nodes.encode_counter(10), at.version),
            Create(nodes.broker_path(5), b"", ephemeral=True),
        ]
    )


async def _reserve_producer_ids(coord: MemoryCoord) -> None:
    at = await coord.get(nodes.PRODUCER_IDS)
    await coord.multi([Put(nodes.PRODUCER_IDS, nodes.encode_counter(4_000), at.version)])


@pytest.mark.parametrize("write", [_register, _reserve_producer_ids])
def test_a_broker_that_writes_and_ends_while_the_copy_is_made_stops_the_move(run, write):
    async def scenario() -> None:
        source, target = await _new(), MemoryCoordServer()
        first, second, broker = source.session(), target.session(), source.session()
        for one in (first, second, broker):
            await one.start()

        async def come_and_go() -> None:
            await write(broker)
            await broker.close()

        with pytest.raises(UserError, match="something else writes"):
            await Migration(first, DuringCopy(second, come_and_go)).run()
        assert _is_usable(source)
        assert not _is_usable(target)
        await first.close()
        await second.close()
        await _move(source, target)
        moved, left = _stored(target), _stored(source)
        for path in (nodes.BROKER_EPOCH, nodes.PRODUCER_IDS):
            assert moved[path] == left[path]

    run(scenario())


def test_a_broker_that_registers_after_the_move_has_no_place_in_the_store_it_left(run):
    """It has found its cluster there before the move, and reads what there is of it."""

    async def scenario() -> None:
        small, target = SmallCluster(), MemoryCoordServer()
        (cluster,) = await small.start(0)
        coord = small.members[0].coord
        small.server.expire(coord)
        load = cluster._keeper.load

        async def load_slowly(*, newest: bool = False) -> None:
            cluster._keeper.load = load
            await load(newest=newest)
            await _move(small.server, target)

        cluster._keeper.load = load_slowly
        with pytest.raises(StoreUnavailable):
            await cluster.catch_up()
        assert small.server.children(nodes.BROKERS) == []
        with pytest.raises(UserError, match="no cluster"):
            await cluster.catch_up()
        assert small.server.get(nodes.CONTROLLER) is None

    run(scenario())
