"""Three brokers as one subject: Tidemill under its supervisor, Kafka as three combined nodes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, final

from bench.kafka import PROPERTIES, format_storage, new_cluster_id, server_command
from bench.processes import MeasurementFailed, Memory, cpu_seconds, free_port, memory_of
from bench.wire_client import Address, answers_api_versions
from tidemill.testing.child_process import ChildProcess
from tidemill.testing.cluster_process import ClusterNotReady, ClusterProcess

__all__ = [
    "BROKERS",
    "GROUPS_DO_NOT_WAIT",
    "STOP_SECONDS_MAX",
    "KafkaCluster",
    "MeasuredCluster",
    "TidemillCluster",
    "kafka_properties",
    "memory_sum",
    "running",
]

BROKERS = 3
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
POLL_S = 0.05
GROUPS_DO_NOT_WAIT = "group.initial.rebalance.delay.ms=0"


class MeasuredCluster(Protocol):
    """Three brokers that can be started, measured, and lose one of them."""

    name: str

    @property
    def address(self) -> Address:
        """Of one broker, which names the others."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def cpu_seconds(self) -> float:
        """Of all brokers together."""
        ...

    def memory(self) -> Memory: ...

    def kill_broker(self, broker_id: int) -> None:
        """End one as a crash would."""
        ...

    def stop_broker(self, broker_id: int) -> None:
        """Ask one to stop; does not wait."""
        ...

    def topic_config(self, *, flush: str) -> dict[str, str]: ...


@final
class TidemillCluster:
    """`tidemill up --brokers N`. A broker that ends is started again after a second."""

    name = "tidemill"

    def __init__(self, data_dir: Path, brokers: int = BROKERS) -> None:
        self.data_dir = data_dir
        self._brokers = brokers
        self._process = ClusterProcess(data_dir, GROUPS_DO_NOT_WAIT, brokers=brokers)

    @property
    def address(self) -> Address:
        return self.address_of(0)

    def address_of(self, broker_id: int) -> Address:
        host, _, port = self._process.addresses[broker_id].rpartition(":")
        return Address(host, int(port))

    def start(self) -> None:
        try:
            self._process.start()
        except ClusterNotReady as error:
            raise MeasurementFailed(f"{self._brokers} brokers did not start: {error}") from error

    def stop(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.stop(STOP_SECONDS_MAX)

    def broker_directory(self, broker_id: int) -> Path:
        """Where a broker other than the first has its data."""
        return self.data_dir / f"broker-{broker_id}"

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._pids()))

    def memory(self) -> Memory:
        """Of the brokers; their supervisor is not counted."""
        return memory_sum(memory_of(pid) for pid in self._pids())

    def kill_broker(self, broker_id: int) -> None:
        self._process.kill_broker(broker_id)

    def stop_broker(self, broker_id: int) -> None:
        os.kill(self._process.broker_pid(broker_id), signal.SIGTERM)

    def topic_config(self, *, flush: str) -> dict[str, str]:
        return {"tidemill.flush": flush, "min.insync.replicas": "2"}

    def _pids(self) -> list[int]:
        return [self._process.broker_pid(broker_id) for broker_id in range(self._brokers)]


@final
class KafkaCluster:
    """Three combined KRaft nodes, each as the one that other rows measure; ids from 1."""

    name = "kafka"

    def __init__(self, data_dir: Path) -> None:
        self._ports = [free_port() for _ in range(BROKERS)]
        cluster_id = new_cluster_id()
        controllers = [free_port() for _ in range(BROKERS)]
        self._nodes = []
        for number in range(BROKERS):
            directory = data_dir / f"node-{number + 1}"
            directory.mkdir(parents=True)
            properties = directory / "server.properties"
            text = kafka_properties(directory / "logs", number, self._ports, controllers)
            properties.write_text(text)
            format_storage(properties, cluster_id)
            command = server_command(properties)
            log = directory.with_suffix(".log")
            self._nodes.append(ChildProcess(command, log, new_session=True))

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._ports[0])

    def start(self) -> None:
        for node in self._nodes:
            node.spawn()
        deadline = time.monotonic() + START_SECONDS_MAX
        for node, port in zip(self._nodes, self._ports, strict=True):
            while not answers_api_versions(Address("127.0.0.1", port)):
                if node.exit_code is not None or time.monotonic() > deadline:
                    raise MeasurementFailed(f"a Kafka node did not start: {node.last_line()}")
                time.sleep(POLL_S)

    def stop(self) -> None:
        for node in self._nodes:
            with suppress(subprocess.TimeoutExpired):
                node.stop(STOP_SECONDS_MAX)

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(node.pid) for node in self._nodes if node.exit_code is None)

    def memory(self) -> Memory:
        return memory_sum(memory_of(node.pid) for node in self._nodes)

    def kill_broker(self, broker_id: int) -> None:
        self._nodes[broker_id - 1].kill()

    def stop_broker(self, broker_id: int) -> None:
        os.kill(self._nodes[broker_id - 1].pid, signal.SIGTERM)

    def topic_config(self, *, flush: str) -> dict[str, str]:
        assert flush == "os", "Kafka has one kind of flush"
        return {"min.insync.replicas": "2"}


def kafka_properties(logs: Path, number: int, ports: list[int], controllers: list[int]) -> str:
    """The properties of one node: those of a single one, with three voters and three replicas."""
    voters = ",".join(f"{1 + i}@127.0.0.1:{port}" for i, port in enumerate(controllers))
    text = PROPERTIES.format(port=ports[number], controller=controllers[number], logs=logs)
    text = re.sub(r"(?m)^node.id=.*$", f"node.id={1 + number}", text)
    text = re.sub(
        r"(?m)^controller.quorum.bootstrap.servers=.*$", f"controller.quorum.voters={voters}", text
    )
    text = re.sub(r"(?m)^(.*replication.factor)=1$", rf"\1={BROKERS}", text)
    return re.sub(r"(?m)^(.*min.isr)=1$", r"\1=2", text)


@contextmanager
def running(cluster: MeasuredCluster, data_dir: Path) -> Iterator[MeasuredCluster]:
    """A cluster for one row; its data is removed afterwards."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(data_dir, ignore_errors=True)


def memory_sum(memories: Iterable[Memory]) -> Memory:
    """Of several processes together."""
    found = list(memories)
    return Memory(
        anon_mb=sum(one.anon_mb for one in found),
        resident_mb=sum(one.resident_mb for one in found),
    )
