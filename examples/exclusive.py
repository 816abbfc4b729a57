"""Exclusive use: one consumer works, the others stand by, because the topic has one partition.

    python examples/exclusive.py [HOST:PORT]

A partition belongs to one consumer of a group at a time. With one partition only one consumer
works, and it processes the records in order.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"ledger-{uuid.uuid4().hex[:8]}"


def join(name: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"{TOPIC}-keepers",
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    return consumer


def work(name: str, active: Consumer, standby: list[Consumer]) -> None:
    record = None
    while record is None:
        for idle in standby:
            assert idle.poll(0) is None  # it stays in the group and gets nothing
        record = active.poll(0.1)
    active.commit(record, asynchronous=False)
    print(f"{name} did {record.value().decode()}")


admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result()
producer = Producer({"bootstrap.servers": BOOTSTRAP})
for number in range(4):
    producer.produce(TOPIC, b"booking %d" % number)
producer.flush()

first = join("first")
work("first", first, [])
second = join("second")
work("first", first, [second])
first.close()  # or it crashes: then the second takes over after session.timeout.ms
work("second", second, [])
work("second", second, [])
second.close()
