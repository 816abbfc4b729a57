"""Topics with held records and every client: none sticks, none sees a record before it is due."""

from __future__ import annotations

import json
import subprocess
import sys
from time import monotonic

import confluent_kafka
import pytest

import tidemill
from tests.e2e.test_views import DRAINS, PARTITIONS, Place, drain_confluent
from tests.support.clients import DEADLINE_S, AioKafka, Confluent, KafkaPython, Message, Sending
from tests.support.topics import create_topic, wait_until_decided
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

HOUR = tuple(tidemill.Delay("1h"))
"""Longer than the tests take."""
ROUNDS = {
    # Codec, and which of the records of a batch are held.
    "none": lambda n: n % 4 < 2,
    "gzip": lambda n: True,
    "lz4": lambda n: n % 4 >= 2,
    "zstd": lambda n: n % 10 == 9,
}
RECORDS_PER_ROUND = 100


@pytest.fixture(scope="module")
def filled(group_broker: BrokerProcess) -> tuple[str, set[Place], set[Place]]:
    """A topic and its view; the places of plain and of held records, the last of which is held."""
    bootstrap = group_broker.bootstrap
    create_topic(bootstrap, "calls", PARTITIONS)
    keys = {"tidemill_view_of": "calls", "tidemill_view_held": "true"}
    create_topic(bootstrap, "calls.held", -1, **keys)
    plain: set[Place] = set()
    held: set[Place] = set()
    for codec, is_held in ROUNDS.items():
        messages = [
            Message(
                b"value %d" % n,
                partition=n % PARTITIONS,
                headers=HOUR if is_held(n) else (("some", b"header"),),
            )
            for n in range(RECORDS_PER_ROUND)
        ]
        places = Confluent().produce(bootstrap, "calls", messages, Sending(codec=codec))
        for n, place in enumerate(places):
            (held if is_held(n) else plain).add(place)
    return bootstrap, plain, held


ENDS = dict.fromkeys(range(PARTITIONS), len(ROUNDS) * RECORDS_PER_ROUND // PARTITIONS)


@pytest.mark.parametrize("name", DRAINS)
def test_F108_a_group_passes_over_what_is_held_and_its_lag_reaches_0(filled, name):
    bootstrap, plain, _ = filled
    assert DRAINS[name](bootstrap, "calls") == (plain, ENDS)


@pytest.mark.parametrize("name", DRAINS)
def test_F108_a_group_drains_a_view_of_what_is_held(filled, name):
    bootstrap, _, held = filled
    assert DRAINS[name](bootstrap, "calls.held") == (held, ENDS)


def test_a_group_of_the_consumer_protocol_passes_over_what_is_held(filled):
    bootstrap, plain, _ = filled
    options = {"group_id": "of-the-new-protocol", "group_protocol": "consumer"}
    assert drain_confluent(bootstrap, "calls", **options) == (plain, ENDS)


def test_readers_of_committed_records_pass_over_what_is_held(filled):
    bootstrap, plain, held = filled
    for topic, shown in (("calls", plain), ("calls.held", held)):
        options = {"group_id": f"committed-{topic}", "isolation_level": "read_committed"}
        assert drain_confluent(bootstrap, topic, **options) == (shown, ENDS)


@pytest.mark.parametrize("how", [AioKafka(), Confluent(), KafkaPython()], ids=lambda c: c.name)
def test_I31_every_client_sends_a_delayed_record_and_gets_it_when_it_is_due(
    shared_broker, topic, how
):
    bootstrap = shared_broker.bootstrap
    create_topic(bootstrap, topic)
    headers = (*tidemill.Delay("1s", id="ann-7"), ("trace", b"7"))
    began = monotonic()
    [(_, ticket)] = how.produce(bootstrap, topic, [Message(b"call ann", headers=headers)])
    [record] = how.consume(bootstrap, topic, 1)
    assert 1 <= monotonic() - began < DEADLINE_S
    shown = dict(record.headers)
    assert (record.value, record.offset) == (b"call ann", ticket + 1)
    assert (shown["trace"], shown["tidemill.ticket"]) == (b"7", b"%d" % ticket)
    assert "tidemill.delay-ms" not in shown


@pytest.mark.parametrize("how", [AioKafka(), Confluent(), KafkaPython()], ids=lambda c: c.name)
def test_every_client_sends_commands(shared_broker, topic, how):
    bootstrap = shared_broker.bootstrap
    create_topic(bootstrap, topic)
    for name in ("ann-1", "bob-1"):
        held = Message(name.encode(), b"key", tuple(tidemill.Delay("1h", id=name)))
        how.produce(bootstrap, topic, [held])
    for command in (tidemill.Cancel("ann-1"), tidemill.Move("bob-1", "0s")):
        how.produce(bootstrap, topic, [Message(None, b"key", tuple(command))])
    [record] = how.consume(bootstrap, topic, 1)
    assert record.value == b"bob-1"


def test_listing_what_is_held_does_not_wait_for_an_open_transaction(shared_broker, topic):
    bootstrap = shared_broker.bootstrap
    create_topic(bootstrap, topic)
    create_topic(bootstrap, f"{topic}.held", -1, tidemill_view_of=topic, tidemill_view_held="true")
    Confluent().produce(bootstrap, topic, [Message(b"held", headers=HOUR)])
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", headers=list(HOUR))
    producer.flush(DEADLINE_S)
    assert listed(bootstrap, topic) == 1
    producer.commit_transaction(DEADLINE_S)
    wait_until_decided(bootstrap, topic)
    assert listed(bootstrap, topic) == 2


def listed(bootstrap: str, topic: str) -> int:
    """How many records `tidemill delay list` finds."""
    command = [sys.executable, "-m", "tidemill.cli.main", "delay", "list", topic, "--json"]
    out = subprocess.run(
        [*command, "--bootstrap", bootstrap], capture_output=True, timeout=DEADLINE_S, check=True
    ).stdout
    held: int = json.loads(out)["held"]
    return held


def test_F109_a_schedule_ticks_until_it_is_cancelled(shared_broker, topic):
    bootstrap = shared_broker.bootstrap
    create_topic(bootstrap, topic)
    headers = tuple(tidemill.Schedule("* * * * * *", id="every-second"))
    how = Confluent()
    how.produce(bootstrap, topic, [Message(b"tick", headers=headers)])
    ticks = [dict(record.headers)["tidemill.due"] for record in how.consume(bootstrap, topic, 3)]
    assert [int(due) % 1000 for due in ticks] == [0, 0, 0]
    assert int(ticks[0]) < int(ticks[1]) < int(ticks[2])
    cancel = tuple(tidemill.Cancel("every-second"))
    how.produce(bootstrap, topic, [Message(None, headers=cancel)])
