"""Clients in other languages against brokers of this working copy.

`make interop [ONLY=name] [BROKERS=3]`: each client gets a fresh broker, or a fresh cluster. Prints
one line per client: pass, fail with the end of its output, or skip with the missing tool. Downloads
go to build/interop; versions are pinned in java/pom.xml and below, js/package-lock.json and go.sum.
"""

# ruff: noqa: T201 - it prints

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import final

from bench import spark_connector
from interop.brokers import Brokers, running
from interop.failover import java_failover
from interop.kafka_tools import java_clients, kafka_tools, kafka_transactions
from interop.mirror_maker import mirror_maker
from interop.programs import (
    BUILD,
    DOWNLOAD_TIMEOUT_S,
    HERE,
    Failed,
    Skipped,
    run_program,
    tool_path,
)
from interop.spark_connector import spark_reads

__all__ = ["main"]

KAFKA_VERSIONS = ("4.3.1", "3.9.1")


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


def _passes(client: Client, broker_count: int) -> bool:
    started = monotonic()
    try:
        with running(broker_count) as brokers:
            client.run(brokers)
    except Skipped as why:
        print(f"skip  {client.name}: {why}", flush=True)
    except Failed as why:
        print(f"fail  {client.name}: {why}", flush=True)
        return False
    else:
        print(f"pass  {client.name} ({monotonic() - started:.0f} s)", flush=True)
    return True


def _kafkajs(program: str, brokers: Brokers) -> None:
    npm, node = tool_path("npm"), tool_path("node")
    folder = BUILD / "js"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (HERE / "js").iterdir():
        shutil.copy(source, folder)
    run_program(npm, "ci", "--silent", folder=folder, timeout_s=DOWNLOAD_TIMEOUT_S)
    run_program(node, program, brokers.bootstrap, str(brokers.count), folder=folder)


def _go(name: str, folder: str, brokers: Brokers) -> None:
    program = BUILD / name
    run_program(
        *(tool_path("go"), "build", "-o", str(program), "."),
        folder=HERE / folder,
        timeout_s=DOWNLOAD_TIMEOUT_S,
        environment={"GOFLAGS": "-mod=readonly -buildvcs=false"},
    )
    run_program(str(program), brokers.bootstrap)


CLIENTS = (
    *(
        Client(f"kafka-clients {version} (Java), {name}", partial(java_clients, version, program))
        for version in KAFKA_VERSIONS
        for name, program in (
            ("records and groups", "Interop.java"),
            ("transactions", "Transactions.java"),
        )
    ),
    *(
        Client(f"kafka-clients {version} (Java), brokers fail", partial(java_failover, version))
        for version in KAFKA_VERSIONS
    ),
    *(Client(f"Kafka's tools {v}", partial(kafka_tools, v)) for v in KAFKA_VERSIONS),
    *(
        Client(f"Kafka's tools {version}, transactions", partial(kafka_transactions, version))
        for version in KAFKA_VERSIONS
    ),
    Client("MirrorMaker 4.3.1", partial(mirror_maker, "4.3.1")),
    Client(f"Spark's Kafka connector {spark_connector.VERSION}", spark_reads),
    Client("kafkajs 2.2.4 (Node)", partial(_kafkajs, "interop.js")),
    Client("kafkajs 2.2.4 (Node), transactions", partial(_kafkajs, "transactions.js")),
    Client("franz-go (Go)", partial(_go, "franz-go", "go")),
    Client("Sarama (Go)", partial(_go, "sarama-interop", "sarama")),
)


if __name__ == "__main__":
    main()
