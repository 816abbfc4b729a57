"""Exactly once into a database: store the offset with the result, in one transaction there.

    python examples/into_database.py [HOST:PORT] [DATABASE]

DATABASE is the path of an SQLite file, or postgresql://USER@HOST:PORT/NAME (needs psycopg). A
restart asks the database where to go on; the group's committed offsets are not used.
"""

import sqlite3
import sys
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
DATABASE = sys.argv[2] if len(sys.argv) > 2 else ":memory:"
TOPIC = f"payments-{uuid.uuid4().hex[:8]}"

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result()
producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
for amount in range(5):
    producer.produce(TOPIC, b"%d" % amount)
producer.flush()

if DATABASE.startswith("postgresql:"):
    import psycopg

    database: Any = psycopg.connect(DATABASE)
    mark = "%s"
else:
    database = sqlite3.connect(DATABASE)
    mark = "?"
database.execute("CREATE TABLE IF NOT EXISTS totals (topic TEXT PRIMARY KEY, amount BIGINT)")
database.execute("CREATE TABLE IF NOT EXISTS offsets (topic TEXT PRIMARY KEY, next BIGINT)")
database.commit()

ADD = """INSERT INTO totals VALUES (?, ?)
         ON CONFLICT (topic) DO UPDATE SET amount = totals.amount + excluded.amount"""
MOVE = """INSERT INTO offsets VALUES (?, ?)
          ON CONFLICT (topic) DO UPDATE SET next = excluded.next"""


def run_statement(statement: str, *values: object) -> sqlite3.Cursor:
    cursor: sqlite3.Cursor = database.execute(statement.replace("?", mark), values)
    return cursor


def next_offset() -> int:
    row = run_statement("SELECT next FROM offsets WHERE topic = ?", TOPIC).fetchone()
    return row[0] if row else 0


def run(crash_at: int | None) -> None:
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": TOPIC})
    consumer.assign([TopicPartition(TOPIC, 0, next_offset())])
    amount = -1
    while amount < 4:
        record = consumer.poll(1)
        if record is None:
            continue
        amount = int(record.value())
        run_statement(ADD, TOPIC, amount)
        if amount == crash_at:
            database.rollback()  # what the database does when we crash here
            break
        run_statement(MOVE, TOPIC, record.offset() + 1)
        database.commit()  # result and offset, or neither
    consumer.close()


run(crash_at=2)
run(crash_at=None)
[total] = run_statement("SELECT amount FROM totals WHERE topic = ?", TOPIC).fetchone()
print("total", total, "next offset", next_offset())
database.close()
