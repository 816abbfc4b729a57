"""A process with a session of a store, for tests: a command per line, an answer per line.

create PATH [ephemeral]   done, or conflict
count PATH TIMES          adds one to the number in a node, TIMES times
get PATH                  the value, or none
gone PATH                 done, once there is no such node
hear PATH VALUE           listening; then done, once watches have led to a node with this value
restart                   begins another session
hang                      the event loop stands still, the other threads run
lock                      takes the queue of writers (SQLite) and never leaves it

The store is `sqlite:FILE` or `zookeeper:HOST:PORT/NODE`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.coroutines import run
from tests.support.zookeeper import new_coord
from tidemill.core.clock import SystemClock
from tidemill.metadata.store.coord import Coord, CoordConflict, Create, Put, SessionState
from tidemill.metadata.store.sqlite_store import SqliteCoord

REPOSITORY = Path(__file__).parents[2]


class StorePeer:
    """The process as the test sees it."""

    def __init__(self, store: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.store_peer", store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )
        assert self.line() == "ready"

    def __enter__(self) -> StorePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.line()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait()


def open_store(store: str, broker_id: int = 0) -> Coord:
    """A session that is not started yet."""
    kind, _, place = store.partition(":")
    if kind == "zookeeper":
        return new_coord(place, broker_id=broker_id)
    return SqliteCoord(place, SystemClock())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def gone(coord: Coord, path: str) -> None:
    """Wait until a node is gone; a watch says when to look again."""
    changed = asyncio.Event()
    coord.watch(path, lambda _: changed.set())
    while await coord.get(path, newest=True) is not None:
        await changed.wait()
        changed.clear()


async def _count(coord: Coord, path: str, times: int) -> None:
    done = 0
    while done < times:
        node = await coord.get(path, newest=True)
        assert node is not None
        try:
            await coord.multi([Put(path, b"%d" % (int(node.value) + 1), node.version)])
        except CoordConflict:
            continue
        done += 1


async def _obey(coord: Coord, store: str, words: list[str]) -> str:
    match words:
        case ["create", node, *ephemeral]:
            try:
                await coord.multi([Create(node, b"0", ephemeral=bool(ephemeral))])
            except CoordConflict:
                return "conflict"
        case ["count", node, times]:
            await _count(coord, node, int(times))
        case ["get", node]:
            found = await coord.get(node)
            return "none" if found is None else found.value.decode()
        case ["gone", node]:
            await gone(coord, node)
        case ["hear", node, value]:
            await _hear(coord, node, value.encode())
        case _:
            return await _live(coord, store, words)
    return "done"


async def _hear(coord: Coord, path: str, value: bytes) -> None:
    changed = asyncio.Event()
    coord.watch(path, lambda _: changed.set())
    _say("listening")
    while (node := await coord.get(path)) is None or node.value != value:
        await changed.wait()
        changed.clear()


async def _live(coord: Coord, store: str, words: list[str]) -> str:
    match words:
        case ["restart"]:
            lost = asyncio.Event()
            coord.on_state(lambda state: lost.set() if state is SessionState.LOST else None)
            if coord.state is not SessionState.LOST:
                await lost.wait()
            await coord.start()
        case ["hang"]:
            _say("hanging")
            threading.Event().wait()
        case ["lock"]:
            path = store.removeprefix("sqlite:").removesuffix(".db")
            lock = os.open(f"{path}.lock", os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX)
    return "done"


async def _main(store: str) -> None:
    coord = open_store(store, broker_id=1)
    await coord.start()
    _say("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        _say(await _obey(coord, store, line.split()))
    await coord.close()


if __name__ == "__main__":
    run(_main(sys.argv[1]))
