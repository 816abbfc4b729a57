"""The states of a transactional id, and the transitions between them.

`TRANSITIONS` is the only definition: the shard refuses any other transition, and the page in
docs/internals shows the table.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["TRANSITIONS", "StatusChange", "TransactionStatus", "may_become"]


class TransactionStatus(Enum):
    """With its number in the log's records; its name for clients is `shown`."""

    EMPTY = 0
    """A producer has begun to use the id; it has no transaction."""
    ONGOING = 1
    """Partitions were added; nothing is decided."""
    PREPARE_COMMIT = 2
    """Decided and durable: every partition gets a commit marker."""
    PREPARE_ABORT = 3
    """Decided and durable: every partition gets an abort marker."""
    COMPLETE_COMMIT = 4
    """All markers are acknowledged."""
    COMPLETE_ABORT = 5
    """All markers are acknowledged, or there were none to write."""

    @property
    def shown(self) -> str:
        """Kafka's name, as DescribeTransactions gives it."""
        return "".join(word.title() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are missing."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_open(self) -> bool:
        """Whether partitions may have records that no marker has ended."""
        return self is TransactionStatus.ONGOING or self.is_prepared


class StatusChange(NamedTuple):
    """One row of the state table; None: the id is not known."""

    before: TransactionStatus | None
    event: str
    after: TransactionStatus | None


_EMPTY = TransactionStatus.EMPTY
_ONGOING = TransactionStatus.ONGOING
_COMMITTING = TransactionStatus.PREPARE_COMMIT
_ABORTING = TransactionStatus.PREPARE_ABORT
_COMMITTED = TransactionStatus.COMPLETE_COMMIT
_ABORTED = TransactionStatus.COMPLETE_ABORT

TRANSITIONS = (
    StatusChange(None, "a producer asks for an id", _EMPTY),
    StatusChange(_EMPTY, "a producer asks for an id", _EMPTY),
    StatusChange(_EMPTY, "a partition is added", _ONGOING),
    StatusChange(_EMPTY, "an empty transaction is aborted (TV2)", _ABORTED),
    StatusChange(_EMPTY, "the id expires", None),
    StatusChange(_ONGOING, "a partition is added", _ONGOING),
    StatusChange(_ONGOING, "the producer commits", _COMMITTING),
    StatusChange(_ONGOING, "the producer aborts, is replaced or takes too long", _ABORTING),
    StatusChange(_COMMITTING, "every marker is acknowledged", _COMMITTED),
    StatusChange(_ABORTING, "every marker is acknowledged", _ABORTED),
    StatusChange(_COMMITTED, "a producer asks for an id", _EMPTY),
    StatusChange(_COMMITTED, "a partition is added", _ONGOING),
    StatusChange(_COMMITTED, "an empty transaction is aborted (TV2)", _ABORTED),
    StatusChange(_COMMITTED, "the id expires", None),
    StatusChange(_ABORTED, "a producer asks for an id", _EMPTY),
    StatusChange(_ABORTED, "a partition is added", _ONGOING),
    StatusChange(_ABORTED, "an empty transaction is aborted (TV2)", _ABORTED),
    StatusChange(_ABORTED, "the id expires", None),
)

_STEPS = frozenset((row.before, row.after) for row in TRANSITIONS)


def may_become(before: TransactionStatus | None, after: TransactionStatus | None) -> bool:
    """Whether the table has this transition."""
    return (before, after) in _STEPS
