"""Logs about holds, as Hypothesis draws them: also such as no leader would write."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.unit.delivery.holds.hold_log import (
    STAMP_MS,
    HoldLog,
    after,
    at,
    cancel,
    copy,
    cron,
    move,
    released,
)
from tidemill.wire.records import Header

ID = b"a"
PRODUCERS = (7, 8)
_dues = st.integers(0, 5)
_requests = st.one_of(st.builds(at, _dues), st.builds(after, _dues))
_named_requests = st.one_of(
    _requests, st.builds(at, _dues, st.just(ID)), st.builds(cron, st.just(ID))
)


def _records_of(draw: st.DrawFn, log: HoldLog, *, ids: bool) -> list[Header]:
    """The headers of one record of a client."""
    targets: st.SearchStrategy[int | bytes] = st.integers(0, log.end)
    requests = _named_requests if ids else _requests
    if ids:
        targets = targets | st.just(ID)
    kind = draw(st.sampled_from(["held", "held", "cancel", "move", "plain"]))
    if kind == "held":
        return draw(requests)
    if kind == "cancel":
        return cancel(draw(targets))
    if kind == "move":
        return move(draw(targets), draw(_requests))
    return draw(st.sampled_from([[], released(draw(st.integers(0, log.end)))]))


def _append_any(draw: st.DrawFn, log: HoldLog, *, ids: bool) -> None:
    kind = draw(st.sampled_from(["client", "client", "transaction", "marker", "ours", "carried"]))
    tickets = st.integers(0, max(0, log.end - 1))
    count = draw(st.integers(1, 3))
    if kind == "client":
        records = [_records_of(draw, log, ids=ids) for _ in range(count)]
        log.client(*records, stamp_ms=STAMP_MS + draw(_dues))
    elif kind == "transaction":
        records = [_records_of(draw, log, ids=ids) for _ in range(count)]
        log.client(*records, producer_id=draw(st.sampled_from(PRODUCERS)))
    elif kind == "marker":
        log.marker(draw(st.sampled_from(PRODUCERS)), is_commit=draw(st.booleans()))
    elif kind == "ours":
        ticks = st.none() | _dues
        log.ours(*[released(draw(tickets), next_ms=draw(ticks)) for _ in range(count)])
    elif log.end:
        requests = _named_requests if ids else _requests
        axes = st.sampled_from([b"wall", b"steady"])
        log.carried(copy(draw(tickets), draw(_dues), draw(requests), draw(axes)))


@st.composite
def any_log(draw: st.DrawFn, *, ids: bool = True) -> HoldLog:
    """Any batches in any order; without `ids` commands name tickets alone."""
    log = HoldLog()
    for _ in range(draw(st.integers(1, 12))):
        _append_any(draw, log, ids=ids)
    return log
