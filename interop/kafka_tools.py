"""Kafka's own Java clients and command-line tools."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial

from confluent_kafka import Producer

from interop.brokers import Brokers, create_topic
from interop.programs import (
    BUILD,
    DOWNLOAD_TIMEOUT_S,
    HERE,
    READY_S,
    expect,
    require,
    run_program,
    tool_path,
)
from tidemill.testing.broker_process import BrokerProcess

__all__ = ["java_clients", "kafka_libraries", "kafka_tools", "kafka_transactions"]


def kafka_libraries(version: str) -> str:
    """A class path with the clients and tools of this version; downloaded once."""
    libraries = BUILD / f"java-{version}"
    if not libraries.exists():
        partial_copy = libraries.with_suffix(".part")
        run_program(
            *(tool_path("mvn"), "-q", "-B", "-f", str(HERE / "java" / "pom.xml")),
            *(f"-Dkafka.version={version}", "dependency:copy-dependencies"),
            f"-DoutputDirectory={partial_copy}",
            timeout_s=DOWNLOAD_TIMEOUT_S,
        )
        partial_copy.rename(libraries)
    return f"{libraries}/*"


def java_clients(version: str, program: str, brokers: Brokers) -> None:
    tool_path("javac")  # a runtime alone cannot run a source file
    libraries = kafka_libraries(version)
    arguments = (brokers.bootstrap, str(brokers.count))
    run_program(tool_path("java"), "-cp", libraries, str(HERE / "java" / program), *arguments)


def kafka_tools(version: str, brokers: Brokers) -> None:
    """kafka-topics, -configs, -consumer-groups, -get-offsets, -features, console, perf-test."""
    java, libraries, bootstrap = tool_path("java"), kafka_libraries(version), brokers.bootstrap

    def tool(name: str, *arguments: str, stdin: str = "") -> str:
        server = () if "ProducerPerformance" in name else ("--bootstrap-server", bootstrap)
        return run_program(java, "-cp", libraries, name, *server, *arguments, stdin=stdin)

    topics = partial(tool, "org.apache.kafka.tools.TopicCommand")
    topics("--create", "--topic", "lines", "--partitions", "1", "--config", "retention.ms=60000")
    expect(topics("--list"), "lines")
    expect(topics("--describe", "--topic", "lines"), "PartitionCount: 1", "retention.ms=60000")

    configs = partial(tool, "kafka.admin.ConfigCommand", "--entity-type", "topics")
    configs("--entity-name", "lines", "--alter", "--add-config", "retention.ms=70000")
    expect(configs("--entity-name", "lines", "--describe"), "retention.ms=70000")

    console = "kafka.tools" if version.startswith("3.") else "org.apache.kafka.tools"
    lines = "".join(f"line {n}\n" for n in range(100))
    tool(f"{console}.ConsoleProducer", "--topic", "lines", stdin=lines)
    read = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "lines", "--partition", "0", "--offset", "earliest", "--max-messages", "100"),
    )
    expect(read, lines)
    expect(tool("org.apache.kafka.tools.GetOffsetShell", "--topic", "lines"), "lines:0:100")

    read = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "lines", "--group", "readers", "--from-beginning", "--max-messages", "100"),
    )
    expect(read, lines)
    groups = partial(tool, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
    expect(groups("--list"), "readers")
    expect(groups("--describe", "--group", "readers"), "lines", "100")
    reset = ("--reset-offsets", "--group", "readers", "--topic", "lines", "--to-offset", "40")
    expect(groups(*reset, "--execute"), "40")
    groups("--delete", "--group", "readers")

    if not version.startswith("3."):  # older tools do not know the metadata.version of Kafka 4.3
        _change_feature_levels(partial(tool, "org.apache.kafka.tools.FeatureCommand"))

    measured = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "lines", "--num-records", "20000", "--record-size", "500"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"),
    )
    expect(measured, "20000 records sent")
    expect(tool("org.apache.kafka.tools.GetOffsetShell", "--topic", "lines"), "lines:0:20100")
    topics("--delete", "--topic", "lines")


def _change_feature_levels(features: Callable[..., str]) -> None:
    """kafka-features: what is finalized, a level down and up again, and a refusal."""

    def shown(name: str) -> str:
        lines = features("describe").splitlines()
        return " ".join(word for one in lines if name in one.split() for word in one.split())

    expect(shown("metadata.version"), "4.3-IV0")
    expect(shown("tidemill.version"), "SupportedMinVersion: 1", "FinalizedVersionLevel: 2")
    expect(shown("transaction.version"), "SupportedMinVersion: 0", "FinalizedVersionLevel: 2")
    lower = ("downgrade", "--feature", "transaction.version=1")
    features(*lower, "--dry-run")
    expect(shown("transaction.version"), "FinalizedVersionLevel: 2")
    features(*lower)
    expect(shown("transaction.version"), "FinalizedVersionLevel: 1")
    features("upgrade", "--feature", "transaction.version=2")
    expect(shown("transaction.version"), "FinalizedVersionLevel: 2")


def kafka_transactions(version: str, brokers: Brokers) -> None:
    """kafka-transactions: what is open, and the end of what no coordinator knows any more."""
    command = (tool_path("java"), "-cp", kafka_libraries(version))
    name = "org.apache.kafka.tools.TransactionsCommand"
    tool = partial(run_program, *command, name, "--bootstrap-server", brokers.bootstrap)
    hangs = ("find-hanging", "--max-transaction-timeout", "0", "--topic", "pays")
    create_topic(brokers, "pays")
    options = {"transactional.id": "pay", "transaction.timeout.ms": 900_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": brokers.bootstrap, **options})
    producer.init_transactions(READY_S)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("pays", b"a coin", partition=partition)
    producer.flush(READY_S)

    require(["pay", "Ongoing"] in [[row[0], row[3]] for row in _rows(tool("list"))], "not listed")
    expect(tool("describe", "--transactional-id", "pay"), "Ongoing", "pays-0", "pays-1")
    states = _rows(tool("describe-producers", "--topic", "pays", "--partition", "1"))
    require([one[-1] for one in states] == ["0"], states)  # where it began
    require(not _rows(tool(*hangs)), "an open transaction hangs")
    if brokers.single is None:
        producer.abort_transaction(READY_S)
        return

    _forget_transactions(brokers.single)
    hanging = [row[:2] for row in _rows(tool(*hangs))]
    require(sorted(hanging) == [["pays", "0"], ["pays", "1"]], hanging)
    for place in hanging:
        tool("abort", "--topic", "pays", "--partition", place[1], "--start-offset", "0")
    require(not _rows(tool(*hangs)), "it still hangs")
    states = _rows(tool("describe-producers", "--topic", "pays", "--partition", "1"))
    require([one[-1] for one in states] == ["None"], states)


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
