"""How a transaction can fail, by what the producer may do next. Pure."""

from __future__ import annotations

from typing import Final, final

from tidemill.core.errors import ErrorCode, KafkaError, TidemillError

__all__ = [
    "OutcomeUnknown",
    "ProducerFenced",
    "TransactionError",
    "TransactionMustAbort",
    "TransactionRefused",
    "transaction_error",
]

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_MUST_ABORT: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


class TransactionError(TidemillError):
    """A step of a transaction has failed for good."""


@final
class ProducerFenced(TransactionError):
    """Another producer has taken over the transactional id, or the transaction has timed out."""


@final
class TransactionMustAbort(TransactionError):
    """This transaction cannot be committed; the next one may succeed."""


@final
class TransactionRefused(TransactionError):
    """The coordinator refuses for a reason that does not pass."""


@final
class OutcomeUnknown(TransactionError):
    """The last step may have taken effect or not. What was committed has to be read again."""


def transaction_error(refusal: KafkaError, step: str, *, in_doubt: bool) -> TransactionError:
    """What a final refusal of `step` means; `in_doubt`: an earlier attempt had no answer."""
    reason = f"{step}: {refusal}"
    if in_doubt:
        return OutcomeUnknown(f"{reason}; an earlier attempt was not answered")
    if refusal.code in _FENCED:
        return ProducerFenced(
            f"{reason}; another producer uses this transactional id, or the transaction took too "
            "long"
        )
    if refusal.code in _MUST_ABORT:
        return TransactionMustAbort(reason)
    return TransactionRefused(reason)
