"""Filtering in the consumer: a group that needs only some records drops the others unread.

    python examples/filtering.py [HOST:PORT]

The property to filter by is in a header, so that no value is parsed to be dropped. The offsets of
dropped records are committed like all others.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"events-{uuid.uuid4().hex[:8]}"
RECORDS = 20

producer = Producer({"bootstrap.servers": BOOTSTRAP})
for number in range(RECORDS):
    level = b"error" if number % 5 == 0 else b"info"
    producer.produce(TOPIC, b"event %d" % number, headers={"level": level})
producer.flush()

consumer = Consumer(
    {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": f"{TOPIC}-alarms",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([TOPIC])
seen, alarms = 0, []
while seen < RECORDS:
    for record in consumer.consume(RECORDS, timeout=1):
        seen += 1
        if ("level", b"error") in (record.headers() or []):
            alarms.append(record.value().decode())
consumer.commit(asynchronous=False)
consumer.close()
print(f"{len(alarms)} of {seen}: {', '.join(sorted(alarms))}")
