"""At most once: commit first, then process. A crash loses some records, and repeats none.

    python examples/at_most_once.py [HOST:PORT]

The producer uses acks=0: it neither waits nor retries.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"ticks-{uuid.uuid4().hex[:8]}"

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result()
producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": 0, "retries": 0})
for tick in range(5):
    producer.produce(TOPIC, b"%d" % tick)
producer.flush()

processed: list[int] = []


def run(crash_at: int | None) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"{TOPIC}-screen",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    try:
        while not processed or processed[-1] < 4:
            record = consumer.poll(1)
            if record is None:
                continue
            consumer.commit(record, asynchronous=False)  # before the work
            if int(record.value()) == crash_at:
                return
            processed.append(int(record.value()))
    finally:
        consumer.close()


run(crash_at=2)
run(crash_at=None)
print("processed", *processed)  # without 2
