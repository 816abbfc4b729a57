"""Exactly once: read, transform, write, and commit the offsets in the same transaction.

    python examples/exactly_once.py [HOST:PORT]

A crash leaves an open transaction. The next run has the same transactional id: it aborts what was
left open, shuts out the old run if that one still lives, and begins where the last commit ended.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
ORDERS, BILLS = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "bills"))

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
for created in admin.create_topics(
    [NewTopic(t, num_partitions=1) for t in (ORDERS, BILLS)]
).values():
    created.result()
filling = Producer({"bootstrap.servers": BOOTSTRAP})
for order in range(5):
    filling.produce(ORDERS, b"%d" % order)
filling.flush()


def reader(topic: str) -> Consumer:
    settings = {"bootstrap.servers": BOOTSTRAP, "group.id": f"{ORDERS}-billing"}
    settings |= {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    settings |= {"session.timeout.ms": "6000"}  # so long the orders of a crashed run belong to it
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe([topic])
    return consumer


def run(crash_at: int | None) -> None:
    consumer = reader(ORDERS)
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": f"{ORDERS}-billing"})
    producer.init_transactions()
    order = -1
    while order < 4:
        record = consumer.poll(1)
        if record is None:
            continue
        order = int(record.value())
        producer.begin_transaction()
        producer.produce(BILLS, b"bill for order %d" % order)
        if order == crash_at:
            producer.flush()  # the bill is in the log when we crash, and nobody will see it
            return
        after = TopicPartition(record.topic(), record.partition(), record.offset() + 1)
        producer.send_offsets_to_transaction([after], consumer.consumer_group_metadata())
        producer.commit_transaction()
    consumer.close()


run(crash_at=2)
run(crash_at=None)

bills: list[str] = []
consumer = reader(BILLS)
while len(bills) < 5:
    record = consumer.poll(1)
    if record is not None:
        bills.append(record.value().decode())
consumer.close()
print(*bills, sep="\n")  # every bill once, that of order 2 too
