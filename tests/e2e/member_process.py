"""A member of a group in its own process, for tests that kill it.

`python -m tests.e2e.member_process BOOTSTRAP GROUP TOPIC KEY=VALUE...` prints a line for each
record that it processed, before it commits it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.e2e.group_watch import DEADLINE_S, GroupWatch

__all__ = ["MemberProcess"]

ROOT = Path(__file__).parents[2]


class MemberProcess:
    """The parent's side: `watch` shows the member's records as processed by `name`."""

    def __init__(
        self, name: str, watch: GroupWatch, bootstrap: str, group: str, topic: str, **options: Any
    ) -> None:
        self.name = name
        self._watch = watch
        given = [f"{key.replace('_', '.')}={value}" for key, value in options.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, bootstrap, group, topic, *given],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            topic, partition, offset, value = line.split(maxsplit=3)
            log = (topic, int(partition))
            self._watch.processed(self.name, log, int(offset), value.strip().encode())

    def kill(self) -> None:
        """Kill the member without a goodbye; `watch` then has all that it printed."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def main() -> None:
    bootstrap, group, topic, *options = sys.argv[1:]
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **dict(option.split("=", 1) for option in options),
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1)
        if message is None or message.error() is not None:
            continue
        place = f"{message.topic()} {message.partition()} {message.offset()}"
        sys.stdout.write(f"{place} {message.value().decode()}\n")
        sys.stdout.flush()
        consumer.commit(message)


if __name__ == "__main__":
    main()
