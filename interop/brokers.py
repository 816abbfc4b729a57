"""The brokers that a client runs against, and topics on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop.programs import READY_S, Failed, last_lines, require
from tidemill.testing.broker_process import BrokerProcess, faults_in
from tidemill.testing.cluster_process import ClusterProcess

__all__ = ["CALLS", "Brokers", "create_topic", "make_calls", "running"]

CALLS = 1_000
"""Records of `make_calls`; every third is not held."""


@final
@dataclass(frozen=True, slots=True)
class Brokers:
    """What a client runs against."""

    bootstrap: str
    count: int
    single: BrokerProcess | None = None
    """The process, if there is only one: a client may do something to it."""
    cluster: ClusterProcess | None = None
    """The processes, if there are several."""


@contextmanager
def running(count: int) -> Iterator[Brokers]:
    """Fresh brokers; raises Failed if they found fault with a client."""
    with TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        single, several = BrokerProcess(data_dir), ClusterProcess(data_dir, brokers=count)
        process = (single if count == 1 else several).start()
        try:
            if count == 1:
                yield Brokers(process.bootstrap, count, single=single)
            else:
                yield Brokers(process.bootstrap, count, cluster=several)
        finally:
            process.stop()
        faults = single.connection_faults() if count == 1 else faults_in(several.log())
    if faults:
        # A stock client that the broker finds fault with is a fault of the broker (S7).
        raise Failed(f"connections closed for a fault\n{last_lines(os.linesep.join(faults))}")


def create_topic(brokers: Brokers, name: str, **keys: str) -> None:
    """Two partitions, or a view."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    config = {key.replace("_", "."): value for key, value in keys.items()}
    made = admin.create_topics([NewTopic(name, -1 if keys else 2, config=config)])
    made[name].result(READY_S)


def make_calls(brokers: Brokers) -> None:
    """A topic with records that are held for an hour between others, and their number as header."""
    create_topic(brokers, "calls")
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for n in range(CALLS):
        delay = [("tidemill.delay-ms", b"3600000")] if n % 3 else []
        headers = [("n", b"%d" % n), *delay]
        producer.produce("calls", b"%d" % n, partition=n % 2, headers=headers)
    require(producer.flush(READY_S) == 0, "not all was sent")
