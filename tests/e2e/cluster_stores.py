"""Real brokers that meet in one of the stores, each of which a test may kill, stop or restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol, final

from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess
from tidemill.testing.cluster_process import ClusterProcess

__all__ = ["BROKERS", "SESSION_S", "OneHost", "SeveralHosts", "Store"]

BROKERS: Final = 3
SESSION_S: Final = 4.0
"""A busy machine must not end it."""
SETTINGS: Final = (
    "auto.create.topics.enable=false",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.heartbeat.interval.ms=1000",
)


class Store(Protocol):
    """Three brokers that meet in one of the stores."""

    @property
    def bootstrap(self) -> str: ...

    def kill(self, broker_id: int) -> None:
        """SIGKILL."""

    def bring_back(self, broker_id: int) -> None:
        """After it was killed."""

    def paused(self, broker_id: int) -> AbstractContextManager[None]:
        """SIGSTOP, and others have ended its session; afterwards it is there again."""

    def kill_all_twice(self) -> None:
        """SIGKILL for all together, and again while they start; then all run."""

    def stop(self) -> None: ...


@final
class OneHost:
    """`up --brokers 3`: the supervisor brings brokers back."""

    def __init__(self, directory: Path) -> None:
        self._cluster = ClusterProcess(directory / "data", *SETTINGS).start()
        self._seen = dict.fromkeys(range(BROKERS), 0)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self, broker_id: int) -> None:
        self._cluster.kill_broker(broker_id)

    @contextmanager
    def paused(self, broker_id: int) -> Iterator[None]:
        os.kill(self._cluster.broker_pid(broker_id), signal.SIGSTOP)
        ended = f"broker {broker_id} ended with SIGKILL"  # by another one
        times = self._seen[broker_id] + 1
        wait_until(lambda: self._cluster.log().count(ended) >= times, f"not {ended}")
        yield
        self.bring_back(broker_id)

    def bring_back(self, broker_id: int) -> None:
        self._seen[broker_id] += 1
        again = f"broker {broker_id} is ready again"
        wait_until(lambda: self._cluster.log().count(again) >= self._seen[broker_id], again)

    def kill_all_twice(self) -> None:
        first = self._running()
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: len(self._running() - first) == BROKERS, "the brokers are not started again"
        )
        for pid in self._running() - first:
            os.kill(pid, signal.SIGKILL)
        for broker_id in range(BROKERS):
            self.bring_back(broker_id)

    def _running(self) -> set[int]:
        pid = self._cluster.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def stop(self) -> None:
        self._cluster.stop()


@final
class SeveralHosts:
    """A command for each broker; they meet in a ZooKeeper."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *settings: str,
        count: int = BROKERS,
        commands: Mapping[int, Sequence[str]] | None = None,
        directories: Sequence[Path] = (),
    ) -> None:
        """`commands` start some brokers otherwise; `directories` are where their data is."""
        self._ids = set(range(count))
        places = directories or [directory / f"broker-{number}" for number in range(count)]
        self.brokers = [
            BrokerProcess(
                place,
                *SETTINGS,
                "min.insync.replicas=2",
                "default.replication.factor=3",
                f"zookeeper.session.timeout.ms={int(SESSION_S * 1000)}",
                *settings,
                flags=["--zookeeper", zookeeper, "--broker-id", str(number)],
                command=(commands or {}).get(number, TIDEMILL),
            )
            for number, place in enumerate(places)
        ]

    def start(self) -> SeveralHosts:
        self._start_all()
        self.wait_complete()
        return self

    def _start_all(self) -> None:
        for broker in self.brokers:
            broker.spawn()
        for broker in self.brokers:
            broker.wait_ready()

    def wait_complete(self) -> None:
        """Every broker has heard of all."""
        for broker in self.brokers:
            wait_for_brokers(broker.bootstrap, self._ids)

    @property
    def bootstrap(self) -> str:
        return self.without()

    def without(self, *broker_ids: int) -> str:
        """The addresses of the others: those that can be asked."""
        asked = sorted(self._ids.difference(broker_ids))
        return ",".join(self.brokers[broker_id].bootstrap for broker_id in asked)

    def kill(self, broker_id: int) -> None:
        self.brokers[broker_id].kill()

    def bring_back(self, broker_id: int) -> None:
        self.brokers[broker_id].start()

    @contextmanager
    def paused(self, broker_id: int) -> Iterator[None]:
        os.kill(self.brokers[broker_id].pid, signal.SIGSTOP)
        try:
            asked = self.brokers[(broker_id + 1) % len(self.brokers)].bootstrap
            wait_for_brokers(asked, self._ids - {broker_id})
            yield
        finally:
            os.kill(self.brokers[broker_id].pid, signal.SIGCONT)
        wait_for_brokers(self.brokers[broker_id].bootstrap, self._ids)

    def kill_all_twice(self) -> None:
        for _ in range(2):
            for broker in self.brokers:
                broker.kill()
            for broker in self.brokers:
                broker.spawn()
        for broker in self.brokers:
            broker.wait_ready()

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()
