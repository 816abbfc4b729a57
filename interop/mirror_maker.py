"""MirrorMaker, which copies topics from cluster to cluster; here both are the same."""

# ruff: noqa: S603 - it starts programs

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from confluent_kafka import Consumer

from interop.brokers import CALLS, Brokers, create_topic, make_calls
from interop.kafka_tools import kafka_libraries
from interop.programs import RUN_TIMEOUT_S, require, tool_path

__all__ = ["mirror_maker"]

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


def mirror_maker(version: str, brokers: Brokers) -> None:
    """It passes over what is held and reads a view; its copies go to the same brokers."""
    command = (tool_path("java"), "-cp", kafka_libraries(version))
    make_calls(brokers)
    create_topic(brokers, "calls.half", tidemill_view_of="calls", tidemill_view_filter="n < 500")
    expected = {"here.calls": set(range(0, CALLS, 3)), "here.calls.half": set(range(0, 500, 3))}
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
    require({topic: set(copies) for topic, copies in found.items()} == expected, found)


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
