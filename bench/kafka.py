"""Apache Kafka as a subject: one combined KRaft node, run as its own scripts would run it.

The jars come from Maven Central by `pom.xml`. JVM options are those of `kafka-server-start.sh` and
`kafka-run-class.sh`. The configuration is the shipped `server.properties`, except: addresses and
directories; deleted topics leave the disk at once instead of after a minute, so that a sample does
not pay for the files of the last one; groups do not wait for more members.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import final

from bench.debian_packages import ensure_tool
from bench.maven import copy_dependencies
from bench.processes import Launch, MeasurementFailed, free_port

__all__ = [
    "PROPERTIES",
    "KafkaSubject",
    "format_storage",
    "java_version",
    "new_cluster_id",
    "provide",
    "server_command",
]

VERSION = "4.3.1"
POM = Path(__file__).with_name("pom.xml")
LIBS = POM.parent.parent / "build" / "kafka-libs"
_STAMP = LIBS / f"kafka_2.13-{VERSION}.jar"
_FORMAT_SECONDS_MAX = 60

HEAP = ("-Xmx1G", "-Xms1G")
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={logs}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
log.segment.delete.delay.ms=0
group.initial.rebalance.delay.ms=0
"""


def provide() -> bool:
    """Install Java and the jars; prints a reason and returns False if that is not possible."""
    lost = "there is no Apache Kafka to compare with"
    if not ensure_tool(lambda: bool(shutil.which("java")), ["default-jre-headless"], without=lost):
        return False
    if _STAMP.exists():
        return True
    if not ensure_tool(lambda: bool(shutil.which("mvn")), ["maven"], without=lost):
        return False
    return _download()


def _download() -> bool:
    problem = copy_dependencies(POM, LIBS)
    if problem or not _STAMP.exists():
        print(f"bench: Apache Kafka could not be downloaded, Tidemill is measured alone: {problem}")
        return False
    return True


def java_version() -> str:
    if not shutil.which("java"):
        return ""
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else ""


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def format_storage(properties: Path, cluster_id: str, *options: str) -> None:
    """Make the data directory that these properties name."""
    command = ["java", "-cp", f"{LIBS}/*", "kafka.tools.StorageTool", "format"]
    command += ["--cluster-id", cluster_id, "--config", str(properties), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_FORMAT_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise MeasurementFailed(f"Kafka's storage was not formatted: {done.stderr[-500:]}")


def server_command(properties: Path) -> list[str]:
    return ["java", *HEAP, *JVM, "-cp", f"{LIBS}/*", "kafka.Kafka", str(properties)]


@final
class KafkaSubject:
    """Kafka; `provide` must have installed the jars."""

    name = "kafka"

    def prepare(self, data_dir: Path, port: int) -> None:
        properties = data_dir / "server.properties"
        properties.write_text(
            PROPERTIES.format(port=port, controller=free_port(), logs=data_dir / "logs")
        )
        format_storage(properties, new_cluster_id(), "--standalone")

    def launch(self, data_dir: Path, port: int) -> Launch:
        return Launch(command=server_command(data_dir / "server.properties"))

    def topic_config(self, *, flush: str) -> dict[str, str]:
        """Kafka never flushes before an ack; there is nothing to choose."""
        assert flush == "os", "Kafka has one kind of flush"
        return {}
