"""Three brokers that meet in ZooKeeper as one subject: `tidemill up --zookeeper`, once for each."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import final

from bench.clusters import BROKERS, GROUPS_DO_NOT_WAIT, STOP_SECONDS_MAX, memory_sum
from bench.processes import MeasurementFailed, Memory, cpu_seconds, memory_of
from bench.topics import broker_count
from bench.wire_client import Address
from tidemill.testing.broker_process import BrokerProcess, BrokerStartFailed
from tidemill.testing.zookeeper_process import ZookeeperNotReady, ZookeeperProcess, is_available

__all__ = ["SESSION_MS", "ZookeeperCluster"]

SESSION_MS = 5_000
"""The default, and the longest that the test server grants."""
MEET_SECONDS_MAX = 30.0
POLL_S = 0.05


@final
class ZookeeperCluster:
    """Nobody starts a broker again that ends. CPU and memory include the one ZooKeeper server.

    Kafka's figures include its controllers as well, which do the same work.
    """

    name = "tidemill"

    def __init__(self, data_dir: Path) -> None:
        if not is_available():
            raise MeasurementFailed("ZooKeeper needs Java and the jars of pyspark")
        self._zookeeper = ZookeeperProcess(data_dir / "zookeeper")
        self._brokers = [
            BrokerProcess(
                data_dir / f"broker-{broker_id}",
                GROUPS_DO_NOT_WAIT,
                f"zookeeper.session.timeout.ms={SESSION_MS}",
                flags=["--zookeeper", self._zookeeper.address, "--broker-id", str(broker_id)],
            )
            for broker_id in range(BROKERS)
        ]

    @property
    def address(self) -> Address:
        return _address(self._brokers[0])

    def start(self) -> None:
        """Start the server, then all brokers at once; wait until each knows all."""
        try:
            self._zookeeper.start()
            for broker in self._brokers:
                broker.spawn()
            for broker in self._brokers:
                broker.wait_ready()
        except (ZookeeperNotReady, BrokerStartFailed) as error:
            raise MeasurementFailed(str(error)) from error
        for broker in self._brokers:
            _wait_for_all(_address(broker))

    def stop(self) -> None:
        for broker in self._brokers:
            with suppress(subprocess.TimeoutExpired):
                broker.stop(STOP_SECONDS_MAX)
        self._zookeeper.stop()

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._pids()))

    def memory(self) -> Memory:
        return memory_sum(map(memory_of, self._pids()))

    def kill_broker(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()

    def stop_broker(self, broker_id: int) -> None:
        os.kill(self._brokers[broker_id].pid, signal.SIGTERM)

    def topic_config(self, *, flush: str) -> dict[str, str]:
        return {"tidemill.flush": flush, "min.insync.replicas": "2"}

    def _pids(self) -> list[int]:
        return [self._zookeeper.pid, *(broker.pid for broker in self._brokers)]


def _address(broker: BrokerProcess) -> Address:
    host, _, port = broker.bootstrap.rpartition(":")
    return Address(host, int(port))


def _wait_for_all(address: Address) -> None:
    deadline = time.monotonic() + MEET_SECONDS_MAX
    while broker_count(address) < BROKERS:
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{address} does not know all {BROKERS} brokers")
        time.sleep(POLL_S)
