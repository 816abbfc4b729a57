"""L1: held records over cuts, carries and new replicas; planted faults are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.exploration import Broken
from tests.model.holds_model import (
    Batch,
    Budget,
    HoldRules,
    Log,
    explore,
    real_events,
    wander,
)
from tidemill.delivery.holds.events import (
    Closed,
    HoldEnding,
    HoldEvent,
    Opened,
    TransactionEnded,
)
from tidemill.delivery.holds.hold_book import HoldBook

STATES_MAX = 50_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget",
    [
        Budget(("held",), cuts=2, carries=1),
        Budget(("held",), cuts=2, cancels=1),
        Budget(("held",), cuts=1, newcomers=1),
        Budget(("held", "forwarded"), cuts=1),
        Budget(("begun",), cuts=1, carries=1),
    ],
    ids=["carried", "cancelled", "a new replica", "forwarded", "in a transaction"],
)
def test_I31_I32_I45_each_hold_is_delivered_once_and_not_early_whoever_leads(budget):
    assert explore(HoldRules(), budget, states_max=STATES_MAX) > 5_000


WHOLE = Budget(("held", "begun", "forwarded"), cuts=2, carries=1, cancels=1, newcomers=1, ticks=2)


@pytest.mark.slow
def test_I31_I32_I45_three_holds_two_cuts_a_carry_and_a_new_replica_at_random():
    assert wander(HoldRules(), WHOLE, walks=400, steps_max=40) > 5_000


def _clients_ticket_counts(offset: int, batch: Batch, now_ms: int) -> list[HoldEvent]:
    events = real_events(offset, batch, now_ms)
    if batch.kind == "forwarded":
        return [*events, Closed(batch.ticket, HoldEnding.RELEASED)]
    return events


def _with_due(offset: int, batch: Batch, now_ms: int, due_ms: int | None) -> list[HoldEvent]:
    """The events with the due time of holds changed; None: rounded down to two milliseconds."""
    events = list(real_events(offset, batch, now_ms))
    for at, event in enumerate(events):
        if isinstance(event, Opened):
            due = event.hold.due_ms // 2 * 2 if due_ms is None else due_ms
            events[at] = event._replace(hold=event.hold._replace(due_ms=due))
    return events


def _due_decided_at_replay(offset: int, batch: Batch, now_ms: int) -> list[HoldEvent]:
    return _with_due(offset, batch, now_ms, now_ms + 1)


def _due_rounded(offset: int, batch: Batch, now_ms: int) -> list[HoldEvent]:
    return _with_due(offset, batch, now_ms, None)


def _opened_before_the_marker(offset: int, batch: Batch, now_ms: int) -> list[HoldEvent]:
    events = real_events(offset, batch, now_ms)
    return [one._replace(producer_id=None) if isinstance(one, Opened) else one for one in events]


def _abort_opens(offset: int, batch: Batch, now_ms: int) -> list[HoldEvent]:
    events = real_events(offset, batch, now_ms)
    return [
        one._replace(is_commit=True) if isinstance(one, TransactionEnded) else one for one in events
    ]


def _carried_copy_ignored(offset: int, batch: Batch, now_ms: int) -> list[HoldEvent]:
    return [] if batch.kind == "carried" else real_events(offset, batch, now_ms)


def _floor_before_durable(book: HoldBook) -> int | None:
    book.settle(book.next_offset)
    return book.floor()


def _floor_of_open_holds(book: HoldBook) -> int | None:
    return next((hold.offset for hold in book.held()), None)


def _closed_set_forgotten(log: Log, start: int, now_ms: int, rules: HoldRules) -> HoldBook:
    book = HoldBook()
    for offset in range(start, len(log)):
        events = rules.events(offset, log[offset], now_ms)
        book.fold([one for one in events if not isinstance(one, Closed)], offset=offset + 1)
    return book


def _log_start(_floor: int, log_start: int) -> int:
    return log_start


ONE = Budget(("held",), cuts=1)
REAL = HoldRules()


@pytest.mark.parametrize(
    ("mutant", "budget"),
    [
        (replace(REAL, events=_clients_ticket_counts), Budget(("held", "forwarded"), cuts=0)),
        (replace(REAL, events=_due_decided_at_replay), ONE),
        (replace(REAL, events=_due_rounded), ONE),
        (replace(REAL, events=_opened_before_the_marker), Budget(("begun",), cuts=0)),
        (replace(REAL, events=_abort_opens), Budget(("begun",), cuts=0)),
        (replace(REAL, events=_carried_copy_ignored), Budget(("held",), cuts=0, carries=1)),
        (replace(REAL, takeover=_closed_set_forgotten), ONE),
        (replace(REAL, floor=_floor_before_durable), ONE),
        (replace(REAL, floor=_floor_of_open_holds), Budget(("begun",), cuts=0)),
        (replace(REAL, follower_keeps=_log_start), ONE),
        (replace(REAL, newcomer_starts=_log_start), Budget(("held",), cuts=0, newcomers=1)),
    ],
    ids=[
        "client's ticket counts",
        "due decided at replay",
        "due rounded",
        "opened before the marker",
        "abort opens",
        "carried copy ignored",
        "closed set forgotten at takeover",
        "floor before durable",
        "undecided holds do not count for the floor",
        "follower ignores the floor",
        "new replica from the log start",
    ],
)
def test_the_exploration_finds_a_planted_fault(mutant, budget):
    with pytest.raises(Broken) as caught:
        explore(mutant, budget, states_max=STATES_MAX)
    assert "a client sends" in str(caught.value)


def test_random_steps_find_a_planted_fault_too():
    with pytest.raises(Broken):
        wander(replace(REAL, floor=_floor_before_durable), WHOLE, walks=400, steps_max=40)
