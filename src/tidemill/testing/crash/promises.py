"""What a client or the cluster was told about a log, and what the log knows about its producers.

`tidemill.testing.crash.crash_states` compares the promises with what a crash leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicId
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.batch import BatchHeader, read_header
from tidemill.wire.records import Record, build_batch

__all__ = ["BrokenPromise", "Promises", "SentBatch", "is_next", "next_sequence"]

_SEQUENCES_MAX = 1_000


class BrokenPromise(AssertionError):
    """A crash state in which a promise does not hold."""


@final
@dataclass(slots=True)
class SentBatch:
    """One appended batch, as bytes and as an identity for retries."""

    data: bytes
    header: BatchHeader


@final
@dataclass(slots=True)
class Promises:
    """What a client or the cluster was told about one log."""

    topic_id: TopicId
    acked: dict[int, bytes] = field(default_factory=dict)
    """Base offset -> batch; withdrawn before a truncation begins that may drop it."""
    possible: dict[int, list[bytes]] = field(default_factory=dict)
    """Base offset -> every batch that may be found there."""
    start_promised: int = 0
    """The log start that a client was told."""
    start_allowed: int = 0
    """The highest log start that any request allowed."""
    last_acked: dict[int, SentBatch] = field(default_factory=dict)
    """Producer -> its newest acknowledged batch; a retry of it must find it."""
    damaged: set[int] = field(default_factory=set)
    """Base offsets of batches that the disk spoiled; they may be unreadable."""
    is_restarting: bool = False
    """Everything is being dropped; until the restart is complete this looks like a loss."""
    is_gone: bool = False
    """Its deletion has begun."""
    is_promised: bool = False
    """The log was created and its creator was told so: it must exist."""


def is_next(log: PartitionLog, producer_id: int, sequence: int) -> bool:
    """Whether the log would append this producer's batch with this sequence."""
    probe = build_batch(
        [Record(b"")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=log.producers.continues(producer_id, 0),
    )
    try:
        return log.producers.check(read_header(probe)) is None
    except KafkaError:
        return False


def next_sequence(log: PartitionLog, producer_id: int) -> int:
    """The sequence that the log expects next from this producer."""
    for sequence in range(_SEQUENCES_MAX):
        if is_next(log, producer_id, sequence):
            return sequence
    raise BrokenPromise(f"I18: no sequence of producer {producer_id} is accepted")
