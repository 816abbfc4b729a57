"""The demo's broker: a process of its own, on a free port, whose data goes away with it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator

from tidemill.core.config.broker_config import Endpoint, parse_endpoint
from tidemill.core.errors import TidemillError

__all__ = ["end_process", "own_broker"]

_START_S = 15.0
_STOP_S = 12.0


@contextlib.asynccontextmanager
async def own_broker() -> AsyncIterator[Endpoint]:
    """A broker in a process of its own, on a free port, in a directory that goes away with it."""
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-") as directory:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidemill.cli.main", "up"),
            *("--data-dir", directory, "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield await _wait_ready(process)
        finally:
            await end_process(process)


async def _wait_ready(process: asyncio.subprocess.Process) -> Endpoint:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        raise TidemillError(f"the broker was not ready after {_START_S:g} s") from None
    if not line.startswith("ready: "):
        raise TidemillError(f"the broker did not start: {await _last_words(process)}")
    return parse_endpoint(line.removeprefix("ready: ").strip(), key="ready")


async def _last_words(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    lines = (await process.stderr.read(65_536)).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing; try `tidemill up`"


async def end_process(process: asyncio.subprocess.Process, wait_s: float = _STOP_S) -> None:
    """SIGTERM, and SIGKILL for one that does not go in time."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(wait_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
