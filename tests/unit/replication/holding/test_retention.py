"""Retention takes nothing that is held; what stands in its way is carried to the end of the log."""

from __future__ import annotations

import pytest

from tests.support.coroutines import run
from tests.support.hold_stage import Replica, cancel, delay, deliver_at
from tests.support.partitions import OWN, SECOND, THIRD, fetched
from tidemill.core.limits import RELEASE_RECORDS_MAX
from tidemill.replication.holding import releaser
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire.marks import is_ours, is_veiled

CONFIG = LogConfig(retention_ms=60_000)


@pytest.fixture
def leading():
    return Replica(ManualClock(), MemoryPartitionLog(CONFIG)).lead()


def retain(replica: Replica) -> int:
    """Apply retention once; where the log starts then."""
    log = replica.partition.log
    log.apply_retention(
        now_ms=replica.clock.wall_ms(), high_watermark=replica.partition.droppable_offset()
    )
    return log.log_start_offset


def test_what_is_held_stays_and_so_does_all_behind_it(leading):
    async def scenario():
        leading.send((b"plain", []))
        leading.send((b"held", [delay(600_000)]))
        leading.send((b"plain", []))
        leading.clock.advance(120)
        assert retain(leading) == 1
        leading.send((b"", cancel(b"1")))
        assert retain(leading) == 3

    run(scenario())


def test_a_start_drops_nothing_before_it_has_read_what_is_held(leading):
    async def scenario():
        leading.send((b"plain", []))
        leading.send((b"held", [delay(600_000)]))
        leading.clock.advance(120)
        again = Replica(leading.clock, leading.partition.log).lead(epoch=1)
        again.partition.maybe_advance_marks()
        assert retain(again) == 1
        await again.work()
        assert retain(again) == 1

    run(scenario())


def test_a_hold_stays_until_its_release_is_durable_everywhere(leading):
    async def scenario():
        second = Replica(leading.clock)
        leading.lead(isr=(OWN, SECOND), epoch=1)
        second.follow(epoch=1)
        leading.send((b"held", [delay(1_000)]))
        second.copy_from(leading)
        fetched(SECOND, leading.partition, 1)
        await leading.pass_time(120)
        assert leading.values() == [b"held"]
        assert leading.partition.droppable_offset() == 0
        second.copy_from(leading)
        fetched(SECOND, leading.partition, 2, flushed=1)
        assert leading.partition.droppable_offset() == 0
        fetched(SECOND, leading.partition, 2)
        assert leading.partition.droppable_offset() == 2

    run(scenario())


def test_a_follower_keeps_a_released_hold_until_its_leader_lets_it_go(leading):
    """It has flushed the release, but others may lose it: then the hold is open again."""

    async def scenario():
        leading.lead(epoch=1, isr=(OWN, SECOND))
        second = Replica(leading.clock, MemoryPartitionLog(CONFIG))
        second.follow(epoch=1)
        leading.send((b"held", [delay(1_000)]))
        leading.send((b"plain", []))
        await leading.pass_time(120)
        second.copy_from(leading)
        fetched(SECOND, leading.partition, 3)
        second.partition.as_follower.append(b"", high_watermark=3, now_ms=0)
        await second.work()
        assert second.partition.high_watermark == 3
        assert second.holds.is_whole
        assert retain(second) == 0
        second.partition.as_follower.follow_start(2)
        assert retain(second) == 2
        second.lead(epoch=2)
        assert second.partition.droppable_offset() == 3

    run(scenario())


def test_a_new_leader_keeps_a_released_hold_until_its_followers_have_flushed_the_release(leading):
    """It has flushed the release itself, as a follower: that says nothing about the others."""

    async def scenario():
        leading.lead(epoch=1, isr=(OWN, SECOND, THIRD))
        second = Replica(leading.clock, MemoryPartitionLog(CONFIG))
        second.follow(epoch=1)
        leading.send((b"held", [delay(1_000)]))
        second.copy_from(leading)
        await second.work()
        await leading.pass_time(120)
        second.copy_from(leading)
        for broker in (SECOND, THIRD):
            fetched(broker, leading.partition, 2, flushed=1)
        second.partition.as_follower.append(b"", high_watermark=2, now_ms=0)
        assert second.partition.as_follower.committed_offset() == 2
        assert retain(second) == 0
        second.lead(epoch=2, isr=(OWN, THIRD))
        fetched(THIRD, second.partition, 2, flushed=1)
        assert second.partition.droppable_offset() == 0
        fetched(THIRD, second.partition, 2)
        assert second.partition.droppable_offset() == 2

    run(scenario())


def test_a_few_holds_are_carried_out_of_old_files_and_delivered_once(leading):
    async def scenario():
        due_ms = leading.clock.wall_ms() + 600_000
        leading.send((b"x" * 5_000, []))
        leading.send((b"a", [deliver_at(due_ms)]), (b"b", [delay(600_000)]), (b"y" * 5_000, []))
        leading.clock.advance(120)
        await leading.releaser.carry_expired()
        carried = leading.stored()[-1]
        assert is_ours(carried)
        assert is_veiled(carried)
        assert leading.holds.book.pending == 2
        assert retain(leading) == 4
        assert leading.seen(4) == []
        await leading.pass_time(479)
        assert leading.seen(4) == []
        await leading.pass_time(1)
        released = leading.seen(4)
        assert [one.value for one in released] == [b"a", b"b"]
        assert [dict(one.headers)["tidemill.ticket"] for one in released] == [b"1", b"2"]
        assert dict(released[0].headers)["tidemill.due"] == b"%d" % due_ms
        await leading.pass_time(600)
        assert len(leading.seen(4)) == 2

    run(scenario())


def test_many_holds_are_carried_in_parts_between_which_the_loop_turns(leading, monkeypatch):
    monkeypatch.setattr(releaser, "CARRIED_PER_LOOK", 3)
    looked: list[int] = []
    held_between = releaser._held_between

    def look(*args):
        found = held_between(*args)
        looked.append(len(found))
        return found

    monkeypatch.setattr(releaser, "_held_between", look)

    async def scenario():
        leading.send((b"x" * 9_000, []))
        leading.send(*((b"%d" % number, [delay(600_000)]) for number in range(8)))
        leading.clock.advance(120)
        await leading.releaser.carry_expired()
        assert looked == [3, 3, 2, 0]
        assert retain(leading) == 9
        await leading.pass_time(600)
        assert sorted(one.value for one in leading.seen(9)) == [b"%d" % n for n in range(8)]

    run(scenario())


def test_I32_what_ends_while_others_are_carried_is_not_carried_itself(leading):
    async def scenario():
        leading.send((b"x" * 400_000, []))
        holds = [(b"%d" % number, [delay(600_000)]) for number in range(RELEASE_RECORDS_MAX + 2)]
        leading.send(*holds)  # more than one batch of ours
        leading.clock.advance(120)
        last = b"%d" % len(holds)

        def while_the_first_batch_is_made():
            leading.send((b"", cancel(last)))

        def while_files_are_looked_for():
            leading.disk.before = while_the_first_batch_is_made

        leading.disk.before = while_files_are_looked_for
        await leading.releaser.carry_expired()
        assert leading.holds.book.pending == len(holds) - 1
        assert retain(leading) > len(holds)
        await leading.pass_time(600)
        released = [dict(one.headers)["tidemill.ticket"] for one in leading.seen(retain(leading))]
        assert sorted(map(int, released)) == list(range(1, len(holds)))

    run(scenario())


def test_files_of_which_much_is_held_stay(leading):
    async def scenario():
        leading.send((b"a" * 1_000, [delay(600_000)]))
        leading.clock.advance(120)
        await leading.releaser.carry_expired()
        assert len(leading.stored()) == 1
        assert retain(leading) == 0

    run(scenario())


def test_a_carried_hold_is_known_to_a_new_replica_that_begins_behind_the_first_copy(leading):
    async def scenario():
        leading.send((b"x" * 5_000, []))
        leading.send((b"a", [delay(600_000)]))
        leading.clock.advance(120)
        await leading.releaser.carry_expired()
        start = retain(leading)
        assert start == 2
        second = Replica(leading.clock, MemoryPartitionLog(CONFIG, base_offset=start))
        second.follow(epoch=0)
        second.copy_from(leading)
        await second.work()
        second.lead(epoch=1)
        await second.pass_time(480)
        assert [one.value for one in second.seen(start)] == [b"a"]

    run(scenario())


def test_what_an_unclean_election_took_does_not_hold_up_the_rest():
    async def scenario():
        leading, second = Replica(ManualClock()).lead(), Replica(ManualClock())
        second.follow(epoch=0)
        leading.send((b"gone", [delay(10_000)]))
        leading.send((b"still", [delay(11_000)]), (b"there", [delay(12_000)]))
        second.copy_from(leading)
        await leading.pass_time(10)
        assert leading.values() == [b"gone"]
        assert second.partition.as_follower.follow_start(2), "in the middle of the second batch"
        second.lead(epoch=1)  # without the release of the first
        await second.pass_time(10)
        await second.pass_time(5)
        assert [one.value for one in second.seen(3)] == [b"still", b"there"]
        assert second.holds.book.pending == 0

    run(scenario())
