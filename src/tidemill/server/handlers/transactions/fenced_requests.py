"""What the requests of transactional producers share: fresh ids, and the code for a fenced one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.loop.awaiting import wait_value
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer
from tidemill.wire.message import Message

__all__ = ["fresh_id", "refuse_older", "with_fresh_ids"]

M = TypeVar("M", bound=Message)


def fresh_id(context: TransactionContext) -> int:
    """A new producer id; KafkaError if other requests took the last ones of the block."""
    fresh = context.services.producer_ids.try_next()
    if fresh is None:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id at hand")
    return fresh


def with_fresh_ids(
    context: TransactionContext,
    run: Callable[[], Message | Deferred[Any]],
    refuse: Callable[[KafkaError], Message],
) -> Answer:
    """Run a request that may need a producer id, after a block of them is at hand."""
    if context.services.producer_ids.has_any:
        return run()
    return _refill_and_run(context, run, refuse)


async def _refill_and_run(
    context: TransactionContext,
    run: Callable[[], Message | Deferred[Any]],
    refuse: Callable[[KafkaError], Message],
) -> Message:
    try:
        await context.services.producer_ids.refill()
        return await wait_value(run())
    except StoreUnavailable:
        error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    except KafkaError as refusal:
        error = refusal
    context.services.telemetry.count_error(error.code)
    return refuse(error)


def refuse_older(
    context: TransactionContext, run: Callable[[], M | Deferred[M]], *, first_with_fenced: int
) -> M | Deferred[M]:
    """Run a request whose older versions do not know PRODUCER_FENCED."""
    try:
        return run()
    except KafkaError as error:
        if error.code is ErrorCode.PRODUCER_FENCED and context.version < first_with_fenced:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.detail) from error
        raise
