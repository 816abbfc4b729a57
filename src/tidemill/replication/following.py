"""What a follower accepts of its leader: which batches, and which cuts of its own log. Pure.

A leader is another process, perhaps of another version, perhaps with a damaged disk: what it sends
is checked like any input (S23). A follower that refuses stays as it is, says so, and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, final

from tidemill.core.config.keys import INT64_MAX
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.batch import BatchHeader, verify

__all__ = ["CutVerdict", "RefusedCut", "check_batches", "judge_cut", "rest_s_after"]

REST_S_MAX = 30.0


def check_batches(
    view: memoryview,
    found: Sequence[tuple[int, BatchHeader]],
    *,
    end_offset: int,
    last_epoch: int,
    leader_epoch: int,
) -> None:
    """KafkaError unless these whole batches may follow `end_offset` in a log of this leader.

    Their offsets and epochs must rise from those of the log, the epochs no further than the
    leader's own, and the checksums must hold.
    """
    epoch = max(0, last_epoch)
    for position, header in found:
        if not end_offset <= header.base_offset <= INT64_MAX - header.last_offset_delta - 1:
            raise _corrupt(f"offset {header.base_offset} after {end_offset}")
        if not epoch <= header.partition_leader_epoch <= leader_epoch:
            raise _corrupt(f"epoch {header.partition_leader_epoch} after {epoch} of {leader_epoch}")
        verify(view[position : position + header.size_bytes], header)
        end_offset = header.next_offset
        epoch = header.partition_leader_epoch


def _corrupt(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the leader sent {detail}")


@final
class CutVerdict(Enum):
    """Whether a follower cuts its log as its leader asks."""

    FINE = "fine"
    """Nothing is dropped that was known to be committed."""
    LOSES = "loses committed records"
    """It drops what was committed, but an unclean election may have allowed that."""
    REFUSED = "refused"
    """It would drop what was committed, and no unclean election explains it: a person decides."""


@final
class RefusedCut(NamedTuple):
    """A cut that a follower does not make: `tidemill cluster repair` decides."""

    leader_epoch: int
    """Of the leader that asks for it."""
    offset: int
    """The leader's log goes another way from here on."""
    committed_offset: int
    """Everything below was committed and is durable here."""


def judge_cut(
    cut_offset: int, *, committed_offset: int, epoch_there: int, unclean_epoch: int | None
) -> CutVerdict:
    """I13: below the largest durable high watermark, a log is cut only after an unclean election.

    `committed_offset` is that watermark, `epoch_there` the leader epoch of the record at the cut.
    `unclean_epoch` is the last one that an unclean election began, -1 if there was none, and None
    where the metadata does not say. Then the cut is made: to refuse wrongly would keep a replica
    out of service for good.
    """
    if cut_offset >= committed_offset:
        return CutVerdict.FINE
    if unclean_epoch is None or unclean_epoch > epoch_there:
        return CutVerdict.LOSES
    return CutVerdict.REFUSED


def rest_s_after(failures: int) -> float:
    """How long a partition rests after so many failures in a row: 1, 2, 4 ... 30 s."""
    return min(REST_S_MAX, 2.0 ** (min(failures, 10) - 1))
