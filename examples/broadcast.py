"""Broadcast: every instance gets every record, because each has its own group id.

    python examples/broadcast.py [HOST:PORT]

If its id stays the same over restarts, an instance continues where it stopped.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"prices-{uuid.uuid4().hex[:8]}"
INSTANCES = ("london", "lisbon", "lima")
PRICES = [b"%d" % price for price in range(10)]

producer = Producer({"bootstrap.servers": BOOTSTRAP})
for price in PRICES:
    producer.produce(TOPIC, price)
producer.flush()

for instance in INSTANCES:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"{TOPIC}-{instance}",  # no other instance uses it
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    got: list[bytes] = []
    while len(got) < len(PRICES):
        got += [record.value() for record in consumer.consume(len(PRICES), timeout=1)]
    consumer.close()
    print(f"{instance} got {len(set(got))} of {len(PRICES)}")
