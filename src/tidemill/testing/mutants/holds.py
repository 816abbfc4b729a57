"""Planted bugs of held records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.delivery.holds.events import (
    Carried,
    Closed,
    ClosedMany,
    HoldEnding,
    HoldEvent,
    Opened,
    TransactionEnded,
)
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_headers import TICKET, Headers, read_number
from tidemill.delivery.holds.undecided_holds import UndecidedHolds
from tidemill.replication.holding.hold_clocks import BelievedWall
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.replication.holding.releaser import Releaser
from tidemill.server.fetching.aborted_search import listed
from tidemill.server.fetching.view_reader import ViewRead
from tidemill.testing.mutants.planting import Function, mutant
from tidemill.wire.batch import BatchHeader

__all__: list[str] = []

_EVENTS = "tidemill.delivery.holds.events"
_REPLAY = "tidemill.replication.holding.hold_replay"
_HOLDS = "tidemill.replication.holding.partition_holds:PartitionHolds"
_RELEASER = "tidemill.replication.holding.releaser:Releaser"
_ROUNDED_MS = 1_000

# --- what a batch means ---------------------------------------------------------------------------


@mutant("veiled batch served raw", "tidemill.delivery.view_walk:is_veiled")
def _raw(_original: Function) -> Function:
    return lambda _header: False


@mutant("client's ticket counts", f"{_EVENTS}:_event_of_client")
def _clients_ticket(original: Function) -> Function:
    def event_of_client(
        header: BatchHeader, offset: int, size_bytes: int, headers: Headers
    ) -> HoldEvent | None:
        ticket = read_number(headers.get(TICKET))
        if ticket is not None:
            return Closed(ticket, HoldEnding.RELEASED)
        event: HoldEvent | None = original(header, offset, size_bytes, headers)
        return event

    return event_of_client


@mutant("due rounded", f"{_EVENTS}:read_due")
def _due_rounded(original: Function) -> Function:
    def read_due(headers: Headers, stamp_ms: int) -> tuple[int, Axis]:
        due_ms, axis = original(headers, stamp_ms)
        return due_ms // _ROUNDED_MS * _ROUNDED_MS, axis

    return read_due


@mutant("due decided at replay", f"{_REPLAY}:events_of")
def _due_at_replay(original: Function) -> Function:
    def events_of(batch: memoryview, header: BatchHeader, *, section: bytes) -> list[HoldEvent]:
        late = _ROUNDED_MS  # as if the batch had been taken in when it is replayed
        events: list[HoldEvent] = original(batch, header, section=section)
        return [
            one._replace(hold=one.hold._replace(due_ms=one.hold.due_ms + late))
            if isinstance(one, Opened) and one.hold.axis is Axis.STEADY
            else one
            for one in events
        ]

    return events_of


@mutant("closed set forgotten at takeover", f"{_REPLAY}:events_of")
def _closed_forgotten(original: Function) -> Function:
    return lambda batch, header, section: [
        one
        for one in original(batch, header, section=section)
        if not isinstance(one, Closed | ClosedMany)
    ]


@mutant("carried copy ignored", f"{_REPLAY}:events_of")
def _carried_ignored(original: Function) -> Function:
    return lambda batch, header, section: [
        one for one in original(batch, header, section=section) if not isinstance(one, Carried)
    ]


# --- transactions ---------------------------------------------------------------------------------

_BOOK = "tidemill.delivery.holds.hold_book:HoldBook"
_UNDECIDED = "tidemill.delivery.holds.undecided_holds:UndecidedHolds"


@mutant("hold of an open transaction released", f"{_EVENTS}:_requested")
def _open_at_once(original: Function) -> Function:
    def requested(*arguments: object) -> Iterator[HoldEvent]:
        for event in original(*arguments):
            yield event._replace(producer_id=None) if isinstance(event, Opened) else event

    return requested


@mutant("aborted hold released", f"{_BOOK}._decide")
def _aborted_opens(original: Function) -> Function:
    def decide(book: HoldBook, producer_id: int, *, is_commit: bool, end_offset: int) -> None:
        original(book, producer_id, is_commit=True, end_offset=end_offset)

    return decide


@mutant("marker decides for every producer", f"{_UNDECIDED}.take_all")
def _decides_for_all(original: Function) -> Function:
    def take_all(undecided: UndecidedHolds, _producer_id: int) -> list[Hold]:
        producers = dict.fromkeys(producer_id for producer_id, _ in undecided)
        return [hold for producer_id in producers for hold in original(undecided, producer_id)]

    return take_all


@mutant("undecided holds forgotten at takeover", f"{_REPLAY}:events_of")
def _undecided_forgotten(original: Function) -> Function:
    return lambda batch, header, section: [
        one
        for one in original(batch, header, section=section)
        if not isinstance(one, Opened) or one.producer_id is None
    ]


@mutant("markers forgotten at takeover", f"{_REPLAY}:events_of")
def _markers_forgotten(original: Function) -> Function:
    return lambda batch, header, section: [
        one
        for one in original(batch, header, section=section)
        if not isinstance(one, TransactionEnded)
    ]


@mutant("undecided holds not restored", f"{_BOOK}.restore")
def _undecided_not_restored(original: Function) -> Function:
    return lambda book, captured, runs: original(book, captured._replace(undecided=[]), runs)


@mutant("floor ignores open transactions", f"{_UNDECIDED}.oldest_copy")
def _floor_of_decided(_original: Function) -> Function:
    return lambda _undecided: None


@mutant(
    "aborted list with veiled entries",
    "tidemill.server.fetching.view_reader:ViewRead._name_transactions",
)
def _veiled_named(_original: Function) -> Function:
    def name_transactions(read: ViewRead) -> None:
        if read._aborted:
            read.data.aborted_transactions = listed(read._aborted)

    return name_transactions


# --- clocks ---------------------------------------------------------------------------------------


@mutant("steady is wall", "tidemill.replication.holding.hold_host:HoldHost.steady_ms")
def _steady_is_wall(_original: Function) -> Function:
    return lambda host, _steady: host._clock.wall_ms()


@mutant("clock ahead believed at once", "tidemill.replication.holding.hold_host:HoldHost.wall_ms")
def _believed_at_once(_original: Function) -> Function:
    def wall_ms(host: HoldHost) -> int:
        return host._clock.wall_ms()

    return wall_ms


@mutant(
    "clock back delivers at once", "tidemill.replication.holding.hold_clocks:BelievedWall.now_ms"
)
def _back_at_once(original: Function) -> Function:
    def now_ms(believed: BelievedWall, *, wall_ms: int, boot_s: float) -> int:
        """What the clock lost counts as time that has passed."""
        expected_ms = believed._wall_ms + int((boot_s - believed._boot_s) * 1000)
        if wall_ms < expected_ms - _ROUNDED_MS // 2:
            return 2 * expected_ms - wall_ms
        now: int = original(believed, wall_ms=wall_ms, boot_s=boot_s)
        return now

    return now_ms


# --- releases -------------------------------------------------------------------------------------


@mutant("book not asked again", f"{_RELEASER}._append")
def _not_asked_again(_original: Function) -> Function:
    def append(
        _releaser: Releaser,
        holds: PartitionHolds,
        _some: Sequence[Hold],
        _seen: object,
        batch: bytearray,
        now_ms: int,
    ) -> bool:
        holds.partition.as_leader.append_ours(batch, now_ms=now_ms)
        return True

    return append


@mutant("cut ignored by the book", f"{_HOLDS}.was_cut")
def _cut_ignored(_original: Function) -> Function:
    return lambda holds: None


# --- what must stay -------------------------------------------------------------------------------


@mutant("floor before durable", f"{_HOLDS}.settle")
def _floor_before_durable(_original: Function) -> Function:
    return lambda holds, book: book.settle(holds.partition.log.log_end_offset)


@mutant("retention ignores the floor", f"{_HOLDS}.floor")
def _no_floor(_original: Function) -> Function:
    return lambda _holds: None


@mutant("follower ignores the floor", f"{_HOLDS}.floor")
def _follower_no_floor(original: Function) -> Function:
    def floor(holds: PartitionHolds) -> int | None:
        found: int | None = original(holds)
        return found if holds.partition.is_leader else None

    return floor


@mutant("no floor during a replay", f"{_HOLDS}.floor")
def _no_floor_at_replay(original: Function) -> Function:
    def floor(holds: PartitionHolds) -> int | None:
        found: int | None = original(holds)
        return found if holds.is_whole else None

    return floor


# --- snapshots ------------------------------------------------------------------------------------

_SNAPSHOTS = "tidemill.replication.holding.hold_snapshots"


@mutant("snapshot of another log used", f"{_SNAPSHOTS}:_mark_of")
def _any_mark(_original: Function) -> Function:
    return lambda _batch: bytes(16)


@mutant("snapshot that the log start has passed", f"{_REPLAY}:_opened")
def _passed_snapshot(_original: Function) -> Function:
    async def opened(holds: PartitionHolds, disk: Function) -> tuple[HoldBook, int]:
        book = await holds.spills.open_book(disk)
        return book, max(holds.replay_offset, book.next_offset)

    return opened


@mutant("taken rows not captured", "tidemill.delivery.holds.hold_run:HoldRun.taken_rows")
def _taken_forgotten(_original: Function) -> Function:
    return lambda run: bytes(len(run._taken))
