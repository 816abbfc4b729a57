"""Batches of idempotent producers that were refused for now, so that none overtakes another. Pure.

A log takes any sequence of a producer that it does not know. So if the first of several batches in
flight is refused for now, and the second one is not, the retry of the first is out of order:
librdkafka takes it for stored, and its records are lost (I1). Of a producer that the log knows,
what follows is a gap: the producer would begin another epoch, and send again what other partitions
have stored (I4). Refused for now is whatever clients repeat: there was no room, no thread, too few
replicas in sync or no lease, the holds were being read, the coordinator of the transaction could
not be asked, or the batch was damaged on its way.

So what follows a refused batch is refused as that was, until it comes again, or a copy of it from
another leader, or its producer begins another epoch. And who has not come again for as long as
clients try has given it up.

Clients hear of a new leader as soon as one broker knows it. The leader itself may hear of it later,
or has to cut its log first, or waits to be let in after a restart: what it refuses meanwhile counts
too, until a copy of it comes. They hear of a new topic just as early, and its leader has to make
the log: what comes that early is noted apart, until there is a partition.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple, Protocol, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    EARLY_PARTITIONS_MAX,
    EARLY_PRODUCERS_MAX,
    REFUSED_KEPT_MS,
    REFUSED_PRODUCERS_MAX,
    REFUSED_PRODUCERS_PER_BROKER_MAX,
)
from tidemill.wire.batch import BatchHeader, read_header

__all__ = ["EarlyRefusals", "RefusedBatches", "RefusedTotal"]

_Name = tuple[str | UUID, int]
"""A partition of a topic by its name, or by its id where nobody here knows that name."""
_SEQUENCES = 1 << 31
"""They begin at 0 again after the last one."""


@final
class _Refused(NamedTuple):
    producer_epoch: int
    base_sequence: int
    code: ErrorCode
    at_ms: int


class _Part(Protocol):
    """Waits for so many batches, and can forget them; it says so when their number changes."""

    def __len__(self) -> int: ...

    def clear(self) -> None: ...


@final
class RefusedTotal:
    """Bounds what the partitions of a broker wait for together, or the clients of a router.

    Who may write to thousands of partitions could make it remember millions of producers.
    """

    __slots__ = ("_count_max", "_counts", "_sum")

    def __init__(self, count_max: int = REFUSED_PRODUCERS_PER_BROKER_MAX) -> None:
        self._count_max = count_max
        self._counts: OrderedDict[_Part, int] = OrderedDict()
        """Of each part that waits; the one that has changed last comes last."""
        self._sum = 0

    def __len__(self) -> int:
        return self._sum

    def changed(self, part: _Part) -> None:
        """Another number waits in it. If all are too many, who has not changed longest forgets."""
        count = len(part)
        self._sum += count - self._counts.pop(part, 0)
        if count:
            self._counts[part] = count
        while self._sum > self._count_max:
            next(iter(self._counts)).clear()


@final
class RefusedBatches:
    """The first refused batch of each producer, in one partition."""

    __slots__ = ("_producers_max", "_refused", "_total")

    def __init__(
        self, producers_max: int = REFUSED_PRODUCERS_MAX, total: RefusedTotal | None = None
    ) -> None:
        """Counted in `total`, if there is one."""
        self._producers_max = producers_max
        self._total = total
        self._refused: OrderedDict[int, _Refused] = OrderedDict()
        """By producer id; bounded: whoever was refused longest ago is forgotten."""

    def __len__(self) -> int:
        return len(self._refused)

    def clear(self) -> None:
        self._refused.clear()
        self._changed()

    def take_over(self, other: RefusedBatches) -> None:
        """Wait for what `other` waits for, too; it has no more producers than fit in here."""
        self._refused.update(other._refused)
        self._changed()

    def check(self, header: BatchHeader, now_ms: int) -> None:
        """KafkaError: a batch before this one was refused, and has not come again."""
        found = self._refused.get(header.producer_id)
        if found is None or not _is_behind(header, found):
            return
        if _is_given_up(found, now_ms):
            self._end_wait(header)
            return
        raise KafkaError(found.code, "a batch before this one was refused")

    def add(self, header: BatchHeader, code: ErrorCode, now_ms: int) -> None:
        """The batch was refused, and nothing of it was appended."""
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        found = self._refused.get(header.producer_id)
        if found is None or _is_given_up(found, now_ms) or _takes_place(header, found):
            self._refused.pop(header.producer_id, None)  # the newest one comes last
            self._refused[header.producer_id] = _Refused(
                header.producer_epoch, header.base_sequence, code, now_ms
            )
        if len(self._refused) > self._producers_max:
            self._refused.popitem(last=False)
        self._changed()

    def appended(self, header: BatchHeader) -> None:
        """The batch was appended; it may be one before the refused one.

        Or one behind it, in a copy of a log from which the refused one was deleted.
        """
        found = self._refused.get(header.producer_id)
        if found is None:
            return
        is_later = header.producer_epoch > found.producer_epoch or _is_behind(header, found)
        if is_later or _has_it(header, found):
            self._end_wait(header)

    def _end_wait(self, header: BatchHeader) -> None:
        del self._refused[header.producer_id]
        self._changed()

    def _changed(self) -> None:
        if self._total is not None:
            self._total.changed(self)


@final
class EarlyRefusals:
    """The first refused batch of each producer, by partition."""

    def __init__(self) -> None:
        self._refused: OrderedDict[_Name, RefusedBatches] = OrderedDict()
        """Bounded: the partition that was the first to be refused is forgotten."""

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, name: _Name, batch: memoryview, code: ErrorCode, now_ms: int) -> None:
        """The batch was refused, because this broker has no such partition."""
        if not code.retriable:  # as for a name that no topic can have, which may be long
            return
        with suppress(KafkaError):
            header = read_header(batch)
            refused = self._refused.get(name) or RefusedBatches(EARLY_PRODUCERS_MAX)
            refused.add(header, ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms)
            if refused:
                self._refused[name] = refused
        if len(self._refused) > EARLY_PARTITIONS_MAX:
            self._refused.popitem(last=False)

    def take(self, name: _Name) -> RefusedBatches:
        """What was refused of a partition that is here from now on."""
        return self._refused.pop(name, None) or RefusedBatches()


def _is_given_up(found: _Refused, now_ms: int) -> bool:
    return now_ms - found.at_ms > REFUSED_KEPT_MS


def _takes_place(header: BatchHeader, found: _Refused) -> bool:
    """Whether the batch is the one to wait for: an older epoch is not waited for any more."""
    return header.producer_epoch >= found.producer_epoch and not _is_behind(header, found)


def _has_it(header: BatchHeader, found: _Refused) -> bool:
    """Whether the batch has the refused one: of a damaged one the sequence may be wrong."""
    if header.producer_epoch != found.producer_epoch:
        return False
    return (found.base_sequence - header.base_sequence) % _SEQUENCES <= header.last_offset_delta


def _is_behind(header: BatchHeader, found: _Refused) -> bool:
    """Whether the batch comes after the refused one."""
    if header.producer_epoch != found.producer_epoch:
        return False
    distance = (header.base_sequence - found.base_sequence) % _SEQUENCES
    return 0 < distance < _SEQUENCES // 2
