"""What clients do with a cluster that fails: idempotent producers, and groups of both protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, final

from tests.e2e.cluster_stores import BROKERS
from tests.e2e.group_members import KINDS, Member
from tests.e2e.group_watch import GroupWatch
from tests.e2e.load import Load, Log, read_logs
from tests.support.topics import create_replicated

__all__ = ["Work"]

CLASSIC: Final = "librdkafka-classic"
PROTOCOLS: Final = (CLASSIC, "librdkafka-consumer")
CLASSIC_SESSION_MS: Final = 6000
"""So long a group waits for a member that has come back as another one, after each failover."""
PAUSE_S: Final = 0.2
IMPATIENT: Final = {"request.timeout.ms": 3000, "socket.timeout.ms": 4000}
"""Clients that give up soon on a broker that stands still with their requests."""


def _options(protocol: str) -> dict[str, int]:
    options = {"socket_timeout_ms": IMPATIENT["socket.timeout.ms"]}
    if protocol == CLASSIC:
        options["session_timeout_ms"] = CLASSIC_SESSION_MS
    return options


def _told_difference(there: Sequence[bytes], sent: Sequence[bytes]) -> str:
    """How a log differs from what one producer has sent to it."""
    counts = Counter(there)
    missing = [value for value in sent if value not in counts]
    twice = [value for value, count in counts.items() if count > 1]
    return f"missing {missing}, twice {twice}, {len(there)} there, {len(sent)} sent"


@final
class Work:
    """Producers, and a group of each protocol that reads what they send; a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        create_replicated(bootstrap, topic, partitions=BROKERS)
        self._bootstrap = bootstrap
        self.logs: list[Log] = [(topic, index) for index in range(BROKERS)]
        self._load = Load(bootstrap, self.logs, seed=1, pause_s=PAUSE_S, **IMPATIENT)
        self._watches = {one: GroupWatch() for one in PROTOCOLS}
        self._members: list[Member] = [
            KINDS[protocol].join(
                f"m{n}", watch, bootstrap, f"{topic}-{protocol}", [topic], **_options(protocol)
            )
            for protocol, watch in self._watches.items()
            for n in range(2)
        ]
        self._load.start()

    def __enter__(self) -> Work:
        try:
            self.goes_on()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            there = [value for value in found[log] if value.startswith(mark)]
            assert there == sent, f"{log}: {_told_difference(there, sent)}"
        acknowledged = [*self._load.implied, *(one.value for one in self._load.acknowledged)]
        for watch in self._watches.values():
            watch.wait_values(acknowledged)
            assert watch.wrong == []

    def close(self) -> None:
        self._load.abandon()
        for member in self._members:
            member.stop()
        for member in self._members:
            member.close()
