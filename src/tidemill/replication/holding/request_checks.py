"""Whether a topic and its holds allow what a client's batch asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    HOLD_SCHEDULES_MAX,
    HOLDS_UNDECIDED_MAX,
    ID_LOOKUPS_MAX,
    RECORD_ERRORS_MAX,
)
from tidemill.delivery.holds.events import HoldEnding
from tidemill.delivery.holds.hold import Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_headers import Target
from tidemill.delivery.intake import Command, HeldRecord, Requests, refused_records
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.wire.batch import BatchHeader

__all__ = ["are_all_due", "check_commands", "check_held"]


def are_all_due(requests: Requests, *, wall_ms: int) -> bool:
    """Whether every record that asks for a time may be delivered at once."""
    is_past = requests.delay_max_ms <= 0 and requests.deliver_at_max_ms <= wall_ms
    return is_past and not requests.schedules


def check_held(
    requests: Requests, header: BatchHeader, book: HoldBook, policy: HoldPolicy, *, wall_ms: int
) -> None:
    """KafkaError unless the topic has room for these held records, until they are due."""
    if not policy.is_enabled:
        why = "the topic has no delay (tidemill.delay.enable)"
        raise _refused_held(requests.held(), why)
    ahead_ms = max(requests.delay_max_ms, requests.deliver_at_max_ms - wall_ms)
    if ahead_ms > policy.delay_max_ms:
        _check_times(requests.held(), policy, wall_ms)
    if header.is_transactional and requests.schedules:
        why = "a schedule cannot be part of a transaction"
        raise refused_records([(one.place, why) for one in requests.schedules])
    full = _try_find_full(requests, header, book, policy)
    if full is not None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"the partition holds {full}")


def _refused_held(held: Iterable[HeldRecord], why: str) -> KafkaError:
    some = islice(held, RECORD_ERRORS_MAX)
    return refused_records([(one.place, f"{one.request}: {why}") for one in some])


def _try_find_full(
    requests: Requests, header: BatchHeader, book: HoldBook, policy: HoldPolicy
) -> str | None:
    """Of what the partition holds as much as it may, and the limit."""
    count, schedules = requests.held_count, len(requests.schedules)
    if book.pending + count > policy.pending_max:
        return f"{book.pending} records (tidemill.delay.max.pending)"
    if book.pending_bytes + requests.section_bytes > policy.pending_bytes_max:
        return f"{book.pending_bytes} bytes (tidemill.delay.max.pending.bytes)"
    if schedules and book.schedule_count + schedules > HOLD_SCHEDULES_MAX:
        return f"{book.schedule_count} schedules, at most {HOLD_SCHEDULES_MAX}"
    if header.is_transactional and book.undecided + count > HOLDS_UNDECIDED_MAX:
        return f"{book.undecided} records of open transactions, at most {HOLDS_UNDECIDED_MAX}"
    return None


def check_commands(
    requests: Requests, header: BatchHeader, book: HoldBook, policy: HoldPolicy, *, wall_ms: int
) -> None:
    """KafkaError unless every command finds its hold, or repeats one that did."""
    if header.is_transactional:
        why = "a command cannot be part of a transaction"
        raise refused_records([(one.place, why) for one in requests.commands])
    moves = [one.move for one in requests.commands if one.move is not None]
    _check_times(moves, policy, wall_ms)
    _check_lookups(requests.commands, book)
    has_schedules = bool(requests.schedules)
    cancelled: set[int] = set()
    errors = []
    for command in requests.commands:
        target = command.target
        found = book.find(target) if isinstance(target, int) else book.find_id(target)
        fault = _try_find_fault(command, found, book, cancelled)
        if has_schedules and command.move is not None and found is not None and found.schedule:
            # A new one with the same id takes its place, and the move would do nothing.
            fault = "a batch sets schedules or moves them"
        if fault is not None:
            errors.append((command.place, f"tidemill.target={_shown(target)}: {fault}"))
        elif command.move is None and found is not None:
            cancelled.add(found.ticket)
    if errors:
        raise refused_records(errors)


def _check_lookups(commands: Sequence[Command], book: HoldBook) -> None:
    """An id is searched in every run of a large book, here and by each replica, on the loop."""
    ids = sum(isinstance(one.target, bytes) for one in commands)
    ids_max = ID_LOOKUPS_MAX // book.shelf_count
    if ids > ids_max:
        detail = f"a batch has at most {ids_max} commands by id where so much is held"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)


def _try_find_fault(
    command: Command, found: Hold | None, book: HoldBook, cancelled: set[int]
) -> str | None:
    """Why a command cannot be carried out; some tickets are cancelled earlier in its batch."""
    if found is not None:
        is_late = command.move is not None and found.ticket in cancelled
        return "cancelled already" if is_late else None
    match book.ending_of(command.target):
        case HoldEnding.RELEASED:
            return "delivered already"
        case HoldEnding.CANCELLED:
            return None if command.move is None else "cancelled already"
    return "nothing is held under it"


def _check_times(held: Iterable[HeldRecord], policy: HoldPolicy, wall_ms: int) -> None:
    limit = policy.delay_max_ms
    late = [one for one in held if _is_beyond(one, limit, wall_ms)]
    if late:
        raise _refused_held(late, f"more than {limit} ms ahead")


def _is_beyond(held: HeldRecord, limit: int, wall_ms: int) -> bool:
    if held.deliver_at_ms is not None:
        return held.deliver_at_ms - wall_ms > limit
    return held.delay_ms is not None and held.delay_ms > limit


def _shown(target: Target) -> str:
    return str(target) if isinstance(target, int) else ascii(target.decode("utf-8", "replace"))
