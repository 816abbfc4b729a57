"""Many threads for one consumer: it reads, a pool works, and only finished work is committed.

    python examples/many_threads.py [HOST:PORT]

Records of one key go to one thread, so they stay in order; other keys are processed in parallel. A
batch is committed when all of it is done: at least once.
"""

import sys
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread

from confluent_kafka import Consumer, Message, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"uploads-{uuid.uuid4().hex[:8]}"
THREADS, RECORDS = 4, 200

producer = Producer({"bootstrap.servers": BOOTSTRAP})
for number in range(RECORDS):
    producer.produce(TOPIC, b"%d" % number, key=b"user %d" % (number % 10))
producer.flush()

done: dict[bytes, list[int]] = {}
threads: set[str] = set()


def process(record: Message) -> None:
    threads.add(current_thread().name)
    done.setdefault(record.key(), []).append(int(record.value()))


consumer = Consumer(
    {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": f"{TOPIC}-resizers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([TOPIC])
workers = [ThreadPoolExecutor(1, f"worker-{n}") for n in range(THREADS)]
count = 0
while count < RECORDS:
    batch = consumer.consume(50, timeout=1)
    working = [workers[zlib.crc32(r.key()) % THREADS].submit(process, r) for r in batch]
    for work in working:
        work.result()  # raises the error of the work; then nothing of this batch is committed
    if batch:
        consumer.commit(asynchronous=False)
    count += len(batch)
for worker in workers:
    worker.shutdown()
consumer.close()

in_order = all(values == sorted(values) for values in done.values())
print(f"{count} records by {len(threads)} threads, each key in order: {in_order}")
