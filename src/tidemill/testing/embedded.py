"""A real broker inside this process, for tests: free port, temporary directory, own event loop.

    with broker() as running:
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap})

It is the same broker that `tidemill up` runs; only its event loop runs in a separate thread.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

from tidemill.broker import Broker
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.loop.event_loop import new_event_loop

__all__ = ["RunningBroker", "broker"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


@final
class RunningBroker:
    """A broker on a thread; clients connect to `bootstrap`."""

    def __init__(self, data_dir: str, settings: Mapping[str, object]) -> None:
        values = {"listeners": "127.0.0.1:0", "data.dir": data_dir, **settings}
        self._config = broker_config(values=values)
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tidemill broker", daemon=True)
        self._started: asyncio.Future[Endpoint] | None = None
        self.data_dir = data_dir
        self.broker = Broker(self._config)
        self.bootstrap = ""

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def start(self) -> None:
        """Start serving; raises the error that `tidemill up` would report."""
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self.broker.start(), self._loop)
        try:
            self.bootstrap = str(started.result(START_TIMEOUT_S))
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Shut down cleanly: answers drained, everything flushed."""
        stopped = asyncio.run_coroutine_threadsafe(self.broker.stop(), self._loop)
        stopped.result(STOP_TIMEOUT_S)
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        self._loop.close()


@contextmanager
def broker(data_dir: str | None = None, **settings: object) -> Iterator[RunningBroker]:
    """A running broker; its data directory is removed at the end, unless you named one.

    Settings are broker keys with underscores: `broker(num_partitions=1)`.
    """
    directory = data_dir or tempfile.mkdtemp(prefix="tidemill-")
    running = RunningBroker(directory, {k.replace("_", "."): v for k, v in settings.items()})
    try:
        running.start()
        try:
            yield running
        finally:
            running.stop()
    finally:
        if data_dir is None:
            shutil.rmtree(directory, ignore_errors=True)
