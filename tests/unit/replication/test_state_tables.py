"""The state machines of docs/internals/replication.md are those of the code, row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.support.follower_bench import BAD, EPOCH, GOOD, Bench, FullLog, data, diverging, log
from tests.support.partitions import OWN, SECOND, THIRD, append, batch, image, leader
from tests.support.state_machines import each_step
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.rules.election import Live, new_partition
from tidemill.metadata.rules.reassignment import (
    advanced,
    cancelled,
    is_waiting_to_forget,
    reassigned,
)
from tidemill.replication.in_sync import InSync, Members
from tidemill.replication.pulling.fetch_round import FOREVER
from tidemill.replication.serving import replica_session
from tidemill.replication.serving.replica_session import ReplicaSession, ReplicaSlot
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.state.log_damage import DamagedRange
from tools import state_tables

# --- a slot of a replica session ------------------------------------------------------------------


class SlotBench:
    """A leader with two records, and the slot of a follower that has heard of one."""

    def __init__(self) -> None:
        self.led = leader(isr=(OWN, SECOND))
        append(self.led)
        self.session = ReplicaSession(1, broker_id=SECOND, broker_epoch=8, lane=0)
        self.slot = ReplicaSlot(self.session, (self.led.topic_id, 0), self.led)
        self._name(offset=1)
        self._tell(has_records=False)

    @property
    def state(self) -> str:
        names = ("IDLE", "MARKED", "READY", "TOLD")
        return next(one for one in names if getattr(replica_session, one) == self.slot._state)

    def enter(self, state: str) -> None:
        if state == "MARKED":
            self.slot.mark_moved()
        elif state in ("READY", "TOLD"):
            append(self.led)
            self.slot.grew()
        if state == "TOLD":
            self._tell(has_records=True)

    def _name(self, *, offset: int, seen: int = 1_000) -> None:
        epoch = self.led.leader_epoch
        self.slot.named(leader_epoch=epoch, fetch_offset=offset, max_bytes=100, seen=seen)

    def _tell(self, *, has_records: bool) -> None:
        self.session.fetches += 1
        self.session.take_next()
        self.slot.told(has_records=has_records)

    def name_with_unknown_marks(self) -> None:
        self.slot._sent_high_watermark = -1
        self._name(offset=self.led.log.log_end_offset)

    def name_behind(self) -> None:
        append(self.led)
        self._name(offset=self.led.log.log_end_offset - 1)

    def happen(self, event: str) -> None:
        events: dict[str, Callable[[], None]] = {
            "a mark or the log start moves": self.slot.mark_moved,
            "records are appended": self.slot.grew,
            "this broker leads in another epoch, or no longer": self.slot.role_changed,
            "an answer brings its records": lambda: self._tell(has_records=True),
            "an answer tells of it, without records": lambda: self._tell(has_records=False),
            "the follower names it, and knows everything": lambda: self._name(
                offset=self.led.log.log_end_offset
            ),
            "the follower names it, and does not know the marks": self.name_with_unknown_marks,
            "the follower names it, and lacks records": self.name_behind,
            "a fetch names it that left before its records arrived": lambda: self._name(
                offset=1, seen=0
            ),
        }
        events[event]()


@each_step(
    "slot",
    everywhere=[
        "a mark or the log start moves",
        "records are appended",
        "this broker leads in another epoch, or no longer",
        "the follower names it, and knows everything",
        "the follower names it, and does not know the marks",
        "the follower names it, and lacks records",
    ],
)
def test_a_slot_changes_as_its_table_says(state, event, after):
    bench = SlotBench()
    bench.enter(state)
    assert bench.state == state
    bench.happen(event)
    assert bench.state == after


# --- a proposal of an in-sync set -----------------------------------------------------------------

BASE = 5
NOW = (OWN, SECOND)
WANTED: Members = ((OWN, 11), (SECOND, 12), (THIRD, 13))


def in_sync_in(state: str) -> InSync:
    made = InSync(OWN, NOW, BASE)
    if state != "SETTLED":
        made.sent(WANTED)
    if state in ("IN_DOUBT", "OPEN_IN_DOUBT"):
        made.unanswered(BASE)
    if state in ("OPEN", "OPEN_IN_DOUBT"):
        made.refused(BASE, ErrorCode.INVALID_UPDATE_VERSION)
    return made


def state_of(found: InSync) -> str:
    """By what it proposes next, if a member that has joined lets it want less than before."""
    if not found.is_unsettled:
        return "SETTLED"
    is_open = found.try_next_proposal(WANTED[:2]) == WANTED[:2]
    if found._has_unanswered:
        return "OPEN_IN_DOUBT" if is_open else "IN_DOUBT"
    return "OPEN" if is_open else "PROPOSED"


PROPOSAL_EVENTS: dict[str, list[Callable[[InSync], object]]] = {
    "a proposal is sent": [lambda one: one.sent(WANTED)],
    "no answer, or an error that says nothing about the proposal": [
        lambda one: one.unanswered(BASE),
        lambda one: one.refused(BASE, ErrorCode.NOT_CONTROLLER),
        lambda one: one.refused(BASE, ErrorCode.REQUEST_TIMED_OUT),
    ],
    "a definite no": [
        lambda one: one.refused(BASE, ErrorCode.INELIGIBLE_REPLICA),
        lambda one: one.refused(BASE, ErrorCode.INVALID_REQUEST),
    ],
    "refused: the partition is in another state": [
        lambda one: one.refused(BASE, ErrorCode.INVALID_UPDATE_VERSION),
        lambda one: one.refused(BASE, ErrorCode.FENCED_LEADER_EPOCH),
    ],
    "answered: nothing was to be changed": [lambda one: one.accepted(BASE, NOW, BASE)],
    "an answer or an image has a higher partition epoch": [
        lambda one: one.accepted(BASE, NOW, BASE + 1),
        lambda one: one.saw(NOW, BASE + 1),
    ],
    "an image has a partition epoch that is known": [
        lambda one: one.saw(NOW, BASE),
        lambda one: one.saw(NOW, BASE - 1),
    ],
}


@each_step("proposal", everywhere=["an answer or an image has a higher partition epoch"])
def test_a_proposed_in_sync_set_changes_as_its_table_says(state, event, after):
    for happen in PROPOSAL_EVENTS[event]:
        found = in_sync_in(state)
        assert state_of(found) == state
        happen(found)
        assert state_of(found) == after
        assert (THIRD in found.maximal) is (after != "SETTLED")  # I14: who may be in counts


# --- a partition that follows ---------------------------------------------------------------------

DAMAGE = DamagedRange(0, 1)


class FollowerBench:
    """One partition with two records, the first of them committed, outside the in-sync set."""

    def __init__(self, *, disk_is_full: bool) -> None:
        self.log = FullLog(LogConfig()) if disk_is_full else log()
        self.bench = Bench(self.log, unclean_epoch=-1)
        (self.partition,) = self.bench.partitions
        self._follow(EPOCH)

    @property
    def state(self) -> str:
        held_until = self.bench.lane.round._held.get(self.partition)
        if held_until is None:
            return "FETCHING"
        if held_until < FOREVER:
            return "RESTING"
        if self.partition.as_follower.refused_cut is not None:
            return "REFUSED"
        return "DAMAGED" if self.log.damage else "CUTTING"

    async def enter(self, state: str) -> None:
        if not isinstance(self.log, FullLog):
            await self.bench.fetch(data(0, batch(2, epoch=EPOCH), high_watermark=1))
        before = {
            "RESTING": "records come that must not follow ours",
            "CUTTING": "the logs diverge, above what was committed here",
            "REFUSED": "the logs diverge, below what was committed here",
            "DAMAGED": "damage is found",
        }
        if state in before:
            await self.happen(before[state])

    async def happen(self, event: str) -> None:
        fetch = self.bench.fetch
        events: dict[str, Callable[[], Awaitable[object]]] = {
            "records come that follow ours": lambda: fetch(
                data(0, batch(1, base_offset=2, epoch=EPOCH))
            ),
            "the leader answers with an error": lambda: fetch(
                data(0, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            ),
            "records come that must not follow ours": lambda: fetch(data(0, BAD)),
            "our disk is full": lambda: fetch(data(0, GOOD)),
            "the rest is over": self._rest,
            "the logs diverge, above what was committed here": self._begin_cut,
            "the cut is made": self._end_cut,
            "the logs diverge, below what was committed here": lambda: fetch(diverging(0, 0)),
            "the leader epoch changes": self._lead_anew,
            "damage is found": self._damage,
            "the damage is mended": self._mend,
        }
        await events[event]()

    async def _rest(self) -> None:
        self.bench.clock.advance(60.0)
        await self.bench.fetch()

    async def _begin_cut(self) -> None:
        self.bench.cutter.may_cut.clear()
        await self.bench.fetch(diverging(0, 1))

    async def _end_cut(self) -> None:
        self.bench.cutter.may_cut.set()
        for _ in range(5):
            await asyncio.sleep(0)

    async def _lead_anew(self) -> None:
        self._follow(EPOCH + 1)

    def _follow(self, epoch: int) -> None:
        now = image(leader=SECOND, epoch=epoch, isr=(SECOND,))
        self.partition.become_follower(now)
        self.bench.followers.role_changed(self.partition, now)

    async def _damage(self) -> None:
        self.log.damage.note(DAMAGE)
        await self.bench.fetch(data(0, batch(1, base_offset=2, epoch=EPOCH)))

    async def _mend(self) -> None:
        self.log.damage.mended(DAMAGE.start_offset, DAMAGE.end_offset)
        self.bench.followers.released(self.partition, 0.0)


@each_step("follower")
def test_a_partition_that_follows_changes_as_its_table_says(run, state, event, after):
    async def main() -> None:
        bench = FollowerBench(disk_is_full=event == "our disk is full")
        await bench.enter(state)
        assert bench.state == state
        await bench.happen(event)
        assert bench.state == after

    run(main())


# --- a move of replicas ---------------------------------------------------------------------------

BROKERS = range(5)
LIVE = Live(frozenset(BROKERS), frozenset(BROKERS))
MIN_ISR = 2


def _moved(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    return reassigned(partition, target, BROKERS, MIN_ISR)


def _in_sync(partition: PartitionImage, led_lately: tuple[int, ...] = ()) -> PartitionImage:
    """Everybody joins; the controller goes on as far as it can."""
    found = replace(partition, isr=partition.replicas)
    while (following := advanced(found, LIVE, MIN_ISR, led_lately)) != found:
        found = following
    return found


def _state_of_move(partition: PartitionImage) -> str:
    if not partition.is_moving:
        return "AT_REST"
    return "FORGETTING" if is_waiting_to_forget(partition) else "COPYING"


STAYS, GOES = (0, 3), (3, 1)
"""Targets of a partition on 0, 1 and 2 that 0 leads."""


def _partition_in(state: str, target: tuple[int, ...]) -> PartitionImage:
    found = new_partition((0, 1, 2))
    if state != "AT_REST":
        found = _moved(found, target)
    return _in_sync(found, led_lately=(0,)) if state == "FORGETTING" else found


MOVE_EVENTS: dict[str, tuple[tuple[int, ...], Callable[[PartitionImage], PartitionImage]]] = {
    "a move is asked for": (GOES, lambda one: _moved(one, (3, 4))),
    "the target is in sync, and its leader stays": (STAYS, _in_sync),
    "the target is in sync, and its leader goes: it hands over": (
        GOES,
        lambda one: _in_sync(one, led_lately=(0,)),
    ),
    "a session has passed": (GOES, lambda one: advanced(one, LIVE, MIN_ISR)),
    "the move is cancelled": (GOES, lambda one: cancelled(one, LIVE, MIN_ISR)),
}


@each_step("move")
def test_a_move_of_replicas_changes_as_its_table_says(state, event, after):
    target, happen = MOVE_EVENTS[event]
    found = _partition_in(state, target)
    assert _state_of_move(found) == state
    assert _state_of_move(happen(found)) == after


# --- the page -------------------------------------------------------------------------------------


def test_pictures_and_tables_are_made_from_the_data(capsys):
    assert state_tables.main(["--check"]) == 0, capsys.readouterr().out


def test_a_picture_that_differs_from_the_data_is_named(monkeypatch, capsys):
    made = state_tables.outputs()
    picture = next(path for path in made if path.suffix == ".svg")
    monkeypatch.setattr(state_tables, "outputs", lambda: {**made, picture: "another"})
    assert state_tables.main(["--check"]) == 1
    assert f"{picture.name} differs" in capsys.readouterr().out


def test_a_row_with_an_unknown_state_is_refused(tmp_path):
    data = tmp_path / "states.toml"
    data.write_text(
        '[m]\ntitle = ""\ncode = ""\n[m.states]\nA = { at = [0, 0], meaning = "" }\n'
        '[[m.rows]]\nfrom = ["A"]\nevent = ""\nto = "B"\n'
    )
    with pytest.raises(ValueError, match="m has no state B"):
        state_tables.load(data)
