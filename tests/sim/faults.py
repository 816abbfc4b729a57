"""Random faults from a seed while clients work; at the end everything is repaired.

Up to three faults run at once, at most one of them on any broker. A run with fewer faults is the
beginning of the run with more: so a failing seed is shortened by leaving out its last faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.sim.clients import retry_until_ready
from tests.sim.history import History
from tests.sim.odd_brokers import OTHER_VERSION, run_other_version, shrink_early
from tests.sim.probe import Probe
from tests.sim.replica_moves import ReplicaMoves
from tests.sim.second_topic import SecondTopic
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.replication.pulling.fetch_round import LaneLimits
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.testing.sim.world import SESSION_TIMEOUT_S, SimWorld, host_name

__all__ = [
    "ALL_KINDS",
    "DEFAULT_KINDS",
    "KNOWN_HOLES_KINDS",
    "ONE_BROKER_KINDS",
    "STALE_READS",
    "Faults",
]

ALL_KINDS = (
    "crash",
    "power_loss_of_all",
    "restart_cleanly",
    "cut",
    "isolate",
    "suspend",
    "expiry",
    "storm",
    "minority",
    "doubt",
    "late_watches",
    "pause",
    "pause_clock",
    "slow_disk",
    "full_disk",
    "failing_disk",
    "recreate_topic",
    "delete_records",
    "reassign",
    "drain",
    "lost_progress",
    "small_fetches",
    "pause_with_mail",
    "return_cut_off",
    "rot",
    "early_shrink",
    "deaf_cluster",
    OTHER_VERSION,
)
NAMED_KINDS = (
    "pause_with_mail",
    "return_cut_off",
    "rot",
    "early_shrink",
    "deaf_cluster",
    OTHER_VERSION,
)
"""Only where a run names them: the seeds of before keep what they draw."""
STALE_READS = "stale_reads"
"""Not a fault: clients that ask former leaders, too, during the whole run."""

KNOWN_HOLES_KINDS: tuple[str, ...] = ()
"""What the present code does not stand: left out unless a run names it. `test_found_seeds.py` has a
run for each. To be shortened with each fix."""

DEFAULT_KINDS = tuple(
    kind for kind in ALL_KINDS if kind not in KNOWN_HOLES_KINDS and kind not in NAMED_KINDS
)
ONE_BROKER_KINDS = ("crash", "power_loss_of_all", "restart_cleanly", "suspend", "expiry")

STREAMS_MAX = 3
KINDS_PER_SEED_MAX = 4
CALM_S_MAX = 1.5
START_ATTEMPTS_MAX = 100
RETRY_S = 1.0
ANSWERED_WITHIN_S = 0.55
"""A little longer than a fetch of a follower waits for records."""
FULL_DISK_ROOM_BYTES = 4_000
MENDED_WITHIN_S = 600
UNHEARD_S = 20.0
"""A lag limit, until the others say so, and then the patience of the controller."""
FLUSH_S = 1.0
"""So long that records are readable and not flushed when the power goes."""


class Faults:
    """`run` returns when everything is up and connected again. `kinds` are some of ALL_KINDS."""

    def __init__(
        self,
        world: SimWorld,
        history: History,
        probe: Probe,
        brokers: Sequence[int],
        kinds: Sequence[str] = (),
        *,
        also: Sequence[str] = (),
        calm_s_max: float = CALM_S_MAX,
    ) -> None:
        """`also`: kinds besides those that are drawn.

        `calm_s_max` is the longest time between the end of a fault and the next one.
        """
        self._world = world
        self._history = history
        self._probe = probe
        self._brokers = brokers
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._kinds = kinds or [*self._draw_kinds(), *also]
        self._calm_s_max = calm_s_max
        self._free = set(brokers)
        self._left = 0
        self._second = SecondTopic(world, len(brokers))
        self._second_is_busy = False
        self._moves = ReplicaMoves(world, self._rng, probe.partitions, brokers)
        self._moves_are_busy = False
        self.done: list[str] = []

    def _draw_kinds(self) -> list[str]:
        """A few kinds for each seed: with all of them at once, none would be pushed far."""
        if len(self._brokers) == 1:
            return list(ONE_BROKER_KINDS)
        left = list(DEFAULT_KINDS)
        count = 1 + self._rng.below(KINDS_PER_SEED_MAX)
        return [left.pop(self._rng.below(len(left))) for _ in range(min(count, len(left)))]

    async def run(self, count: int) -> None:
        """Cause `count` faults, up to three at once."""
        self._left = count
        streams = min(STREAMS_MAX, len(self._brokers))
        await asyncio.gather(*(self._stream() for _ in range(streams)))

    async def _stream(self) -> None:
        while self._left > 0:
            await self._pause(self._calm_s_max)
            free = sorted(self._free)
            if not free or self._left <= 0:
                continue
            self._left -= 1
            broker_id = free[self._rng.below(len(free))]
            kind = self._kinds[self._rng.below(len(self._kinds))]
            self.done.append(f"{self._world.loop.time():.3f} {kind} {broker_id}")
            await self._one(kind, broker_id)

    async def _one(self, kind: str, broker_id: int) -> None:
        of_all: dict[str, Callable[[], Awaitable[None]]] = {
            "power_loss_of_all": self._power_loss_of_all,
            "storm": self._storm,
            "recreate_topic": self._recreate_topic,
            "delete_records": self._delete_records,
            "reassign": self._reassign,
            "drain": partial(self._drain, broker_id),
            "deaf_cluster": self._deaf_cluster,
        }
        if kind in of_all:
            await of_all[kind]()
            return
        of_one: dict[str, Callable[[int], Awaitable[None]]] = {
            "crash": self._crash,
            "restart_cleanly": self._restart_cleanly,
            "cut": self._cut,
            "isolate": self._isolate,
            "suspend": self._suspend,
            "expiry": self._expiry,
            "minority": self._minority,
            "doubt": self._doubt,
            "late_watches": self._late_watches,
            "pause": partial(self._pause_host, clock_stops=False),
            "pause_clock": partial(self._pause_host, clock_stops=True),
            "pause_with_mail": self._pause_with_mail,
            "return_cut_off": self._return_cut_off,
            "slow_disk": self._slow_disk,
            "full_disk": self._full_disk,
            "failing_disk": self._failing_disk,
            "rot": self._rot,
            "lost_progress": self._lost_progress,
            "small_fetches": self._small_fetches,
            "early_shrink": partial(shrink_early, self._world, self._rng, self._pause),
            OTHER_VERSION: partial(
                run_other_version, self._world, self._rng, self._pause, self._restart_cleanly
            ),
        }
        self._free.discard(broker_id)
        await of_one[kind](broker_id)
        self._free.add(broker_id)

    async def _pause(self, longest_s: float) -> None:
        """Short pauses are as frequent as long ones, so that races of milliseconds occur too."""
        await asyncio.sleep(longest_s / 2 ** self._rng.below(8))

    # --- processes and machines ------------------------------------------------------------------

    async def _crash(self, broker_id: int) -> None:
        """Restart it sometimes before its session has expired, sometimes long after."""
        self._kill(broker_id, power_loss=self._rng.below(2) == 0)
        await self._pause(20.0)
        await self._bring_up(broker_id)

    async def _power_loss_of_all(self) -> None:
        """Of all brokers that run and have no other fault."""
        if len(self._free) < len(self._brokers):
            return
        self._free.clear()
        for broker_id in self._brokers:
            self._kill(broker_id, power_loss=True)
        for broker_id in self._shuffled():
            await self._pause(5.0)
            await self._bring_up(broker_id)
        self._free.update(self._brokers)

    def _kill(self, broker_id: int, *, power_loss: bool) -> None:
        self._probe.look()  # a mark may have moved, and been told, in this very event
        self._world.crash(broker_id, power_loss=power_loss)
        alone = len(self._brokers) == 1
        if self._probe.killed(broker_id, power_loss=power_loss) or alone:
            self._history.begin_life()
            self._probe.forget_told()

    async def _bring_up(self, broker_id: int) -> None:
        """Start it as a supervisor does: a start that the store's faults stopped is repeated."""
        for _ in range(START_ATTEMPTS_MAX):
            try:
                await self._world.restart(broker_id)
            except StoreUnavailable:
                self._world.crash(broker_id, power_loss=False)
                await asyncio.sleep(RETRY_S)
            else:
                return
        raise AssertionError(f"broker {broker_id} does not start any more")

    async def _restart_cleanly(self, broker_id: int) -> None:
        await self._world.stop_broker(broker_id)
        await self._pause(10.0)
        await self._bring_up(broker_id)

    async def _pause_host(self, broker_id: int, *, clock_stops: bool) -> None:
        """Sometimes for less than its lease, sometimes beyond its session."""
        self._world.pause(broker_id, clock_stops=clock_stops)
        self._history.stale_hosts += clock_stops
        self._probe.stale_hosts += clock_stops
        await self._pause(20.0)
        self._world.unpause(broker_id)
        if clock_stops:  # its lease, by its clock, may go on for as long as it was granted
            await asyncio.sleep(SESSION_TIMEOUT_S)
            self._history.stale_hosts -= 1
            self._probe.stale_hosts -= 1

    async def _pause_with_mail(self, broker_id: int) -> None:
        """It stands still beyond its session, with the next fetches of all others in its sockets.

        They are on their way, held up, while its answers to the fetches before still leave.
        """
        name = host_name(broker_id)
        others = [host_name(other) for other in self._brokers if other != broker_id]
        for other in others:
            self._world.net.cut(other, name)
        await asyncio.sleep(ANSWERED_WITHIN_S)
        await self._pause(0.4)
        self._world.pause(broker_id)
        for other in others:
            self._world.net.heal(other, name)
        await asyncio.sleep(SESSION_TIMEOUT_S)
        await self._pause(4.0)
        self._world.unpause(broker_id)

    async def _return_cut_off(self, broker_id: int) -> None:
        """It loses power and is back at once, but what it sends does not arrive for a while.

        Fetches of its former life still wait at its leaders, and nobody has noticed its end.
        """
        name = host_name(broker_id)
        others = [host_name(other) for other in self._brokers if other != broker_id]
        self._world.disk_delays_s[broker_id] = FLUSH_S
        await self._pause(2.0)
        self._kill(broker_id, power_loss=True)
        del self._world.disk_delays_s[broker_id]
        for other in others:
            self._world.net.cut(name, other)
        await self._pause(0.2)
        await self._bring_up(broker_id)
        await self._pause(4.0)
        for other in others:
            self._world.net.heal(name, other)

    # --- the network -----------------------------------------------------------------------------

    async def _cut(self, broker_id: int) -> None:
        """Cut one direction to one other broker."""
        others = [other for other in self._brokers if other != broker_id]
        other = others[self._rng.below(len(others))]
        way = (host_name(broker_id), host_name(other))
        if self._rng.below(2):
            way = way[::-1]
        self._world.net.cut(*way)
        await self._pause(60.0)
        self._world.net.heal(*way)

    async def _isolate(self, broker_id: int) -> None:
        """Cut it off from the other brokers, but not from clients and the store."""
        name = host_name(broker_id)
        others = [host_name(other) for other in self._brokers if other != broker_id]
        self._world.net.isolate(name, others)
        await self._pause(60.0)
        for other in others:
            self._world.net.heal(name, other)
            self._world.net.heal(other, name)

    async def _deaf_cluster(self) -> None:
        """Nobody hears the controller, for longer than it is believed; it reaches the store."""
        running = self._world.up_brokers()
        offices = [one for one in self._free & running.keys() if running[one].cluster.is_controller]
        for broker_id in offices[:1]:
            self._free.discard(broker_id)
            name = host_name(broker_id)
            others = [host_name(other) for other in self._brokers if other != broker_id]
            for other in others:
                self._world.net.cut(name, other)
            await asyncio.sleep(UNHEARD_S)
            await self._pause(30.0)
            for other in others:
                self._world.net.heal(name, other)
            self._free.add(broker_id)

    # --- the store -------------------------------------------------------------------------------

    async def _suspend(self, broker_id: int) -> None:
        """Disconnect it for less than its session."""
        session = self._world.session(broker_id)
        session.suspend()
        await self._pause(0.9 * SESSION_TIMEOUT_S)
        session.resume()

    async def _expiry(self, broker_id: int) -> None:
        """Disconnect it until the store has ended its session, and let it learn that late."""
        session = self._world.session(broker_id)
        session.suspend()
        await asyncio.sleep(SESSION_TIMEOUT_S)
        await self._pause(10.0)
        session.resume()

    async def _storm(self) -> None:
        """The store stands still; when it goes on, the sessions of all are over."""
        shaken = sorted(self._free)
        self._free.clear()
        for broker_id in shaken:
            self._world.session(broker_id).suspend()
        await asyncio.sleep(SESSION_TIMEOUT_S)
        for broker_id in shaken:
            await self._pause(0.5)
            self._world.session(broker_id).resume()
        self._free.update(shaken)

    async def _minority(self, broker_id: int) -> None:
        """It is connected to a server of the store that has lost its quorum."""
        session = self._world.session(broker_id)
        session.enter_minority()
        await self._pause(20.0)
        session.leave_minority()

    async def _doubt(self, broker_id: int) -> None:
        """Outcomes stay unknown; sometimes while it has to register anew."""
        session = self._world.session(broker_id)
        session.doubts_one_in = 1 + self._rng.below(3)
        if self._rng.below(3) == 0:
            await self._expiry(broker_id)
        await self._pause(20.0)
        session.doubts_one_in = 0

    async def _late_watches(self, broker_id: int) -> None:
        session = self._world.session(broker_id)
        session.watch_delay_s_max = SESSION_TIMEOUT_S
        await self._pause(40.0)
        session.watch_delay_s_max = 0.0

    # --- disks -----------------------------------------------------------------------------------

    async def _slow_disk(self, broker_id: int) -> None:
        self._world.disk_delays_s[broker_id] = 4.0 / 2 ** self._rng.below(6)
        await self._pause(30.0)
        del self._world.disk_delays_s[broker_id]

    async def _full_disk(self, broker_id: int) -> None:
        disk = self._world.disk(broker_id)
        space = disk.space("/")
        room = self._rng.below(FULL_DISK_ROOM_BYTES)
        disk.set_capacity(space.total_bytes - space.usable_bytes + room)
        if room % 2:  # no reserve is kept where nobody knows what is free: writes fill the disk
            disk.fail("space", "/logs", times=30)
        await self._pause(30.0)
        disk.set_capacity(None)

    async def _rot(self, broker_id: int) -> None:
        """A byte of a record changes that all disks have, and is found at once: it is mended.

        Not while replicas move: who moves a partition to one broker takes its other copies away.
        """
        place = None if self._moves_are_busy else self._try_draw_flushed_byte(broker_id)
        if place is None:
            return
        self._moves_are_busy = True
        await self._rot_and_wait(broker_id, *place)
        self._moves_are_busy = False

    async def _rot_and_wait(self, broker_id: int, path: str, position: int) -> None:
        disk = self._world.disk(broker_id)
        disk.flip_bit(path, position)
        damaged = disk.read_file(path)[position : position + 1]
        self._world.broker(broker_id).directory.doubt([path])
        for _ in range(MENDED_WITHIN_S):
            await asyncio.sleep(1.0)
            found = disk.read_file(path) if disk.exists(path) else b""
            if found[position : position + 1] != damaged:
                return
        raise AssertionError(f"byte {position} of {path} on broker {broker_id} stays damaged")

    def _try_draw_flushed_byte(self, broker_id: int) -> tuple[str, int] | None:
        """A segment and a position in it; None unless all replicas have something there."""
        partitions = self._probe.partitions
        name = partitions[self._rng.below(len(partitions))]
        up = {broker_id, *self._free}
        found = [self._world.broker(one).replicas.find(*name) for one in sorted(up)]
        members = sorted(self._brokers)
        copies = [one for one in found if one is not None and sorted(one.isr) == members]
        if len(copies) < len(members):
            return None
        log = self._world.broker(broker_id).directory.get(name)
        assert log is not None
        count = min(one.log.flushed_offset for one in copies) - log.log_start_offset
        if count <= 0 or log.is_being_cut:
            return None
        offset = log.log_start_offset + self._rng.below(count)
        segment = log.segments.holding(offset)
        position, header = segment.finder().locate(offset)
        assert header is not None
        # Memory has what the disk had, until it is read again: nobody is given the damaged bytes.
        log.damage.note(DamagedRange(header.base_offset, header.next_offset))
        return segment.path, position + self._rng.below(header.size_bytes)

    async def _failing_disk(self, broker_id: int) -> None:
        """Its syncs fail until the machine is restarted with a good disk."""
        self._world.disk(broker_id).fail("sync", times=1 << 30)
        await self._pause(10.0)
        self._kill(broker_id, power_loss=True)
        await self._pause(5.0)
        await self._bring_up(broker_id)

    # --- followers -------------------------------------------------------------------------------

    async def _lost_progress(self, broker_id: int) -> None:
        """What it flushes its leaders hear from its fetches alone."""
        lanes = list(self._world.broker(broker_id).followers.lanes())
        for lane in lanes:
            lane.tells_progress = False
        await self._pause(30.0)
        for lane in lanes:
            lane.tells_progress = True

    async def _small_fetches(self, broker_id: int) -> None:
        """It asks for a byte at a time: each answer has one batch of one partition."""
        lanes = list(self._world.broker(broker_id).followers.lanes())
        usual = [lane.round.limits for lane in lanes]
        for lane in lanes:
            lane.round.limits = LaneLimits(partition_bytes=1, answer_bytes=1)
        await self._pause(30.0)
        for lane, limits in zip(lanes, usual, strict=True):
            lane.round.limits = limits

    # --- administration --------------------------------------------------------------------------

    async def _recreate_topic(self) -> None:
        if not self._second_is_busy:
            self._second_is_busy = True
            await self._second.delete_and_create()
            self._second_is_busy = False

    async def _reassign(self) -> None:
        if not self._moves_are_busy:
            self._moves_are_busy = True
            await self._moves.reassign(self._pause)
            self._moves_are_busy = False

    async def _drain(self, broker_id: int) -> None:
        if not self._moves_are_busy:
            self._moves_are_busy = True
            await self._moves.drain(broker_id, self._pause)
            self._moves_are_busy = False

    async def _delete_records(self) -> None:
        """Delete some of the records that were acknowledged."""
        partitions = [one for one, acked in sorted(self._history.acked.items()) if acked]
        if not partitions:
            return
        partition = partitions[self._rng.below(len(partitions))]
        offset = self._rng.below(1 + max(self._history.acked[partition]))
        await self.delete_records(partition, offset)

    async def delete_records(self, partition: TopicPartition, offset: int) -> None:
        """Delete all records below `offset`."""
        self._history.deleting(partition, offset)
        net, bootstrap = self._world.client_net("deleter"), self._world.bootstrap
        async with ClusterClient(net, bootstrap) as cluster:
            await retry_until_ready(partial(_delete_records, cluster, partition, offset))

    def _shuffled(self) -> list[int]:
        left = list(self._brokers)
        return [left.pop(self._rng.below(len(left))) for _ in self._brokers]


async def _delete_records(cluster: ClusterClient, partition: TopicPartition, offset: int) -> None:
    try:
        await Admin(cluster).delete_records(partition.topic, {partition.partition: offset})
    except KafkaError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise  # a leader that does not know the high watermark yet
