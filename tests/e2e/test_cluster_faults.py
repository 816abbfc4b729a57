"""Three brokers on each store fail under idempotent producers and groups of both protocols."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, final

import pytest

from tests.e2e.group_members import KINDS, Member
from tests.e2e.group_watch import GroupWatch
from tests.e2e.load import Load, Log, read_logs
from tests.support.clients import DEADLINE_S
from tests.support.topics import create_replicated
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess
from tidemill.testing.cluster_process import ClusterProcess
from tidemill.testing.zookeeper_process import ZookeeperProcess, is_available

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BROKERS = 3
PROTOCOLS = ("librdkafka-classic", "librdkafka-consumer")
PAUSE_S = 0.2
IMPATIENT = {"request.timeout.ms": 3000, "socket.timeout.ms": 4000}
"""Clients that give up soon on a broker that stands still with their requests."""
SETTINGS = ("group.initial.rebalance.delay.ms=0", "group.consumer.heartbeat.interval.ms=100")
SESSION_MS = 4000


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
        self._cluster.wait_log(rf"broker {broker_id} ended with SIGKILL")  # by another one
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
    """A command for each broker, and a ZooKeeper."""

    def __init__(self, directory: Path) -> None:
        self._zookeeper = ZookeeperProcess(directory / "zookeeper").start()
        self._brokers = [
            BrokerProcess(
                directory / f"broker-{number}",
                *SETTINGS,
                "min.insync.replicas=2",
                "default.replication.factor=3",
                f"zookeeper.session.timeout.ms={SESSION_MS}",
                flags=["--zookeeper", self._zookeeper.address, "--broker-id", str(number)],
            )
            for number in range(BROKERS)
        ]
        self._start_all()

    def _start_all(self) -> None:
        for broker in self._brokers:
            broker.spawn()
        for broker in self._brokers:
            broker.wait_ready()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self._brokers)

    def kill(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()

    def bring_back(self, broker_id: int) -> None:
        self._brokers[broker_id].start()

    @contextmanager
    def paused(self, broker_id: int) -> Iterator[None]:
        os.kill(self._brokers[broker_id].pid, signal.SIGSTOP)
        asked = self._brokers[(broker_id + 1) % BROKERS].bootstrap
        wait_for_brokers(asked, set(range(BROKERS)) - {broker_id})
        yield
        os.kill(self._brokers[broker_id].pid, signal.SIGCONT)
        wait_for_brokers(self._brokers[broker_id].bootstrap, set(range(BROKERS)))

    def kill_all_twice(self) -> None:
        for _ in range(2):
            for broker in self._brokers:
                broker.kill()
            for broker in self._brokers:
                broker.spawn()
        for broker in self._brokers:
            broker.wait_ready()

    def stop(self) -> None:
        for broker in self._brokers:
            broker.stop()
        self._zookeeper.stop()


needs_zookeeper = pytest.mark.skipif(
    not is_available(), reason="needs Java and the jars of pyspark"
)


@pytest.fixture(params=[OneHost, pytest.param(SeveralHosts, marks=needs_zookeeper)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = request.param(tmp_path)
    for address in made.bootstrap.split(","):
        wait_for_brokers(address, set(range(BROKERS)))
    yield made
    made.stop()


@final
class Work:
    """Producers, and a group of each protocol that reads what they send."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        create_replicated(bootstrap, topic, partitions=BROKERS)
        self._bootstrap = bootstrap
        self.logs: list[Log] = [(topic, index) for index in range(BROKERS)]
        self._load = Load(bootstrap, self.logs, seed=1, pause_s=PAUSE_S, **IMPATIENT)
        self._watches = {protocol: GroupWatch() for protocol in PROTOCOLS}
        options = {name.replace(".", "_"): value for name, value in IMPATIENT.items()}
        options.pop("request_timeout_ms")
        self._members: list[Member] = [
            KINDS[protocol].join(
                f"m{n}", watch, bootstrap, f"{topic}-{protocol}", [topic], **options
            )
            for protocol, watch in self._watches.items()
            for n in range(2)
        ]
        self._load.start()

    def goes_on(self) -> None:
        """More is acknowledged, and both groups commit more."""
        before = {name: sum(watch.committed.values()) for name, watch in self._watches.items()}
        self._load.wait_acknowledged(200)
        for name, watch in self._watches.items():
            target = before[name] + 200
            watch.wait(
                f"{name}: {target} committed",
                lambda watch=watch, target=target: sum(watch.committed.values()) >= target,
            )

    def check(self) -> None:
        """Everything is there once and in order (I1-I5), and both groups have read it (I28)."""
        self._load.finish()
        assert self._load.failures == []
        found = read_logs(self._bootstrap, self.logs)
        for one in self._load.acknowledged:
            assert found[one.log][one.offset] == one.value
        for (number, log), sent in self._load.sent.items():
            mark = b"%d:" % number
            assert [value for value in found[log] if value.startswith(mark)] == sent
        for watch in self._watches.values():
            watch.wait_values(one.value for one in self._load.acknowledged)
            assert watch.wrong == []

    def close(self) -> None:
        self._load.abandon()
        for member in self._members:
            member.stop()
        for member in self._members:
            member.close()


@pytest.fixture
def work(store: Store, topic: str) -> Iterator[Work]:
    made = Work(store.bootstrap, topic)
    made.goes_on()
    yield made
    made.close()


@contextmanager
def moving(store: Store, topic: str, brokers: str) -> Iterator[None]:
    """Meanwhile all partitions move; the command may lose the broker that it asks."""
    command = [*TIDEMILL, "cluster", "reassign", topic, "--brokers", brokers]
    with subprocess.Popen(
        [*command, "--bootstrap", store.bootstrap], stderr=subprocess.DEVNULL
    ) as move:
        yield
        move.wait(DEADLINE_S)


def test_F78_I1_I28_clients_and_groups_go_on_when_each_broker_is_killed_in_turn(store, work):
    for broker_id in range(BROKERS):
        store.kill(broker_id)
        work.goes_on()
        store.bring_back(broker_id)
    work.check()


def test_F100_I1_I28_brokers_that_are_killed_while_replicas_move_lose_nothing(store, work, topic):
    # Two replicas, both of which must be in sync: it goes on when the broker is back.
    for broker_id, brokers in enumerate(("1,2", "2,0", "0,1,2")):
        with moving(store, topic, brokers):
            store.kill(broker_id)
            store.bring_back(broker_id)
            work.goes_on()
    work.check()


def test_I8_I28_clients_and_groups_go_on_when_a_broker_stands_still(store, work):
    with store.paused(1):
        work.goes_on()
    work.goes_on()
    work.check()


def test_I1_I28_all_brokers_killed_together_and_again_while_they_start_lose_nothing(store, work):
    store.kill_all_twice()
    work.goes_on()
    work.check()
