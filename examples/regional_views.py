"""Regional views: one topic of orders, and a view of it for each region.

    python examples/regional_views.py [HOST:PORT]

A region reads its view as if it were a topic of its own. Nothing is stored twice: the broker
filters by the headers, and offsets are those of the orders.
"""

import sys
import uuid

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
ORDERS = f"orders-{uuid.uuid4().hex[:8]}"
VIEWS = {
    "eu": "region = 'eu'",
    "us": "region = 'us'",
    "large": "amount >= 100",
}

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
admin.create_topics([NewTopic(ORDERS, 1)])[ORDERS].result()
for name, where in VIEWS.items():
    # The same as: tidemill view create ORDERS.eu --of ORDERS --where "region = 'eu'"
    keys = {"tidemill.view.of": ORDERS, "tidemill.view.filter": where}
    view = f"{ORDERS}.{name}"
    admin.create_topics([NewTopic(view, -1, config=keys)])[view].result()

producer = Producer({"bootstrap.servers": BOOTSTRAP})
for number in range(12):
    headers = {"region": ("eu", "us", "jp")[number % 3], "amount": str(number * 20)}
    producer.produce(ORDERS, b"order %d" % number, headers=headers)
producer.flush()

for name in VIEWS:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"{ORDERS}-{name}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([f"{ORDERS}.{name}"])
    orders = []
    while (record := consumer.poll(10)) is not None and record.error() is None:
        orders.append(record.value().decode().removeprefix("order "))
    consumer.close()
    print(f"{name}: {' '.join(orders)}")
