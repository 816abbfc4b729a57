"""The demo's broker: its own process on a free port; its data is removed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tidemill.core.config.broker_config import Endpoint, parse_endpoint
from tidemill.core.errors import TidemillError
from tidemill.testing.broker_process import BrokerProcess

__all__ = ["own_broker"]

_START_S = 15.0
_STOP_S = 12.0
_POLL_S = 0.02


@contextlib.asynccontextmanager
async def own_broker() -> AsyncIterator[Endpoint]:
    """Run a broker for the time of the block; its data lives in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-") as directory:
        broker = BrokerProcess(Path(directory) / "data")
        broker.spawn()
        try:
            await _wait_ready(broker)
            yield parse_endpoint(broker.bootstrap, key="ready")
        finally:
            # Blocks the loop, on which nothing else runs by now.
            with contextlib.suppress(subprocess.TimeoutExpired):
                broker.stop(_STOP_S)


async def _wait_ready(broker: BrokerProcess) -> None:
    try:
        async with asyncio.timeout(_START_S):
            while not broker.is_ready():  # noqa: ASYNC110 - the log sends no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise TidemillError(f"the broker was not ready after {_START_S:g} s") from None
