"""The names of the record headers with which clients ask for more than Kafka has, and our answers.

Values are decimal numbers or UTF-8 text. A *request* is read when a client's batch is taken in. An
*answer* is written by the broker and counts in batches of ours only (`wire.marks`): in any other
batch it is data.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AXIS",
    "COMMAND",
    "DELAY_MS",
    "DELIVER_AT",
    "DUE",
    "MESSAGE_ID",
    "NEXT",
    "PREFIX",
    "SCHEDULE",
    "SENT_AT",
    "TARGET",
    "TICKET",
]

PREFIX: Final = "tidemill."

# Requests.
DELIVER_AT: Final = "tidemill.deliver-at"
"""Epoch milliseconds."""
DELAY_MS: Final = "tidemill.delay-ms"
SCHEDULE: Final = "tidemill.schedule"
"""A cron line with an optional zone."""
MESSAGE_ID: Final = "tidemill.message-id"
COMMAND: Final = "tidemill.command"
"""`cancel` or `move`."""
TARGET: Final = "tidemill.target"
"""What a command means: a ticket (digits only), or a message id, which `id:` may precede."""

# Answers.
TICKET: Final = "tidemill.ticket"
"""The offset that the producer of a held record was answered."""
DUE: Final = "tidemill.due"
"""When the record was to be delivered, in epoch milliseconds of its axis."""
AXIS: Final = "tidemill.axis"
"""Of a carried copy: which clock its due time is compared with, `wall` or `steady`."""
NEXT: Final = "tidemill.next"
"""Of a tick of a schedule: when the next one is due."""
SENT_AT: Final = "tidemill.sent-at"
"""The timestamp that the record had when it was taken in."""
