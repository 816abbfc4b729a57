"""What one stock client sends, another reads unchanged: every field, codec, size and acks."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.clients import CLIENTS, AioKafka, Confluent, KafkaPython, Message, Sending
from tests.support.topics import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

NOVEMBER_2023_MS = 1_700_000_000_000

PAIRS = [
    pytest.param(client, codec, id=f"{client.name}-{codec}")
    for client in CLIENTS
    for codec in client.codecs
]


def _varied_messages(seed: int) -> list[Message]:
    """Keys, headers, nulls and empty values, text that compresses and bytes that do not."""
    rng = Random(seed)
    return [
        Message(b"plain"),
        Message(None, key=b"deleted"),
        Message(b"", key=b""),
        Message(b"x"),
        Message(b"with headers", b"k", (("a", b"1"), ("a", b"2"), ("empty", b""))),
        Message(b"compresses well " * 1000, key=b"text"),
        Message(rng.randbytes(10_000), key=rng.randbytes(50)),
        *(Message(b"%d" % n, key=b"%d" % (n % 7)) for n in range(200)),
    ]


def _fields(messages):
    """The fields that must come back unchanged; partition, offset and time may differ."""
    return [(m.key, m.value, m.headers) for m in messages]


@pytest.mark.parametrize(("sender", "codec"), PAIRS)
def test_F15_F31_every_client_reads_what_this_one_sent(shared_broker, topic, sender, codec):
    create_topic(shared_broker.bootstrap, topic)
    messages = _varied_messages(seed=1)

    places = sender.produce(shared_broker.bootstrap, topic, messages, Sending(codec=codec))

    assert places == [(0, n) for n in range(len(messages))]
    for reader in CLIENTS:
        if codec not in reader.codecs:
            continue
        records = reader.consume(shared_broker.bootstrap, topic, len(messages))
        assert _fields(records) == _fields(messages), reader.name
        assert [record.offset for record in records] == list(range(len(messages)))


def test_F15_a_record_may_have_neither_key_nor_value_and_a_header_no_value(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(None), Message(b"v", headers=(("none", None),))]

    # The other two clients refuse to send it, but all must read it.
    Confluent().produce(shared_broker.bootstrap, topic, messages)

    for reader in CLIENTS:
        records = reader.consume(shared_broker.bootstrap, topic, 2)
        assert _fields(records) == _fields(messages), reader.name


def test_I5_batches_that_grow_to_megabytes_keep_their_order(shared_broker, topic):
    """The broker checks them in a thread, while smaller ones wait behind them."""
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(b"%d" % n + bytes(20_000 if n < 600 else 10)) for n in range(1_000)]
    how = Sending(codec="zstd", idempotent=True, batch_bytes_max=8_000_000)

    places = Confluent().produce(shared_broker.bootstrap, topic, messages, how)

    assert places == [(0, n) for n in range(len(messages))]
    assert _fields(Confluent().consume(shared_broker.bootstrap, topic, 1_000)) == _fields(messages)


@pytest.mark.parametrize(("sender", "codec"), PAIRS)
def test_F31_F28_the_broker_keeps_batches_as_they_came(shared_broker, topic, sender, codec):
    create_topic(shared_broker.bootstrap, topic)
    line = b"compress me " * 100

    sender.produce(shared_broker.bootstrap, topic, [Message(line)] * 50, Sending(codec=codec))

    logs = shared_broker.data_dir.glob(f"**/{topic}-0/*.log")
    stored_bytes = sum(path.stat().st_size for path in logs)
    sent_bytes = len(line) * 50
    assert (stored_bytes < sent_bytes / 4) == (codec != "none")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_F38_every_promise_stores_the_records(shared_broker, topic, client, acks):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(b"%d" % n) for n in range(100)]

    places = client.produce(shared_broker.bootstrap, topic, messages, Sending(acks=acks))

    if acks != "0":
        assert places == [(0, n) for n in range(100)]
    records = client.consume(shared_broker.bootstrap, topic, 100)
    assert _fields(records) == _fields(messages)


def test_F40_T29_an_idempotent_producer_stores_each_record_once_and_in_order(
    shared_broker, topic, client
):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(b"%d" % n) for n in range(3000)]
    how = Sending(idempotent=True, batch_bytes_max=2000)

    places = client.produce(shared_broker.bootstrap, topic, messages, how)

    assert places == [(0, n) for n in range(3000)]
    records = client.consume(shared_broker.bootstrap, topic, 3000)
    assert _fields(records) == _fields(messages)


@pytest.mark.parametrize("size_bytes", [1, 900_000])
def test_F16_a_record_may_be_tiny_or_nearly_as_large_as_a_batch(
    shared_broker, topic, client, size_bytes
):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(Random(n).randbytes(size_bytes)) for n in range(3)]
    how = Sending(batch_bytes_max=950_000)

    client.produce(shared_broker.bootstrap, topic, messages, how)

    records = client.consume(shared_broker.bootstrap, topic, 3)
    assert _fields(records) == _fields(messages)


def test_F30_F44_many_records_travel_as_one_batch(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(b"%0200d" % n) for n in range(4000)]

    client.produce(shared_broker.bootstrap, topic, messages)

    # A record has an offset, a time and lengths, about ten bytes. Its own batch would cost 61 more.
    logs = shared_broker.data_dir.glob(f"**/{topic}-0/*.log")
    assert sum(path.stat().st_size for path in logs) < 4000 * 215
    records = client.consume(shared_broker.bootstrap, topic, 4000)
    assert _fields(records) == _fields(messages)


def test_F15_the_senders_timestamps_are_kept(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic)
    times = [NOVEMBER_2023_MS + shift for shift in (0, 5, 3, 86_400_000, 1)]

    client.produce(
        shared_broker.bootstrap, topic, [Message(b"v", timestamp_ms=time) for time in times]
    )

    records = client.consume(shared_broker.bootstrap, topic, len(times))
    assert [record.timestamp_ms for record in records] == times


def test_F67_order_inside_a_partition_is_the_order_of_sending(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic, partitions=3)
    rng = Random(67)
    messages = [Message(b"%d" % n, partition=rng.randrange(3)) for n in range(3000)]
    how = Sending(idempotent=True, batch_bytes_max=1000)

    places = client.produce(shared_broker.bootstrap, topic, messages, how)

    assert [partition for partition, _ in places] == [m.partition for m in messages]
    records = client.consume(shared_broker.bootstrap, topic, 3000, dict.fromkeys(range(3), 0))
    for partition in range(3):
        read = [r.value for r in records if r.partition == partition]
        assert read == [m.value for m in messages if m.partition == partition]


def test_F68_with_one_partition_all_readers_see_all_senders_in_one_order(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    for turn in range(3):
        for sender in CLIENTS:
            names = [f"{turn} {sender.name} {n}".encode() for n in range(10)]
            sender.produce(shared_broker.bootstrap, topic, [Message(name) for name in names])

    orders = [
        [r.value for r in reader.consume(shared_broker.bootstrap, topic, 90)] for reader in CLIENTS
    ]

    expected = [
        f"{turn} {sender.name} {n}".encode()
        for turn in range(3)
        for sender in CLIENTS
        for n in range(10)
    ]
    assert orders == [expected] * 3


def test_F01_F02_an_auto_created_topic_has_four_partitions_by_default(shared_broker, topic, client):
    messages = [Message(b"%d" % n, partition=n % 4) for n in range(40)]

    places = client.produce(shared_broker.bootstrap, topic, messages)

    assert places == [(n % 4, n // 4) for n in range(40)]


@pytest.mark.parametrize("client", [KafkaPython(), AioKafka()], ids=lambda client: client.name)
def test_F43_a_client_can_wait_for_each_record_or_for_all(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic)

    one_by_one = [
        client.produce(shared_broker.bootstrap, topic, [Message(b"%d" % n)])[0] for n in range(3)
    ]
    together = client.produce(
        shared_broker.bootstrap, topic, [Message(b"%d" % n) for n in range(3, 6)]
    )

    assert [*one_by_one, *together] == [(0, n) for n in range(6)]
