"""Held records are delivered when due, once, by whoever leads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.coroutines import run
from tests.support.hold_stage import Replica, cancel, delay, deliver_at, message_id, move
from tests.support.partitions import OWN, SECOND, Lease
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError
from tidemill.core.limits import MIB
from tidemill.core.loop.timers import Timer
from tidemill.hot.record_encode import encode
from tidemill.replication.holding import partition_holds, releaser
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.storage.log.interface import LogSlice
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire.batch import HEADER_BYTES, write_header
from tidemill.wire.marks import is_ours, is_veiled
from tidemill.wire.produced_batch import BatchPolicy


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def leading(clock):
    return Replica(clock).lead()


def test_a_delayed_record_is_seen_when_its_time_has_passed_and_not_before(leading):
    async def scenario():
        leading.send((b"later", [delay(1_000)]), (b"now", []))
        await leading.pass_time(0.999)
        assert leading.values() == [b"now"]
        await leading.pass_time(0.001)
        assert leading.values() == [b"now", b"later"]
        await leading.pass_time(10)
        assert leading.values() == [b"now", b"later"]

    run(scenario())


def test_a_reader_passes_what_is_held(leading):
    leading.send((b"a", []), (b"held", [delay(1_000)]))
    leading.send((b"held", [delay(1_000)]))
    leading.send((b"b", []))
    assert [(one.value, one.offset) for one in leading.seen()] == [(b"a", 0), (b"b", 3)]
    assert leading.seen(1)[0].offset == 3


def test_times_of_the_records_beside_a_held_one_stay(leading, clock):
    sent_ms = clock.wall_ms() - 5_000
    leading.send((b"a", []), (b"held", [delay(1_000)]), timestamp=sent_ms)
    assert [one.timestamp for one in leading.seen()] == [sent_ms]


def test_beside_a_held_record_any_time_is_shown_where_the_append_time_counts(leading, clock):
    policy = BatchPolicy(timestamp_type="append")
    leading.partition.set_settings(replace(leading.partition.settings, policy=policy))
    delta = -(1 << 63)  # nobody checks it, as it does not count
    held = [(b"tidemill.delay-ms", b"1000")]
    records = encode([(0, delta, None, b"held", held), (1, delta, None, b"now", [])])
    batch = bytearray(HEADER_BYTES) + records
    write_header(batch, last_offset_delta=1, base_timestamp=0, max_timestamp=0, record_count=2)
    leading.partition.as_leader.append(memoryview(batch), acks=1, now_ms=clock.wall_ms())
    seen = [(one.value, one.timestamp) for one in leading.seen()]
    assert seen == [(b"now", clock.wall_ms())]


def test_a_release_says_what_it_was(leading, clock):
    async def scenario():
        sent_ms = clock.wall_ms()
        leading.send((b"x", []))
        forwarded = [("tidemill.ticket", b"77"), ("mine", b"1"), delay(500), message_id(b"m")]
        leading.send((b"later", forwarded))
        await leading.pass_time(2)
        released = leading.seen()[-1]
        assert released.timestamp == sent_ms + 2_000
        assert sorted(released.headers) == [
            ("mine", b"1"),
            ("tidemill.due", b"%d" % (sent_ms + 500)),
            ("tidemill.message-id", b"m"),
            ("tidemill.sent-at", b"%d" % sent_ms),
            ("tidemill.ticket", b"1"),
        ]
        assert is_ours(leading.stored()[-1])
        assert not is_veiled(leading.stored()[-1])

    run(scenario())


def test_releases_come_by_due_time_and_then_by_ticket_in_one_batch(leading):
    async def scenario():
        leading.send((b"third", [delay(3)]), (b"first", [delay(1)]), (b"second", [delay(1)]))
        await leading.pass_time(1)
        assert leading.values() == [b"first", b"second", b"third"]
        assert leading.stored()[-1].record_count == 3

    run(scenario())


def test_a_batch_that_is_due_already_stays_as_it_was_sent(leading, clock):
    leading.send((b"past", [deliver_at(clock.wall_ms() - 1)]), (b"at once", [delay(0)]))
    assert leading.values() == [b"past", b"at once"]
    assert not is_veiled(leading.stored()[0])


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_held_records_of_any_codec_are_released(leading, codec):
    async def scenario():
        records = [(b"%05d" % n * 20, [delay(10)] if n % 2 else []) for n in range(400)]
        leading.send(*records, codec=codec)
        assert leading.values() == [value for value, headers in records if not headers]
        await leading.pass_time(1)
        assert leading.values()[200:] == [value for value, headers in records if headers]

    run(scenario())


def test_a_release_fits_a_segment_and_one_record_always_goes(leading):
    async def scenario():
        small = replace(leading.partition.settings, segment_bytes=2_048)
        leading.partition.set_settings(small)
        for n in range(40):
            leading.send((b"%d" % n, [delay(10)]))
        leading.send((b"x" * 1_000, [delay(20)]))
        leading.partition.set_settings(replace(small, segment_bytes=1_024))
        await leading.pass_time(1)
        assert len(leading.values()) == 41
        sizes = [header.size_bytes for header in leading.stored()[41:]]
        assert max(sizes[:-1]) <= 1_024 < sizes[-1]

    run(scenario())


# --- clocks --------------------------------------------------------------------------------------


def test_I31_a_wall_clock_that_jumps_shortens_no_delay(leading, clock):
    async def scenario():
        leading.send((b"later", [delay(60_000)]))
        clock.jump_wall(3_600_000)
        await leading.pass_time(59)
        assert leading.values() == []
        await leading.pass_time(1)
        assert leading.values() == [b"later"]

    run(scenario())


def test_a_changed_in_sync_set_does_not_start_steady_time_again(leading, clock):
    async def scenario():
        leading.send((b"later", [delay(60_000)]))
        for _ in range(80):  # too little at a time to be doubted
            clock.jump_wall(50_000)
            await leading.pass_time(0.5)
            leading.lead(isr=(OWN,))
        assert leading.values() == []

    run(scenario())


def test_I31_a_wall_clock_set_back_makes_late_and_loses_nothing(leading, clock):
    async def scenario():
        leading.send((b"at", [deliver_at(clock.wall_ms() + 10_000)]))
        clock.jump_wall(-3_600_000)
        await leading.pass_time(20)
        assert leading.values() == []
        await leading.pass_time(3_600)
        assert leading.values() == [b"at"]

    run(scenario())


def test_I31_a_wall_clock_that_is_suddenly_ahead_is_believed_after_ten_minutes(leading, clock):
    async def scenario():
        leading.send((b"at", [deliver_at(clock.wall_ms() + 3_600_000)]))
        clock.jump_wall(3_600_000)
        await leading.work()
        for _ in range(9):
            await leading.pass_time(60)
            assert leading.values() == []
        await leading.pass_time(60)
        await leading.pass_time(1)
        assert leading.values() == [b"at"]
        assert leading.host.clock_steps == 1

    run(scenario())


def test_I31_a_clock_that_is_doubted_and_jumps_again_is_doubted_from_then_on(leading, clock):
    async def scenario():
        leading.send((b"next year", [deliver_at(clock.wall_ms() + 366 * 24 * 3_600_000)]))
        clock.jump_wall(120_000)  # the clock is right now
        await leading.work()
        await leading.pass_time(599)
        clock.jump_wall(400 * 24 * 3_600_000)
        await leading.pass_time(2)
        assert leading.values() == []
        clock.jump_wall(-400 * 24 * 3_600_000)
        await leading.pass_time(600)
        assert leading.values() == []

    run(scenario())


def test_I31_a_clock_that_gains_a_minute_in_small_steps_is_doubted_too(leading, clock):
    async def scenario():
        leading.send((b"in an hour", [deliver_at(clock.wall_ms() + 3_600_000)]))
        for _ in range(80):
            clock.jump_wall(50_000)
            await leading.pass_time(0.5)
        assert leading.values() == []

    run(scenario())


# --- who may release -----------------------------------------------------------------------------


def test_nothing_is_released_without_a_lease(clock):
    async def scenario():
        lease = Lease()
        leading = Replica(clock, lease=lease).lead()
        leading.send((b"later", [delay(1)]))
        lease.may_act = False
        await leading.pass_time(1)
        assert leading.values() == []
        lease.may_act = True
        await leading.work()
        assert leading.values() == [b"later"]

    run(scenario())


def test_nothing_is_released_while_acks_all_is_refused(clock):
    async def scenario():
        leading = Replica(clock, in_sync_min=2).lead(isr=(OWN, SECOND))
        leading.send((b"later", [delay(1)]))
        leading.lead(isr=(OWN,), epoch=1)
        await leading.pass_time(1)
        assert leading.values() == []

    run(scenario())


def test_a_follower_knows_what_is_held_and_releases_it_when_it_leads(clock):
    async def scenario():
        first, second = Replica(clock).lead(), Replica(clock)
        second.follow(epoch=0)
        first.send((b"soon", [delay(10)]), (b"late", [delay(60_000)]), (b"plain", []))
        await first.pass_time(1)
        second.copy_from(first)
        await second.work()
        assert second.values() == [b"plain", b"soon"]
        second.lead(epoch=1)
        await second.pass_time(60)
        assert second.values() == [b"plain", b"soon", b"late"]

    run(scenario())


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    ("limit", "folded"), [("LOOP_FOLDED_RECORDS_MAX", 1), ("LOOP_FOLDED_BYTES_MAX", 2)]
)
def test_a_follower_that_is_sent_very_much_at_once_folds_it_later(
    clock, monkeypatch, is_cut, limit, folded
):
    monkeypatch.setattr(partition_holds, limit, 2)

    async def scenario():
        first, second = Replica(clock).lead(), Replica(clock)
        second.follow(epoch=0)
        first.send((b"0", [delay(1_000)]))
        second.copy_from(first)
        await second.work()
        for value in (b"1", b"2", b"3"):
            first.send((value, [delay(1_000)]))
        first.send((b"", cancel(b"0")))
        second.copy_from(first)
        assert not second.holds.is_whole
        assert second.holds.book.pending == folded
        assert second.partition.droppable_offset() == 0
        if is_cut:
            second.partition.log.truncate_to(3)
            second.holds.was_cut()
        await second.work()
        assert second.holds.is_whole
        second.lead(epoch=1)
        await second.pass_time(1)
        expected = [b"0", b"1", b"2"] if is_cut else [b"1", b"2", b"3"]
        assert second.values() == expected
        assert second.holds.book.pending == 0

    run(scenario())


def test_I32_a_release_that_was_not_copied_is_made_by_the_next_leader_once(clock):
    async def scenario():
        first, second = Replica(clock).lead(), Replica(clock)
        second.follow(epoch=0)
        first.send((b"later", [delay(1_000)]))
        second.copy_from(first)
        await second.work()
        await first.pass_time(1)
        assert first.values() == [b"later"]
        second.lead(epoch=1)
        await second.work()
        assert second.values() == [b"later"]
        first.follow(epoch=1)
        cut = first.partition.as_follower.plan_truncation(0, 1)
        assert cut is not None
        assert first.partition.as_follower.begin_cut(cut)
        assert first.values() == []
        first.copy_from(second)
        await first.work()
        first.lead(epoch=2)
        await first.pass_time(60)
        assert first.values() == [b"later"]

    run(scenario())


def test_I32_a_hold_whose_release_was_cut_is_open_again(clock):
    async def scenario():
        first = Replica(clock).lead()
        first.send((b"later", [delay(1_000)]))
        await first.pass_time(1)
        first.follow(epoch=1)
        first.partition.log.truncate_to(1)
        first.holds.was_cut()
        await first.work()
        assert first.holds.book.pending == 1
        first.lead(epoch=2)
        await first.work()
        assert first.values() == [b"later"]

    run(scenario())


def test_a_start_reads_what_is_held_from_the_log(leading, clock):
    async def scenario():
        leading.send((b"plain", []))
        leading.send((b"gone", [delay(1_000)]), (b"later", [delay(50_000)]))
        await leading.pass_time(2)
        again = Replica(clock, leading.partition.log)
        assert not again.holds.is_whole
        again.lead(epoch=1)
        with pytest.raises(KafkaError) as refused:
            again.send((b"early", [delay(5)]))
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await again.work()
        assert again.values() == [b"plain", b"gone"]
        await again.pass_time(48)
        assert again.values() == [b"plain", b"gone", b"later"]

    run(scenario())


def test_I1_no_batch_overtakes_one_that_came_while_the_holds_were_read(leading, clock):
    async def scenario():
        leading.send((b"held", [delay(50_000)]))
        again = Replica(clock, leading.partition.log).lead(epoch=1)

        def send(value, headers, sequence):
            sent = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
            return again.send((value, headers), **sent).base_offset

        for value, headers, sequence in ((b"first", [delay(5)], 0), (b"second", [], 1)):
            with pytest.raises(KafkaError) as refused:
                send(value, headers, sequence)
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await again.work()
        assert send(b"first", [delay(5)], 0) == 1
        assert send(b"second", [], 1) == 2

    run(scenario())


# --- full disks ----------------------------------------------------------------------------------


def set_free(leading, free_bytes):
    leading.partition.room.end_look(
        leading.partition.room.begin_look(),
        total_bytes=1 << 40,
        free_bytes=free_bytes,
        reserve_bytes=64 * MIB,
    )


class Rests:
    """Timers that never fire, and how long they would have waited."""

    def __init__(self):
        self.asked_s = []

    def add_exactly_after(self, delay_s, action):
        self.asked_s.append(delay_s)
        return Timer({}, action)


def test_R12_a_release_is_made_while_records_are_refused(leading):
    async def scenario():
        leading.send((b"later", [delay(1_000)]))
        set_free(leading, 40 * MIB)
        with pytest.raises(DiskFull):
            leading.send((b"now", []))
        await leading.pass_time(1)
        assert leading.values() == [b"later"]

    run(scenario())


def test_a_release_for_which_there_is_no_room_is_read_again_after_five_seconds(clock):
    async def scenario():
        rests = Rests()
        leading = Replica(clock, timers=rests).lead()
        leading.send((b"later", [delay(1_000)]))
        set_free(leading, 0)
        await leading.pass_time(1)
        assert leading.values() == []
        assert rests.asked_s == [5.0]

    run(scenario())


def test_R12_held_records_that_are_refused_take_no_room_from_others(leading):
    settings = replace(leading.partition.settings, holds=HoldPolicy(is_enabled=False))
    leading.partition.set_settings(settings)
    set_free(leading, 64 * MIB + 4_000)
    for _ in range(2):
        with pytest.raises(KafkaError):
            leading.send((b"x" * 3_000, [delay(1_000)]))
    assert leading.send((b"x" * 3_000, [])).base_offset == 0


# --- transactions --------------------------------------------------------------------------------


def end_transaction(leading, *, is_commit):
    leading.partition.as_leader.append_marker(
        7, 0, is_commit=is_commit, coordinator_epoch=1, now_ms=leading.clock.wall_ms()
    )


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_held_record_of_a_transaction_waits_for_its_end(leading, is_commit):
    async def scenario():
        identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        leading.send((b"later", [delay(1_000)]), transactional=True, **identity)
        await leading.pass_time(5)
        assert leading.values() == []
        end_transaction(leading, is_commit=is_commit)
        await leading.work()
        assert leading.values() == ([b"later"] if is_commit else [])
        assert not leading.holds.book.pending

    run(scenario())


def test_a_retry_of_an_idempotent_producer_holds_nothing_twice(leading):
    async def scenario():
        identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        first = leading.send((b"later", [delay(1_000)]), **identity)
        await leading.pass_time(0.5)
        again = leading.send((b"later", [delay(1_000)]), **identity)
        assert again.duplicate
        assert again.base_offset == first.base_offset
        await leading.pass_time(5)
        assert leading.values() == [b"later"]

    run(scenario())


# --- commands against releases -------------------------------------------------------------------


def test_batches_of_which_little_is_due_are_not_all_loaded_at_once(leading, monkeypatch):
    monkeypatch.setattr(releaser, "LOADED_BYTES_MAX", 150)
    log = leading.partition.log
    read, loads = log.read, []

    def read_cold(*args, **options):
        found = read(*args, **options)
        loads.append(args[0])
        return LogSlice((), found.size_bytes, lambda: found.chunks)

    async def scenario():
        for due in (4, 2, 3, 1):
            leading.send((b"%d" % due, [delay(due)]), (b"", []))
        monkeypatch.setattr(log, "read", read_cold)
        await leading.pass_time(1)
        monkeypatch.setattr(log, "read", read)
        assert [one.value for one in leading.seen(8)] == [b"1", b"2", b"3", b"4"]
        assert loads == [6, 2, 4, 0]
        assert [one.record_count for one in leading.stored()[4:]] == [2, 2]

    run(scenario())


def test_a_log_that_is_cut_while_a_release_is_read_ends_nothing_but_the_release(
    leading, monkeypatch
):
    monkeypatch.setattr(releaser, "READS_PER_SLICE", 1)

    async def cut():
        leading.follow(epoch=1)
        leading.partition.log.truncate_to(1)
        leading.holds.was_cut()

    async def scenario():
        leading.send((b"a", [delay(1)]))
        leading.send((b"b", [delay(1)]))
        leading.clock.advance(1)
        leading.host.look_at(leading.holds)
        await asyncio.gather(leading.releaser.release_due(), cut())
        assert leading.partition.log.log_end_offset == 1
        await leading.work()
        leading.lead(epoch=2)
        await leading.work()
        assert leading.values() == [b"a"]

    run(scenario())


def test_I2_what_took_the_place_of_a_cut_record_while_that_was_read_is_what_comes(leading, clock):
    """Two elections while a thread works: the hold looks the same, its record is another one."""

    async def scenario():
        soon, far = clock.wall_ms() + 1_000, clock.wall_ms() + 100_000

        def send(value):
            leading.send((value, [deliver_at(soon)]), (b"far", [deliver_at(far)]))

        def replace():
            leading.partition.log.truncate_to(0)
            leading.holds.was_cut()
            send(b"new")

        send(b"old")
        leading.disk.before = replace
        await leading.pass_time(2)
        assert leading.values() == [b"new"]

    run(scenario())


def test_what_is_cancelled_while_it_is_read_is_not_released(leading):
    async def scenario():
        leading.send((b"a", [delay(10)]), (b"b", [delay(10)]))
        leading.disk.before = lambda: leading.send((b"", cancel(b"0")))
        await leading.pass_time(1)
        assert leading.values() == [b"b"]

    run(scenario())


def test_what_is_moved_comes_at_its_new_time_once(leading):
    async def scenario():
        leading.send((b"a", [delay(10_000), message_id(b"m")]))
        leading.send((b"", move(b"m", delay(20_000))))
        await leading.pass_time(19)
        assert leading.values() == []
        leading.send((b"", move(b"0", delay(500))))
        await leading.pass_time(0.6)
        assert leading.values() == [b"a"]
        await leading.pass_time(60)
        assert leading.values() == [b"a"]

    run(scenario())
