"""A broker and its stand-by on two hosts that reach one disk (F85).

    python -m tests.campaign.shared_storage [--json]     # as root, on Linux

Hosts are mount namespaces, the disk is an ext4 image. Producers send without pause. First both
hosts have the file system, and the broker is killed. Then its host dies: what was not synced is
lost, and the disk is attached to the other. Last the disk is taken from a broker that lives on. The
stand-by must have everything that was acknowledged, in order and once (I1-I5).

Progress goes to stderr, the summary to stdout; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import confluent_kafka

from tests.campaign.summary import print_summary
from tests.e2e.load import Load, read_logs
from tests.support.clients import DEADLINE_S
from tests.support.storage_lab import SharedDisk, StorageHost, why_not_here
from tests.support.topics import create_topic
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess
from tidemill.testing.child_process import ChildProcess

__all__ = ["StorageRun", "StorageSummary"]

LOG = ("orders", 0)
RECORDS = 2000
UNSYNCED = "unsynced"
GIVES_UP_MS = 5000


@dataclass(slots=True)
class StorageSummary:
    """What a run has shown."""

    takeover_s: dict[str, float] = field(default_factory=dict)
    """By case: until the stand-by serves."""
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)


class StorageRun:
    """Each case has hosts, a disk and brokers of its own."""

    def __init__(self, folder: Path) -> None:
        self.summary = StorageSummary()
        self._folder = folder

    def run(self) -> StorageSummary:
        for case in (self._a_broker_dies, self._a_host_dies, self._a_disk_is_taken_away):
            name = case.__name__.removeprefix("_").replace("_", " ")
            print(name, file=sys.stderr, flush=True)
            stage = _Stage(self._folder / case.__name__)
            try:
                self.summary.takeover_s[name] = round(case(stage), 2)
                self.summary.acknowledged += stage.check()
            except AssertionError as broken:
                self.summary.violations.append(f"{name}: {broken}")
            finally:
                stage.end()
        return self.summary

    def _a_broker_dies(self, stage: _Stage) -> float:
        """Both hosts have the file system; the stand-by gets the lock, and clients go on."""
        stage.second.attach_that_of(stage.first)
        standby = stage.new_standby(stage.broker.bootstrap)
        process = standby.spawn()
        _wait_for_line(process, "standing by for")
        stage.load.wait_acknowledged(RECORDS)
        assert not standby.is_ready(), "the stand-by serves while the broker does"
        died_at = monotonic()
        stage.broker.kill()
        standby.wait_ready()
        seconds = monotonic() - died_at
        stage.expect_to_go_on()
        return seconds

    def _a_host_dies(self, stage: _Stage) -> float:
        """The other one gets its disk, and the address; clients go on."""
        stage.load.wait_acknowledged(RECORDS)
        died_at = monotonic()
        stage.broker.kill()
        stage.lose_disk()
        stage.first.detach()
        stage.second.attach(stage.disk.image)
        stage.new_standby(stage.broker.bootstrap).start()
        seconds = monotonic() - died_at
        stage.expect_to_go_on()
        return seconds

    def _a_disk_is_taken_away(self, stage: _Stage) -> float:
        """The broker lives on, and can neither write nor acknowledge."""
        stage.load.wait_acknowledged(RECORDS)
        taken_at = monotonic()
        with _standing_still(stage.broker):
            stage.lose_disk()
        stage.disk.fence()
        stage.second.attach(stage.disk.image)
        standby = stage.new_standby("127.0.0.1:0").start()
        seconds = monotonic() - taken_at
        stage.load.finish()
        assert not stage.first.write("late", "late"), "the first host can still write"
        assert not _is_acknowledged(stage.broker.bootstrap), "the first broker acknowledges"
        assert _is_acknowledged(standby.bootstrap), "the stand-by does not acknowledge"
        return seconds


class _Stage:
    """Two hosts and a disk; the first has a broker that producers write to."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.disk = SharedDisk(folder)
        self.first = StorageHost(folder / "first")
        self.second = StorageHost(folder / "second")
        self.broker = self._new_broker(self.first, "127.0.0.1:0")
        self.standby: BrokerProcess | None = None
        try:
            self.first.attach(self.disk.image)
            self.broker.start()
            create_topic(self.broker.bootstrap, LOG[0])
        except BaseException:
            self._remove()
            raise
        options: dict[str, Any] = {"message.timeout.ms": int(DEADLINE_S * 1000), "log_level": 0}
        self.load = Load(self.broker.bootstrap, [LOG], seed=1, producers=1, **options).start()

    def new_standby(self, listen: str) -> BrokerProcess:
        self.standby = self._new_broker(self.second, listen, "--standby")
        return self.standby

    def _new_broker(self, host: StorageHost, listen: str, *flags: str) -> BrokerProcess:
        return BrokerProcess(
            host.mount / "data", command=(*host.prefix, *TIDEMILL), listen=listen, flags=flags
        )

    def lose_disk(self) -> None:
        assert self.first.write(UNSYNCED, UNSYNCED)
        self.first.lose_disk()

    def expect_to_go_on(self) -> None:
        """The producer gets everything acknowledged, as if nothing had been."""
        self.load.wait_acknowledged(RECORDS)
        self.load.finish()
        assert not self.load.failures, f"{len(self.load.failures)}: {self.load.failures[0]}"

    def check(self) -> int:
        """Everything that was acknowledged is there, once and in order; how much that is."""
        assert self.standby is not None
        assert "took over" in self.standby.log_path.read_text()
        assert self.second.read(UNSYNCED) == "", "the disk has what was never synced"
        self.load.finish()
        found = read_logs(self.standby.bootstrap, [LOG])[LOG]
        acknowledged = self.load.acknowledged
        lost = sum(found[one.offset : one.offset + 1] != [one.value] for one in acknowledged)
        assert not lost, f"I1: {lost} of {len(acknowledged)} acknowledged records are not there"
        numbers = [int(value.partition(b":")[2]) for value in found if b":" in value]
        assert numbers == sorted(set(numbers)), "I4, I5: a record is there twice or too late"
        return len(acknowledged)

    def end(self) -> None:
        self.load.abandon()
        self._remove()

    def _remove(self) -> None:
        for broker in (self.broker, self.standby):
            if broker is not None:
                broker.kill()
        for host in (self.first, self.second):
            host.remove()


@contextmanager
def _standing_still(broker: BrokerProcess) -> Iterator[None]:
    """No sync is under way: what became of one that the shutdown of ext4 meets is not known."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{broker.pid}/task")
        deadline = monotonic() + DEADLINE_S
        while not all(_is_stopped(one) for one in tasks.iterdir()):
            assert monotonic() < deadline, "it does not stand still"
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def _is_acknowledged(bootstrap: str) -> bool:
    """Whether a new producer can write to this broker."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "message.timeout.ms": GIVES_UP_MS, "log_level": 0}
    )
    errors: list[object] = []
    producer.produce(LOG[0], b"probe", partition=0, on_delivery=lambda e, _: errors.append(e))
    producer.flush(DEADLINE_S)
    return any(error is None for error in errors)  # KafkaError cannot be compared with None


def _wait_for_line(process: ChildProcess, text: str) -> None:
    deadline = monotonic() + DEADLINE_S
    while text not in process.log():
        assert process.wait(0.02) is None, process.last_line()
        assert monotonic() < deadline, f"{text!r} did not come"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take a disk from a broker to its stand-by.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if reason := why_not_here():
        print(f"not possible: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tidemill-storage-") as name:
        summary = asdict(StorageRun(Path(name)).run())
    return print_summary(summary, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
