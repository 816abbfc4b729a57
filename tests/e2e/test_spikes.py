"""Slow consumers do not delay producers, and each kind of delivery keeps its promise.

A consumer here uses no group: it stores its offset beside its results.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import confluent_kafka
import pytest

from tests.support.clients import Client, Confluent, Message, Sending
from tests.support.topics import create_topic, end_offset
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

SPIKE_RECORDS = 20_000
RECORD_BYTES = 1000
BACKLOG_COST_MAX = 0.5
"""Memory of the broker per byte of backlog: far below one, or it queues in memory."""


def _resident_bytes(broker: BrokerProcess) -> int:
    """The broker's own memory; mapped pages of log files do not count."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def _spike_seconds(broker: BrokerProcess, topic: str) -> float:
    started = monotonic()
    Confluent().produce(broker.bootstrap, topic, [Message(bytes(RECORD_BYTES))] * SPIKE_RECORDS)
    return monotonic() - started


def test_F45_producers_keep_their_pace_while_consumers_lag(new_broker, topic, request):
    broker = new_broker()
    create_topic(broker.bootstrap, topic)
    alone_s = min(_spike_seconds(broker, topic) for _ in range(2))
    before_bytes = _resident_bytes(broker)

    lagging = [
        Confluent().consumer(broker.bootstrap, queued_min_messages=1, fetch_queue_backoff_ms=1)
        for _ in range(3)
    ]
    for consumer in lagging:
        request.addfinalizer(consumer.close)
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        assert [record.offset for record in Confluent().read(consumer, 5)] == list(range(5))
    spike_s = min(_spike_seconds(broker, topic) for _ in range(3))

    # A slow machine may halve the rate by chance; a broker that waits for readers would stop it.
    assert spike_s < 3 * alone_s + 1
    assert end_offset(broker.bootstrap, topic) == 5 * SPIKE_RECORDS
    grown_bytes = _resident_bytes(broker) - before_bytes
    assert grown_bytes < BACKLOG_COST_MAX * 3 * SPIKE_RECORDS * RECORD_BYTES
    rest = Confluent().read(lagging[0], 5 * SPIKE_RECORDS - 5)
    assert [record.offset for record in rest] == list(range(5, 5 * SPIKE_RECORDS))


@dataclass(slots=True)
class _Shop:
    """Processes orders and stores its offset in a file beside them, before or after the work."""

    broker: BrokerProcess
    topic: str
    offset_file: Path
    client: Client
    processed: list[bytes] = field(default_factory=list)

    def run(self, count: int, *, note_first: bool, crash_at: bytes = b"") -> None:
        """Process `count` orders; then crash between the work and storing the offset."""
        start = json.loads(self.offset_file.read_text()) if self.offset_file.exists() else 0
        for record in self.client.consume(self.broker.bootstrap, self.topic, count, {0: start}):
            steps = [
                lambda r=record: self.offset_file.write_text(json.dumps(r.offset + 1)),
                lambda r=record: self.processed.append(r.value or b""),
            ]
            first, second = steps if note_first else reversed(steps)
            first()
            if record.value == crash_at:
                return
            second()


ORDERS = [b"order-%d" % n for n in range(20)]


def _shop(broker: BrokerProcess, topic: str, folder: Path, client: Client, how: Sending) -> _Shop:
    create_topic(broker.bootstrap, topic)
    client.produce(broker.bootstrap, topic, [Message(order) for order in ORDERS], how)
    _wait_stored(broker, topic)
    return _Shop(broker, topic, folder / "offset", client)


def _wait_stored(broker: BrokerProcess, topic: str) -> None:
    """Wait until all records are stored: acks=0 does not tell."""
    wait_until(lambda: end_offset(broker.bootstrap, topic) >= len(ORDERS))


def test_F71_at_most_once_nothing_is_processed_twice(shared_broker, topic, tmp_path, client):
    shop = _shop(shared_broker, topic, tmp_path, client, Sending(acks="0"))

    shop.run(20, note_first=True, crash_at=b"order-7")
    shop.run(12, note_first=True)

    assert shop.processed == [*ORDERS[:7], *ORDERS[8:]]


def test_F72_F51_at_least_once_no_record_is_skipped(shared_broker, topic, tmp_path, client):
    shop = _shop(shared_broker, topic, tmp_path, client, Sending(idempotent=True))

    shop.run(20, note_first=False, crash_at=b"order-7")
    shop.run(13, note_first=False)

    assert shop.processed == [*ORDERS[:8], *ORDERS[7:]]
