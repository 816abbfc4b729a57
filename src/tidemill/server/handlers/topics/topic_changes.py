"""Requests that change several topics: bad entries are refused here, the cluster does the rest.

There is one result per entry of the request, in order (T21). A refused entry does not stop the
others. If the cluster refuses the change as a whole, because another broker is the controller or
the coordination store does not answer, every entry that was sent to it gets that error.

A topic that occurs several times in a request is refused, and answered once, as in Kafka; clients
take a second answer for a broken one. Resources of AlterConfigs are answered each time, as there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.rules.topic_planner import TopicResult
from tidemill.replication.pending_logs import PendingLogs
from tidemill.server.request.context import TopicContext

__all__ = ["answered_once", "change_topics", "wait_usable"]

ENTRIES_PER_SLICE = 250
"""Entries checked in one slice of the loop (S11)."""

Entry = TypeVar("Entry")
Change = TypeVar("Change")


async def change_topics(
    context: TopicContext,
    entries: Sequence[Entry],
    *,
    name_of: Callable[[Entry], object],
    plan: Callable[[Entry], Change],
    apply: Callable[[list[Change]], Awaitable[Sequence[TopicResult]]],
) -> list[TopicResult]:
    """Check each entry with `plan`, which may raise KafkaError; change the rest with `apply`.

    Entries with the same `name_of` are ambiguous: all of them are refused.
    """
    names = [name_of(entry) for entry in entries]
    counts = Counter(names)
    results = [TopicResult("") for _ in entries]
    planned: list[tuple[int, Change]] = []
    pacer = Pacer(ENTRIES_PER_SLICE)
    for position, entry in enumerate(entries):
        await pacer.step()
        try:
            if counts[names[position]] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it more than once")
            planned.append((position, plan(entry)))
        except KafkaError as error:
            results[position].refuse(error)
    if planned:
        await _apply(results, planned, apply)
    for result in results:
        if result.code is not ErrorCode.NONE:
            context.services.telemetry.count_error(result.code)
    return results


def answered_once(
    names: Iterable[object], entries: Iterable[Entry], results: Iterable[TopicResult]
) -> Iterator[tuple[Entry, TopicResult]]:
    """Entries with their results, each name where it occurs first."""
    seen: set[object] = set()
    for name, entry, result in zip(names, entries, results, strict=True):
        if name not in seen:
            seen.add(name)
            yield entry, result


async def wait_usable(pending_logs: PendingLogs, results: Iterable[TopicResult]) -> None:
    """Wait until this broker has created the logs of these topics, or failed to."""
    await pending_logs.wait_tried(result.name for result in results)


async def _apply(
    results: list[TopicResult],
    planned: list[tuple[int, Change]],
    apply: Callable[[list[Change]], Awaitable[Sequence[TopicResult]]],
) -> None:
    try:
        done = await apply([change for _, change in planned])
    except (KafkaError, StoreUnavailable) as error:
        for position, _ in planned:
            results[position].refuse(_refusal(error))
        return
    for (position, _), result in zip(planned, done, strict=True):
        results[position] = result


def _refusal(error: KafkaError | StoreUnavailable) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    # The change may have happened: this is the retriable code that allows for it.
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the coordination store does not answer")
