"""A whole cluster on one simulated machine: every seam replaced, everything from one seed.

    world = SimWorld(seed=7)
    world.run(main)           # async def main(world): ... await world.start_broker(0) ...

Each broker is a host of its own with a clock, a disk, a network and a session; the code between the
seams is the broker that `tidemill up` runs. `crash` kills a host between two steps, with or without
its page cache; `restart` starts the next life on what the disk kept. The trace is a hash over
everything that passed through the seams, with its time: two runs with the same hash did the same.

A session ends `SESSION_TIMEOUT_S` after the store last heard of it, or when its host is restarted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar, final

from tidemill.broker import Broker
from tidemill.core.config.broker_config import BrokerConfig, broker_config
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.net import Net
from tidemill.core.rng import SeededRng
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE, Software
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.storage.files.disk import Disk
from tidemill.testing.manual_clock import SimClock
from tidemill.testing.sim.coord import SimCoord
from tidemill.testing.sim.disk import SimDisk
from tidemill.testing.sim.loop import CURRENT_HOST, SimHost, SimLoop, SimulationFailed
from tidemill.testing.sim.net import Link, SimNet

__all__ = ["DISK_DELAY_S_MAX", "BrokerDied", "HostCrashed", "SimWorld", "Trace", "host_name"]

T = TypeVar("T")

PORT = 9092
SESSION_TIMEOUT_S = 6.0
COORD_DELAY_S_MAX = 0.002
DISK_DELAY_S_MAX = 0.003
TIME_LIMIT_S = 3600.0
EVENTS_KEPT = 200
_SEEDS = 1 << 62
_STEPS = 1 << 20


class BrokerDied(SimulationFailed):
    """A broker stopped itself: one of its parts failed."""


class HostCrashed(Exception):
    """The host was killed while a caller waited for its work."""


@final
class Trace:
    """A fingerprint of everything that happened, and the latest events as text."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.events = 0
        self.last: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.probe: Callable[[], None] | None = None
        """Called after every event, to look at the brokers; must change nothing."""
        self._time = time
        self._hash = sha256()

    def add(self, what: str, where: str, data: bytes = b"") -> None:
        line = f"{self._time():.9f} {what} {where} {len(data)}"
        self.events += 1
        self.last.append(line)
        self._hash.update(line.encode())
        self._hash.update(data)
        if self.probe is not None:
            self.probe()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@final
@dataclass(slots=True)
class _Life:
    """One broker process, from its start to its end."""

    host: SimHost
    broker: Broker
    coord: SimCoord
    waiting: list[asyncio.Future[Any]]
    """Futures of callers that wait for work on this host."""
    is_up: bool = False
    """It has started, and was neither stopped nor killed."""
    lost_power: bool = False


@final
class SimWorld:
    """A simulated cluster; `run` drives it."""

    def __init__(
        self,
        seed: int,
        *,
        first_come_first_served: bool = False,
        link: Link | None = None,
        values: Mapping[str, object] | None = None,
        watch_disk: Callable[[SimDisk], Disk] | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        disk_delay_s_max: float = DISK_DELAY_S_MAX,
        watches_loop: bool = True,
    ) -> None:
        """`watch_disk` may put something between a broker and its disk.

        Without `watches_loop` brokers do not measure the loop, a third of what happens at rest.
        """
        self.rng = SeededRng(seed)
        self.loop = SimLoop(
            None if first_come_first_served else self._fork(), time_limit_s=time_limit_s
        )
        self.clock = SimClock(self.loop.time)
        """For clients; every broker has its own."""
        self.trace = Trace(self.loop.time)
        self.net = SimNet(self.loop, self._fork(), link=link, observe=self.trace.add)
        self.coord = MemoryCoordServer()
        self.failures: list[tuple[str, BaseException]] = []
        self.disk_delays_s: dict[int, float] = {}
        """Brokers whose slow disk calls take exactly this long; for others the delay is random."""
        self.clocks: dict[int, SimClock] = {}
        """Of each broker's last life."""
        self.software: dict[int, Software] = {}
        """What brokers run from their next life on; others run this software."""
        self._values = values or {}
        self._watch_disk = watch_disk
        self._disk_delay_s_max = disk_delay_s_max
        self._watches_loop = watches_loop
        self._lives: dict[int, _Life] = {}
        self._up: dict[int, Broker] = {}
        self._disks: dict[int, SimDisk] = {}
        self._delays = self._fork()

    def run(self, main: Callable[[SimWorld], Coroutine[Any, Any, T]]) -> T:
        """Run `main` to its end; BrokerDied if a broker stopped itself meanwhile."""
        result = self.loop.run(main(self))
        self.check()
        return result

    def check(self) -> None:
        """Raise if a broker has stopped itself."""
        if self.failures:
            part, error = self.failures[0]
            raise BrokerDied(part) from error

    def client_net(self, name: str = "client") -> Net:
        """The network as seen by a host without a broker."""
        return self.net.on(SimHost(name))

    # --- brokers ---------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of all brokers that were ever started."""
        return [(host_name(broker_id), PORT) for broker_id in self._disks]

    def broker(self, broker_id: int) -> Broker:
        return self._lives[broker_id].broker

    def up_brokers(self) -> Mapping[int, Broker]:
        """The brokers that have started and run, paused or not, by id; another object if others."""
        return self._up

    def ran_brokers(self) -> Mapping[int, Broker]:
        """Those of `up_brokers` whose state may have changed since the last call: code has run."""
        ran = self.loop.take_ran()
        if None in ran:  # a test may do anything
            return self._up
        lives = self._lives.items()
        return {one: life.broker for one, life in lives if life.host in ran and life.is_up}

    def _count_up(self) -> None:
        self._up = {one: life.broker for one, life in self._lives.items() if life.is_up}

    def known_brokers(self) -> dict[int, Broker]:
        """The last life of every broker, running or not, by id."""
        return {one: life.broker for one, life in self._lives.items()}

    def has_lost_power(self, broker_id: int) -> bool:
        """Whether it is down, and lost what was not flushed."""
        return self._lives[broker_id].lost_power

    def disk(self, broker_id: int) -> SimDisk:
        return self._disks[broker_id]

    def session(self, broker_id: int) -> SimCoord:
        return self._lives[broker_id].coord

    async def start_broker(self, broker_id: int, *, software: Software | None = None) -> None:
        """Start a broker's first or next life; it serves when this returns."""
        host = SimHost(host_name(broker_id))
        disk = self._disks.setdefault(broker_id, self._new_disk(broker_id))
        disk.on_call = lambda _number, call, path: self.trace.add(call, f"{host.name}:{path}")
        coord = SimCoord(
            self.coord,
            delay_s=lambda: self._draw_s(COORD_DELAY_S_MAX),
            observe=lambda op, path: self.trace.add(op, f"{host.name}:{path}"),
            session_timeout_s=SESSION_TIMEOUT_S,
            host=host,
            rng=self._fork(),
        )
        now_ms = self.clock.wall_ms()
        clock = SimClock(self.loop.clock_of(host), wall_start_ms=now_ms)
        self.clocks[broker_id] = clock
        broker = Broker(
            self._config(broker_id),
            clock=clock,
            net=self.net.on(host),
            disk=disk if self._watch_disk is None else self._watch_disk(disk),
            rng=self._fork(),
            coord=coord,
            software=software or self.software.get(broker_id, THIS_SOFTWARE),
            watches_loop=self._watches_loop,
        )
        broker.on_failure(lambda: self._died(broker_id))
        if broker_id in self._lives:
            self._lives[broker_id].coord.bury()
        self._lives[broker_id] = _Life(host, broker, coord, [])
        self._count_up()
        await self.on_host(broker_id, broker.start())
        self._lives[broker_id].is_up = True
        self._count_up()

    async def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly."""
        await self.on_host(broker_id, self.broker(broker_id).stop())
        self._end(broker_id)
        self._disks[broker_id] = self._disks[broker_id].restart()

    def crash(self, broker_id: int, *, power_loss: bool = True) -> None:
        """Kill a broker now: with its machine and all unflushed bytes, or only its process."""
        life = self._end(broker_id)
        life.lost_power = power_loss
        disk = self._disks[broker_id]
        self._disks[broker_id] = disk.crash(self._fork()) if power_loss else disk.restart()
        self.net.crash(life.host, silent=power_loss)
        self.trace.add("crash", life.host.name)

    def is_paused(self, broker_id: int) -> bool:
        return self._lives[broker_id].host.paused_at is not None

    def pause(self, broker_id: int, *, clock_stops: bool = False) -> None:
        """Stop a broker's process, as SIGSTOP does, or with its clock, as a stopped VM does."""
        self.loop.pause(self._lives[broker_id].host, clock_stops=clock_stops)
        self.trace.add("pause", host_name(broker_id))

    def unpause(self, broker_id: int) -> None:
        """Let it go on; what arrived meanwhile waits in its sockets."""
        host = self._lives[broker_id].host
        self.loop.resume(host)
        self.net.resumed(host)
        self.trace.add("unpause", host_name(broker_id))

    async def restart(self, broker_id: int) -> None:
        """Start the next life of a crashed broker, after ending its last session."""
        self._lives[broker_id].coord.expire()
        await self.start_broker(broker_id)

    async def on_host(self, broker_id: int, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as part of a broker's process; HostCrashed if the process dies first."""
        life = self._lives[broker_id]
        done: asyncio.Future[T] = self.loop.create_future()
        context = copy_context()
        context.run(CURRENT_HOST.set, life.host)
        context.run(Supervisor(self._failed).spawn, "work of a test", _report(work, done))
        life.waiting.append(done)
        return await done

    def _end(self, broker_id: int) -> _Life:
        life = self._lives[broker_id]
        life.is_up = False
        self._count_up()
        self.loop.kill(life.host)
        for future in life.waiting:
            if not future.done():
                future.set_exception(HostCrashed(life.host.name))
        return life

    def _config(self, broker_id: int) -> BrokerConfig:
        address = f"{host_name(broker_id)}:{PORT}"
        own = {"node.id": broker_id, "listeners": address, "data.dir": "/data"}
        return broker_config(values={**own, **self._values})

    def _died(self, broker_id: int) -> None:
        self._failed(f"broker {broker_id}", RuntimeError("a part of it failed; see the log"))

    def _failed(self, part: str, error: BaseException) -> None:
        self.failures.append((part, error))

    # --- randomness ------------------------------------------------------------------------------

    def _fork(self) -> SeededRng:
        return SeededRng(self.rng.below(_SEEDS))

    def _new_disk(self, broker_id: int) -> SimDisk:
        return SimDisk(
            run_delay_s=lambda: self._disk_delay_s(broker_id),
            wall_ms=SimClock(self.loop.time).wall_ms,
        )

    def _disk_delay_s(self, broker_id: int) -> float:
        return self.disk_delays_s.get(broker_id) or self._draw_s(self._disk_delay_s_max)

    def _draw_s(self, longest_s: float) -> float:
        return longest_s * (1 + self._delays.below(_STEPS)) / _STEPS


def host_name(broker_id: int) -> str:
    return f"broker-{broker_id}"


async def _report(work: Coroutine[Any, Any, T], done: asyncio.Future[T]) -> None:
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - passed to the waiting caller
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)
