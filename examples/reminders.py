"""Reminders: records that the broker delivers later, and one that is cancelled in time.

    python examples/reminders.py [HOST:PORT]

The headers are all there is to it, so any Kafka client can do this; `tidemill.Delay` and its
siblings write them. A held record is no record yet: consumers pass over it until it is due.
"""

import sys
import uuid
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tidemill

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
REMINDERS = f"reminders-{uuid.uuid4().hex[:8]}"

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
admin.create_topics([NewTopic(REMINDERS, 1)])[REMINDERS].result()
producer = Producer({"bootstrap.servers": BOOTSTRAP})


def send(person: str, text: str | None, headers: list[tuple[str, bytes]]) -> Message:
    """The record as the broker took it in; what it refuses, it says in the answer."""
    answers: list[Message] = []

    def answered(error: object, message: Message) -> None:
        if error is not None:
            raise SystemExit(str(error))
        answers.append(message)

    producer.produce(REMINDERS, text, person, headers=headers, on_delivery=answered)
    producer.flush()
    return answers[0]


in_two_seconds = datetime.now(UTC) + timedelta(seconds=2)
ticket = send("ann", "call the bank", tidemill.Delay("1s")).offset()
send("bob", "buy flowers", tidemill.DeliverAt(in_two_seconds, id="bob-1"))
send("cid", "water the plants", tidemill.Delay("1h", id="cid-1"))
send("dan", "come to lunch", tidemill.Delay("1h", id="dan-1"))
send("cid", None, tidemill.Cancel("cid-1"))  # the same key: the same partition
send("dan", None, tidemill.Move("dan-1", "3s"))
print(f"ann's reminder has ticket {ticket}")

consumer = Consumer(
    {"bootstrap.servers": BOOTSTRAP, "group.id": REMINDERS, "auto.offset.reset": "earliest"}
)
consumer.subscribe([REMINDERS])
waiting = {b"ann", b"bob", b"dan"}
while waiting:
    reminder = consumer.poll(30)
    if reminder is None or reminder.error() is not None:
        raise SystemExit("no reminder came")
    due_ms = int(dict(reminder.headers())["tidemill.due"])
    assert reminder.timestamp()[1] >= due_ms, "never early"
    print(f"{reminder.key().decode()}: {reminder.value().decode()}")
    waiting.remove(reminder.key())
consumer.close()
