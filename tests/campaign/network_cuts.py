"""Three brokers and a ZooKeeper on hosts of their own, whose network is cut in several ways.

    unshare --map-root-user --net --pid --mount-proc --fork --kill-child \\
        python -m tests.campaign.network_cuts [--json]

One idempotent producer per partition sends all the time while the network is cut and mended. Each
cut waits for its effect, and says in which partitions producers must go on meanwhile; after it
all must. At the end everything that was sent is there, once and in order (I1-I4).

Progress goes to stderr, the summary to stdout; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from confluent_kafka.admin import AdminClient

from tests.campaign.summary import print_summary
from tests.e2e.load import Load, read_logs
from tests.support.clients import DEADLINE_S
from tests.support.network_lab import NetworkLab
from tests.support.topics import create_replicated
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess
from tidemill.testing.zookeeper_process import ZookeeperProcess

__all__ = ["CutRun", "CutSummary"]

TOPIC = "orders"
BROKERS = 3
PARTITIONS = [0, 1, 2]
SESSION_S = 3.0
LAG_S = 2.0
CLIENT_ADDRESS, STORE_ADDRESS = "10.77.0.254", "10.77.0.253"
HOST_ADDRESSES = [f"10.77.0.{number + 1}" for number in range(BROKERS)]
PORT = 9092
"""On networks of our own nobody else has it."""
RECORDS = 200
"""So many more must be acknowledged before a producer is said to go on."""
SLOW_KILOBITS = 128
PAUSE_S = 0.2
IMPATIENT = {"request.timeout.ms": 3000, "socket.timeout.ms": 4000}
"""Producers that give up soon on a broker that does not answer."""


@dataclass(slots=True)
class CutSummary:
    """What a run has shown."""

    cuts: dict[str, float] = field(default_factory=dict)
    """Each with the seconds until producers went on where they must."""
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)


class CutRun:
    """One cluster, in which one cut comes after the other."""

    def __init__(self, folder: Path) -> None:
        self.summary = CutSummary()
        self._lab = NetworkLab([CLIENT_ADDRESS, STORE_ADDRESS])
        self._hosts = [self._lab.add_host(address) for address in HOST_ADDRESSES]
        self._store = ZookeeperProcess(folder / "zookeeper", host=STORE_ADDRESS).start()
        self._brokers = [self._new_broker(folder, number) for number in range(BROKERS)]
        for broker in self._brokers:
            broker.spawn()
        for broker in self._brokers:
            broker.wait_ready()
        self._bootstrap = ",".join(broker.bootstrap for broker in self._brokers)
        self._admins = [
            AdminClient({"bootstrap.servers": broker.bootstrap}) for broker in self._brokers
        ]
        create_replicated(self._bootstrap, TOPIC, partitions=len(PARTITIONS))
        self._loads = [
            Load(
                self._bootstrap,
                [(TOPIC, index)],
                seed=index,
                producers=1,
                pause_s=PAUSE_S,
                **IMPATIENT,
            )
            for index in PARTITIONS
        ]

    def _new_broker(self, folder: Path, number: int) -> BrokerProcess:
        host = self._hosts[number]
        return BrokerProcess(
            folder / f"broker-{number}",
            "min.insync.replicas=2",
            f"zookeeper.session.timeout.ms={int(SESSION_S * 1000)}",
            f"replica.lag.time.max.ms={int(LAG_S * 1000)}",
            flags=["--zookeeper", self._store.address, "--broker-id", str(number)],
            command=(*host.prefix, *TIDEMILL),
            listen=f"{host.address}:{PORT}",
        )

    def run(self) -> CutSummary:
        for load in self._loads:
            load.start()
        try:
            self._expect_progress(PARTITIONS)
            for cut in (
                self._cut_one_way,
                self._cut_what_the_controller_sends,
                self._isolate,
                self._slow_down,
                self._cut_the_store,
            ):
                self._try(cut)
            self._check()
        except AssertionError as broken:
            self.summary.violations.append(str(broken))
        finally:
            self._end()
        return self.summary

    # --- cuts ------------------------------------------------------------------------------------

    def _cut_one_way(self, mends: ExitStack) -> None:
        """What one broker sends to the others is lost; they go on without it."""
        controller = self._controller()
        chosen = _next(controller)
        led_elsewhere = self._not_led_by(chosen, asked=controller)
        self._cut(mends, chosen, _others(chosen))
        self._wait_until_out_of_sync(chosen, led_elsewhere, asked=controller)
        self._expect_progress(led_elsewhere)

    def _cut_what_the_controller_sends(self, mends: ExitStack) -> None:
        """Nobody hears it: another broker takes over, and others lead what it led."""
        chosen = self._controller()
        self._cut(mends, chosen, _others(chosen))
        wait_until(
            lambda: self._controller(_next(chosen)) not in (chosen, -1),
            f"broker {chosen} is the controller though nobody hears it",
        )
        self._expect_progress(PARTITIONS)

    def _isolate(self, mends: ExitStack) -> None:
        """A broker that reaches clients alone: others lead once its session has ended."""
        chosen = self._controller()
        self._cut(mends, chosen, [*_others(chosen), STORE_ADDRESS])
        wait_until(
            lambda: self._not_led_by(chosen, asked=_next(chosen)) == PARTITIONS,
            f"broker {chosen} leads though nobody hears of it",
        )
        self._expect_progress(PARTITIONS)

    def _slow_down(self, mends: ExitStack) -> None:
        """A broker on a slow line: producers wait for it, or for the others alone."""
        chosen = self._hosts[_next(self._controller())]
        chosen.slow_down(SLOW_KILOBITS)
        mends.callback(chosen.speed_up)
        self._expect_progress(PARTITIONS)

    def _cut_the_store(self, mends: ExitStack) -> None:
        """Nobody reaches ZooKeeper for longer than a session: followers vouch for leaders."""
        for number in range(BROKERS):
            self._cut(mends, number, [STORE_ADDRESS])
        over_at = monotonic() + 3 * SESSION_S
        while monotonic() < over_at:
            self._expect_progress(PARTITIONS)

    def _cut(self, mends: ExitStack, chosen: int, lost: list[str]) -> None:
        self._hosts[chosen].cut_to(*lost)
        mends.callback(self._hosts[chosen].mend_to, *lost)

    # --- steps -----------------------------------------------------------------------------------

    def _try(self, cut: Callable[[ExitStack], None]) -> None:
        name = cut.__name__.removeprefix("_").replace("_", " ")
        print(name, file=sys.stderr, flush=True)
        started = monotonic()
        with ExitStack() as mends:
            cut(mends)
            self.summary.cuts[name] = round(monotonic() - started, 1)
        for number in range(BROKERS):
            wait_until(
                lambda number=number: len(self._in_sync_with(number)) == len(PARTITIONS),
                f"broker {number} is not in sync after the cut",
            )
        self._expect_progress(PARTITIONS)

    def _expect_progress(self, partitions: Sequence[int]) -> None:
        for index in partitions:
            self._loads[index].wait_acknowledged(RECORDS)

    def _wait_until_out_of_sync(self, broker: int, partitions: list[int], *, asked: int) -> None:
        wait_until(
            lambda: not set(partitions) & set(self._in_sync_with(broker, asked=asked)),
            f"broker {broker} is still in sync",
        )

    def _check(self) -> None:
        logs = [(TOPIC, index) for index in PARTITIONS]
        for load in self._loads:
            load.finish()
            self.summary.violations += load.failures
        found = read_logs(self._bootstrap, logs)
        for load, log in zip(self._loads, logs, strict=True):
            self.summary.acknowledged += len(load.acknowledged)
            read = dict(enumerate(found[log]))
            lost = [one for one in load.acknowledged if read.get(one.offset) != one.value]
            assert not lost, f"I1: not there of {len(read)} records of {log}: {lost[:5]}"
            assert found[log] == load.sent[0, log], f"I3, I4: {log} has not what was sent, in order"

    def _end(self) -> None:
        for broker in self._brokers:
            broker.kill()
        self._store.stop()
        self._lab.remove()

    # --- the cluster, as one broker tells a client -----------------------------------------------

    def _metadata(self, asked: int) -> Any:
        return self._admins[asked].list_topics(TOPIC, DEADLINE_S)

    def _controller(self, asked: int = 0) -> int:
        return int(self._metadata(asked).controller_id)

    def _partitions(self, asked: int) -> list[Any]:
        return list(self._metadata(asked).topics[TOPIC].partitions.values())

    def _not_led_by(self, broker: int, *, asked: int) -> list[int]:
        return [one.id for one in self._partitions(asked) if one.leader not in (broker, -1)]

    def _in_sync_with(self, broker: int, *, asked: int = 0) -> list[int]:
        return [one.id for one in self._partitions(asked) if broker in one.isrs]


def _next(broker: int) -> int:
    return (broker + 1) % BROKERS


def _others(broker: int) -> list[str]:
    return [address for number, address in enumerate(HOST_ADDRESSES) if number != broker]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cut the network of a cluster.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidemill-cuts-") as name:
        summary = asdict(CutRun(Path(name)).run())
    return print_summary(summary, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
