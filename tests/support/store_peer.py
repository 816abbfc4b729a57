"""A process with a session of the SQLite store, for tests: a command per line, an answer per line.

create PATH [ephemeral]   done, or conflict
count PATH TIMES          adds one to the number in a node, TIMES times
get PATH                  the value, or none
gone PATH                 done, once there is no such node
watch PREFIX              done; later a line `changed` for each call
hang                      the event loop stands still, the other threads run
lock                      takes the queue of writers and never leaves it
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
from tidemill.core.clock import SystemClock
from tidemill.metadata.store.coord import CoordConflict, Create, Put
from tidemill.metadata.store.sqlite_store import SqliteCoord

REPOSITORY = Path(__file__).parents[2]


class StorePeer:
    """The process as the test sees it."""

    def __init__(self, directory: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.store_peer", str(directory / "coord.db")],
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


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def gone(coord: SqliteCoord, path: str) -> None:
    """Wait until a node is gone; a watch says when to look again."""
    changed = asyncio.Event()
    coord.watch(path, lambda _: changed.set())
    while await coord.get(path) is not None:
        await changed.wait()
        changed.clear()


async def _count(coord: SqliteCoord, path: str, times: int) -> None:
    done = 0
    while done < times:
        node = await coord.get(path)
        assert node is not None
        try:
            await coord.multi([Put(path, b"%d" % (int(node.value) + 1), node.version)])
        except CoordConflict:
            continue
        done += 1


async def _obey(coord: SqliteCoord, path: str, words: list[str]) -> str:
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
        case ["watch", prefix]:
            coord.watch(prefix, lambda _: _say("changed"))
        case ["hang"]:
            _say("hanging")
            threading.Event().wait()
        case ["lock"]:
            lock = os.open(path.removesuffix(".db") + ".lock", os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX)
    return "done"


async def _main(path: str) -> None:
    coord = SqliteCoord(path, SystemClock())
    await coord.start()
    _say("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        _say(await _obey(coord, path, line.split()))
    await coord.close()


if __name__ == "__main__":
    run(_main(sys.argv[1]))
