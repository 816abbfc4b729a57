"""At least once: process first, then commit. A crash repeats some records, and loses none.

    python examples/at_least_once.py [HOST:PORT]

The producer uses acks=all with retries, and idempotence so that a retry stores nothing twice.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result()
producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all", "enable.idempotence": True})
for order in range(5):
    producer.produce(TOPIC, b"%d" % order)
producer.flush()

processed: list[int] = []


def run(crash_at: int | None) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"{TOPIC}-warehouse",
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
            processed.append(int(record.value()))
            if int(record.value()) == crash_at:
                return
            consumer.commit(record, asynchronous=False)  # after the work
    finally:
        consumer.close()


run(crash_at=2)
run(crash_at=None)
print("processed", *processed)  # 2 was processed twice: make the work idempotent
