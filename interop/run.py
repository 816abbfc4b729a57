"""Clients in other languages against brokers of this working copy.

`make interop [ONLY=name] [BROKERS=3]`: each client gets a fresh broker, or a fresh cluster. Prints
one line per client: pass, fail with the end of its output, or skip with the missing tool. Downloads
go to build/interop; versions are pinned in java/pom.xml and below, js/package-lock.json and go.sum.
"""

# ruff: noqa: T201, S603 - it prints, and it starts programs

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing.broker_process import BrokerProcess, faults_in
from tidemill.testing.cluster_process import ClusterProcess

__all__ = ["main"]

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "interop"
KAFKA_VERSIONS = ("4.3.1", "3.9.1")
DOWNLOAD_TIMEOUT_S = 600
RUN_TIMEOUT_S = 900
"""Only catches a hang: on a quiet machine the longest takes a minute and a half."""
READY_S = 120
SHOWN_LINES = 15


class Skipped(Exception):
    """A tool is missing."""


class Failed(Exception):
    """A program failed, or its output is not as expected."""


@final
@dataclass(frozen=True, slots=True)
class Brokers:
    """What a client runs against."""

    bootstrap: str
    count: int
    single: BrokerProcess | None = None
    """The process, if there is only one: a client may do something to it."""


@final
@dataclass(frozen=True, slots=True)
class Client:
    name: str
    run: Callable[[Brokers], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="clients with this in their names")
    parser.add_argument("--brokers", type=int, default=1, help="how many; 1 has no supervisor")
    chosen = parser.parse_args()
    wanted = [client for client in CLIENTS if chosen.only in client.name]
    failed = [client for client in wanted if not _passes(client, chosen.brokers)]
    sys.exit(1 if failed or not wanted else 0)


@contextmanager
def _running(count: int) -> Iterator[Brokers]:
    """Fresh brokers; raises Failed if they found fault with a client."""
    with TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        single, several = BrokerProcess(data_dir), ClusterProcess(data_dir, brokers=count)
        process = (single if count == 1 else several).start()
        try:
            yield Brokers(process.bootstrap, count, single if count == 1 else None)
        finally:
            process.stop()
        faults = single.connection_faults() if count == 1 else faults_in(several.log())
    if faults:
        # A stock client that the broker finds fault with is a fault of the broker (S7).
        raise Failed(f"connections closed for a fault\n{_last_lines(os.linesep.join(faults))}")


def _passes(client: Client, broker_count: int) -> bool:
    started = monotonic()
    try:
        with _running(broker_count) as brokers:
            client.run(brokers)
    except Skipped as why:
        print(f"skip  {client.name}: {why}", flush=True)
    except Failed as why:
        print(f"fail  {client.name}: {why}", flush=True)
        return False
    else:
        print(f"pass  {client.name} ({monotonic() - started:.0f} s)", flush=True)
    return True


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Skipped(f"{name} is missing")
    return path


def _run(
    *command: str,
    stdin: str = "",
    folder: Path = HERE,
    timeout_s: float = RUN_TIMEOUT_S,
    environment: dict[str, str] | None = None,
) -> str:
    """The output of a program; raises Failed unless it exits with 0 in time."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"no end within {timeout_s:.0f} s\n{_last_lines(expired.output)}") from None
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}\n{_last_lines(done.stdout)}")
    return done.stdout


def _last_lines(printed: str | bytes | None) -> str:
    text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
    return "\n".join(f"      {line}" for line in text.splitlines()[-SHOWN_LINES:])


def _require(holds: bool, seen: object) -> None:
    if not holds:
        raise Failed(str(seen))


def _expect(printed: str, *parts: str) -> None:
    for part in parts:
        if part not in printed:
            raise Failed(f"{part!r} is not in its output\n{_last_lines(printed)}")


# --- Java -----------------------------------------------------------------------------------------


def _kafka_libraries(version: str) -> str:
    """A class path with the clients and tools of this version; downloaded once."""
    libraries = BUILD / f"java-{version}"
    if not libraries.exists():
        partial_copy = libraries.with_suffix(".part")
        _run(
            *(_tool("mvn"), "-q", "-B", "-f", str(HERE / "java" / "pom.xml")),
            *(f"-Dkafka.version={version}", "dependency:copy-dependencies"),
            f"-DoutputDirectory={partial_copy}",
            timeout_s=DOWNLOAD_TIMEOUT_S,
        )
        partial_copy.rename(libraries)
    return f"{libraries}/*"


def _java_clients(version: str, program: str, brokers: Brokers) -> None:
    _tool("javac")  # a runtime alone cannot run a source file
    libraries = _kafka_libraries(version)
    arguments = (brokers.bootstrap, str(brokers.count))
    _run(_tool("java"), "-cp", libraries, str(HERE / "java" / program), *arguments)


def _kafka_tools(version: str, brokers: Brokers) -> None:
    """kafka-topics, -configs, -consumer-groups, -get-offsets, the console tools and perf-test."""
    java, libraries, bootstrap = _tool("java"), _kafka_libraries(version), brokers.bootstrap

    def tool(name: str, *arguments: str, stdin: str = "") -> str:
        server = () if "ProducerPerformance" in name else ("--bootstrap-server", bootstrap)
        return _run(java, "-cp", libraries, name, *server, *arguments, stdin=stdin)

    topics = partial(tool, "org.apache.kafka.tools.TopicCommand")
    topics("--create", "--topic", "lines", "--partitions", "1", "--config", "retention.ms=60000")
    _expect(topics("--list"), "lines")
    _expect(topics("--describe", "--topic", "lines"), "PartitionCount: 1", "retention.ms=60000")

    configs = partial(tool, "kafka.admin.ConfigCommand", "--entity-type", "topics")
    configs("--entity-name", "lines", "--alter", "--add-config", "retention.ms=70000")
    _expect(configs("--entity-name", "lines", "--describe"), "retention.ms=70000")

    console = "kafka.tools" if version.startswith("3.") else "org.apache.kafka.tools"
    lines = "".join(f"line {n}\n" for n in range(100))
    tool(f"{console}.ConsoleProducer", "--topic", "lines", stdin=lines)
    read = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "lines", "--partition", "0", "--offset", "earliest", "--max-messages", "100"),
    )
    _expect(read, lines)
    _expect(tool("org.apache.kafka.tools.GetOffsetShell", "--topic", "lines"), "lines:0:100")

    read = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "lines", "--group", "readers", "--from-beginning", "--max-messages", "100"),
    )
    _expect(read, lines)
    groups = partial(tool, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
    _expect(groups("--list"), "readers")
    _expect(groups("--describe", "--group", "readers"), "lines", "100")
    reset = ("--reset-offsets", "--group", "readers", "--topic", "lines", "--to-offset", "40")
    _expect(groups(*reset, "--execute"), "40")
    groups("--delete", "--group", "readers")

    measured = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "lines", "--num-records", "20000", "--record-size", "500"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"),
    )
    _expect(measured, "20000 records sent")
    _expect(tool("org.apache.kafka.tools.GetOffsetShell", "--topic", "lines"), "lines:0:20100")
    topics("--delete", "--topic", "lines")


def _kafka_transactions(version: str, brokers: Brokers) -> None:
    """kafka-transactions: what is open, and the end of what no coordinator knows any more."""
    command = (_tool("java"), "-cp", _kafka_libraries(version))
    name = "org.apache.kafka.tools.TransactionsCommand"
    tool = partial(_run, *command, name, "--bootstrap-server", brokers.bootstrap)
    hangs = ("find-hanging", "--max-transaction-timeout", "0", "--topic", "pays")
    _create_topic(brokers, "pays")
    options = {"transactional.id": "pay", "transaction.timeout.ms": 900_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": brokers.bootstrap, **options})
    producer.init_transactions(READY_S)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("pays", b"a coin", partition=partition)
    producer.flush(READY_S)

    _require(["pay", "Ongoing"] in [[row[0], row[3]] for row in _rows(tool("list"))], "not listed")
    _expect(tool("describe", "--transactional-id", "pay"), "Ongoing", "pays-0", "pays-1")
    states = _rows(tool("describe-producers", "--topic", "pays", "--partition", "1"))
    _require([one[-1] for one in states] == ["0"], states)  # where it began
    _require(not _rows(tool(*hangs)), "an open transaction hangs")
    if brokers.single is None:
        producer.abort_transaction(READY_S)
        return

    _forget_transactions(brokers.single)
    hanging = [row[:2] for row in _rows(tool(*hangs))]
    _require(sorted(hanging) == [["pays", "0"], ["pays", "1"]], hanging)
    for place in hanging:
        tool("abort", "--topic", "pays", "--partition", place[1], "--start-offset", "0")
    _require(not _rows(tool(*hangs)), "it still hangs")
    states = _rows(tool("describe-producers", "--topic", "pays", "--partition", "1"))
    _require([one[-1] for one in states] == ["None"], states)


def _create_topic(brokers: Brokers, name: str, **keys: str) -> None:
    """Two partitions, or a view."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    config = {key.replace("_", "."): value for key, value in keys.items()}
    made = admin.create_topics([NewTopic(name, -1 if keys else 2, config=config)])
    made[name].result(READY_S)


def _forget_transactions(broker: BrokerProcess) -> None:
    """The broker comes back without what its transaction coordinator has written."""
    broker.kill()
    for directory in broker.data_dir.rglob("__transaction_state-*"):
        shutil.rmtree(directory)
    broker.start()


def _rows(printed: str) -> list[list[str]]:
    """The cells of the table that a tool printed, without its head."""
    lines = [line for line in printed.splitlines() if "\t" in line]
    return [[cell.strip() for cell in line.split("\t") if cell.strip()] for line in lines[1:]]


MIRRORED = """
clusters = here, there
here.bootstrap.servers = {bootstrap}
there.bootstrap.servers = {bootstrap}
here->there.enabled = true
here->there.topics = calls, calls.half
here->there.config.properties.exclude = tidemill.*
sync.topic.acls.enabled = false
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
"""


def _mirror_maker(version: str, brokers: Brokers) -> None:
    """It passes over what is held and reads a view; its copies go to the same brokers."""
    command = (_tool("java"), "-cp", _kafka_libraries(version))
    _create_topic(brokers, "calls")
    _create_topic(brokers, "calls.half", tidemill_view_of="calls", tidemill_view_filter="n < 500")
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for n in range(1_000):
        delay = [("tidemill.delay-ms", b"3600000")] if n % 3 else []
        headers = [("n", b"%d" % n), *delay]
        producer.produce("calls", b"%d" % n, partition=n % 2, headers=headers)
    _require(producer.flush(READY_S) == 0, "not all was sent")
    expected = {"here.calls": set(range(0, 1_000, 3)), "here.calls.half": set(range(0, 500, 3))}
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "mirror.properties"
        settings.write_text(MIRRORED.format(bootstrap=brokers.bootstrap))
        name = "org.apache.kafka.connect.mirror.MirrorMaker"
        copying = subprocess.Popen(
            [*command, name, str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            found = _read_copies(brokers, sum(map(len, expected.values())))
        finally:
            copying.kill()
            copying.wait()
    _require({topic: set(copies) for topic, copies in found.items()} == expected, found)


def _read_copies(brokers: Brokers, count: int) -> dict[str, list[int]]:
    """What is in the topics that it made, once there are so many records, or nothing comes."""
    options = {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 1_000}
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "copies", **options})
    consumer.subscribe(["^here[.]calls.*"])
    found: dict[str, list[int]] = {}
    deadline = monotonic() + RUN_TIMEOUT_S
    is_last = False  # nothing may come after
    while not is_last and monotonic() < deadline:
        is_last = sum(map(len, found.values())) >= count
        for message in consumer.consume(500, 5.0 if is_last else 1.0):
            if message.error() is None:  # else there is no such topic yet
                found.setdefault(message.topic(), []).append(int(message.value()))
    consumer.close()
    return found


# --- others ---------------------------------------------------------------------------------------


def _kafkajs(program: str, brokers: Brokers) -> None:
    npm, node = _tool("npm"), _tool("node")
    folder = BUILD / "js"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (HERE / "js").iterdir():
        shutil.copy(source, folder)
    _run(npm, "ci", "--silent", folder=folder, timeout_s=DOWNLOAD_TIMEOUT_S)
    _run(node, program, brokers.bootstrap, str(brokers.count), folder=folder)


def _go(name: str, folder: str, brokers: Brokers) -> None:
    program = BUILD / name
    _run(
        *(_tool("go"), "build", "-o", str(program), "."),
        folder=HERE / folder,
        timeout_s=DOWNLOAD_TIMEOUT_S,
        environment={"GOFLAGS": "-mod=readonly -buildvcs=false"},
    )
    _run(str(program), brokers.bootstrap)


CLIENTS = (
    *(
        Client(f"kafka-clients {version} (Java), {name}", partial(_java_clients, version, program))
        for version in KAFKA_VERSIONS
        for name, program in (
            ("records and groups", "Interop.java"),
            ("transactions", "Transactions.java"),
        )
    ),
    *(Client(f"Kafka's tools {v}", partial(_kafka_tools, v)) for v in KAFKA_VERSIONS),
    *(
        Client(f"Kafka's tools {version}, transactions", partial(_kafka_transactions, version))
        for version in KAFKA_VERSIONS
    ),
    Client("MirrorMaker 4.3.1", partial(_mirror_maker, "4.3.1")),
    Client("kafkajs 2.2.4 (Node)", partial(_kafkajs, "interop.js")),
    Client("kafkajs 2.2.4 (Node), transactions", partial(_kafkajs, "transactions.js")),
    Client("franz-go (Go)", partial(_go, "franz-go", "go")),
    Client("Sarama (Go)", partial(_go, "sarama-interop", "sarama")),
)


if __name__ == "__main__":
    main()
