"""What clients ask for by headers: taken whole, or refused whole with the records at fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.coroutines import run
from tests.support.hold_stage import Replica, cancel, delay, deliver_at, message_id, move
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    BATCH_SCHEDULES_MAX,
    HELD_BATCH_HEADERS_MAX,
    HELD_BATCH_RECORDS_MAX,
)
from tidemill.replication.holding import request_checks
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire import compression
from tidemill.wire.produced_batch import InvalidRecords
from tidemill.wire.records import Header

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def leading():
    return Replica(ManualClock()).lead()


def refused(
    leading: Replica, *records: tuple[bytes, list[Header]], **options: object
) -> KafkaError:
    """The refusal, after which nothing has changed."""
    end = leading.partition.log.log_end_offset
    with pytest.raises(KafkaError) as found:
        leading.send(*records, **options)  # type: ignore[arg-type]
    assert leading.partition.log.log_end_offset == end
    return found.value


def limit(leading: Replica, **keys: object) -> None:
    policy = HoldPolicy(**keys)  # type: ignore[arg-type]
    settings = replace(leading.partition.settings, holds=policy)
    leading.partition.set_settings(settings)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([("tidemill.delay-ms", b"ten")], "tidemill.delay-ms='ten': expected a number"),
        ([("tidemill.delay-ms", b"-1")], "tidemill.delay-ms='-1': expected a number"),
        ([("tidemill.delay-ms", None)], "tidemill.delay-ms=null: expected a number"),
        ([("tidemill.deliver-at", b"9" * 30)], "tidemill.deliver-at='999"),
        ([("tidemill.deliver-at", b"\xff")], "tidemill.deliver-at='\\ufffd': expected"),
        ([delay(1), deliver_at(1)], "exclude each other"),
        ([delay(401 * DAY_MS)], "tidemill.delay-ms=34646400000: more than"),
        ([deliver_at(10_000 * 365 * DAY_MS)], "more than"),
        ([delay(1_000), message_id(b"x" * 256)], "tidemill.message-id="),
        ([delay(1_000), message_id(b"")], "tidemill.message-id="),
        ([("tidemill.schedule", b"* * * * *")], "needs a tidemill.message-id"),
        ([("tidemill.schedule", b"soon"), message_id(b"m")], "tidemill.schedule='soon'"),
        ([("tidemill.schedule", b"\xff"), message_id(b"m")], "tidemill.schedule="),
        ([("tidemill.schedule", b"* * * * *"), message_id(b"m"), delay(5)], "no other time"),
        ([("tidemill.half", b"group")], "tidemill.half='group': not offered"),
        ([("tidemill.only-group", b"g")], "tidemill.only-group='g': not offered"),
        ([("tidemill.expires-at", b"9")], "tidemill.expires-at='9': not offered"),
        ([("tidemill.ttl-ms", b"9"), delay(1)], "tidemill.ttl-ms='9': not offered"),
        ([("tidemill.track", None)], "tidemill.track=null: not offered"),
        ([("tidemill.command", b"stop"), ("tidemill.target", b"1")], "tidemill.command='stop'"),
        ([("tidemill.command", b"cancel")], "tidemill.target=null"),
        ([*cancel(b"1"), delay(1)], "cancel has no time"),
        ([("tidemill.command", b"move"), ("tidemill.target", b"1")], "needs tidemill.deliver-at"),
        (cancel(b"99"), "tidemill.target=99: nothing is held"),
        (cancel(b"nobody"), "tidemill.target='nobody': nothing is held"),
    ],
)
def test_bad_requests_are_refused_with_header_and_value(leading, headers, why):
    refusal = refused(leading, (b"good", [delay(5)]), (b"bad", headers), (b"plain", []))
    assert isinstance(refusal, InvalidRecords)
    assert refusal.code is ErrorCode.INVALID_RECORD
    ((place, text),) = refusal.record_errors
    assert place == 1
    assert why in text


def test_other_headers_of_our_names_are_data(leading):
    leading.send((b"forwarded", [("tidemill.ticket", b"5"), ("tidemill.due", b"9")]))
    leading.send((b"for views", [("tidemill.priority", b"5"), ("tidemill.tags", b"a")]))
    assert leading.values() == [b"forwarded", b"for views"]


def test_a_topic_without_delay_refuses_it(leading):
    limit(leading, is_enabled=False)
    refusal = refused(leading, (b"later", [delay(10)]))
    assert "tidemill.delay.enable" in refusal.detail
    leading.send((b"plain", []))


def test_a_full_partition_refuses_more(leading):
    limit(leading, pending_max=2)
    leading.send((b"a", [delay(1_000)]), (b"b", [delay(1_000)]))
    refusal = refused(leading, (b"c", [delay(1_000)]))
    assert refusal.code is ErrorCode.POLICY_VIOLATION
    assert "tidemill.delay.max.pending" in refusal.detail
    leading.send((b"", cancel(b"0")))
    leading.send((b"c", [delay(1_000)]))


def test_a_partition_that_holds_too_many_bytes_refuses_more(leading):
    limit(leading, pending_bytes_max=3_000)
    leading.send((b"a" * 2_000, [delay(1_000)]))
    refusal = refused(leading, (b"b" * 2_000, [delay(1_000)]))
    assert refusal.code is ErrorCode.POLICY_VIOLATION
    assert "tidemill.delay.max.pending.bytes" in refusal.detail


def test_a_partition_with_as_many_schedules_as_memory_has_room_for_refuses_more(
    leading, monkeypatch
):
    monkeypatch.setattr(request_checks, "HOLD_SCHEDULES_MAX", 2)
    line = ("tidemill.schedule", b"0 0 1 1 *")
    leading.send((b"", [line, message_id(b"a")]), (b"", [line, message_id(b"b")]))
    refusal = refused(leading, (b"", [line, message_id(b"c")]))
    assert refusal.code is ErrorCode.POLICY_VIOLATION
    leading.send((b"", [delay(1_000)]))
    leading.send((b"", cancel(b"a")))
    leading.send((b"", [line, message_id(b"c")]))


def test_open_transactions_hold_no_more_than_memory_has_room_for(leading, monkeypatch):
    monkeypatch.setattr(request_checks, "HOLDS_UNDECIDED_MAX", 1)
    identity = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    leading.send((b"a", [delay(1_000)]), base_sequence=0, **identity)
    refusal = refused(leading, (b"b", [delay(1_000)]), base_sequence=1, **identity)
    assert refusal.code is ErrorCode.POLICY_VIOLATION
    leading.send((b"c", [delay(1_000)]))
    leading.partition.as_leader.append_marker(7, 0, is_commit=True, coordinator_epoch=0, now_ms=0)
    leading.send((b"b", [delay(1_000)]), base_sequence=1, **identity)


def test_a_batch_too_long_to_open_on_every_replica_is_refused(leading):
    records = [(b"", [delay(1)] if n == 0 else []) for n in range(HELD_BATCH_RECORDS_MAX + 1)]
    assert refused(leading, *records).code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_of_very_many_schedules_is_refused(leading):
    line = ("tidemill.schedule", b"0 0 1 1 *")
    records = [(b"", [line, message_id(b"%d" % n)]) for n in range(BATCH_SCHEDULES_MAX + 1)]
    assert refused(leading, *records).code is ErrorCode.INVALID_RECORD


def test_a_record_that_a_release_could_not_hold_is_refused(leading):
    leading.partition.set_settings(replace(leading.partition.settings, segment_bytes=2_000))
    refusal = refused(leading, (b"x" * 1_800, [delay(10)]))
    assert refusal.code is ErrorCode.RECORD_LIST_TOO_LARGE


# --- commands ------------------------------------------------------------------------------------


def test_what_is_cancelled_never_comes(leading):
    async def scenario():
        leading.send((b"a", [delay(10)]), (b"b", [delay(10), message_id(b"m")]))
        leading.send((b"", cancel(b"0")))
        leading.send((b"", cancel(b"m")))
        await leading.pass_time(60)
        assert leading.values() == []

    run(scenario())


def test_the_same_cancel_again_succeeds(leading):
    leading.send((b"a", [delay(10_000)]))
    leading.send((b"", cancel(b"0")))
    leading.send((b"", cancel(b"0")))
    refusal = refused(leading, (b"", move(b"0", delay(1))))
    assert "cancelled already" in refusal.detail


def test_what_was_delivered_cannot_be_cancelled_or_moved(leading):
    async def scenario():
        leading.send((b"a", [delay(10)]))
        await leading.pass_time(1)
        assert "delivered already" in refused(leading, (b"", cancel(b"0"))).detail
        assert "delivered already" in refused(leading, (b"", move(b"0", delay(5)))).detail

    run(scenario())


def test_commands_need_acks_all_and_no_transaction(leading):
    leading.send((b"a", [delay(10_000)]))
    refusal = refused(leading, (b"", cancel(b"0")), acks=1)
    assert refusal.code is ErrorCode.INVALID_REQUIRED_ACKS
    identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    assert "transaction" in refused(leading, (b"", cancel(b"0")), **identity).detail
    line = ("tidemill.schedule", b"0 0 1 1 *")
    held = (b"", [line, message_id(b"m")])
    assert "transaction" in refused(leading, held, **identity).detail


def test_a_move_beyond_the_limit_is_refused(leading):
    leading.send((b"a", [delay(10_000)]))
    assert "more than" in refused(leading, (b"", move(b"0", delay(500 * DAY_MS)))).detail


def test_a_batch_of_more_ids_than_can_be_searched_at_once_is_refused(leading, monkeypatch):
    monkeypatch.setattr(request_checks, "ID_LOOKUPS_MAX", 2)
    named = [(b"", [delay(10_000), message_id(name)]) for name in (b"a", b"b", b"c")]
    leading.send(*named)
    refusal = refused(leading, *[(b"", cancel(name)) for name in (b"a", b"b", b"c")])
    assert refusal.code is ErrorCode.MESSAGE_TOO_LARGE
    leading.send((b"", cancel(b"a")), (b"", cancel(b"b")), (b"", cancel(b"2")))
    assert leading.holds.book.pending == 0


def test_after_a_cancel_in_the_same_batch_nothing_is_moved(leading):
    leading.send((b"a", [delay(10_000)]))
    refusal = refused(leading, (b"", cancel(b"0")), (b"", move(b"0", delay(5))))
    assert isinstance(refusal, InvalidRecords)
    assert [place for place, _ in refusal.record_errors] == [1]


def test_a_schedule_that_another_one_may_replace_is_not_moved_in_the_same_batch(leading):
    daily = [("tidemill.schedule", b"0 9 * * *"), message_id(b"daily")]
    leading.send((b"old", daily))
    refusal = refused(leading, (b"new", daily), (b"", move(b"0", delay(60_000))))
    assert "sets schedules or moves them" in refusal.detail
    leading.send((b"", move(b"0", delay(60_000))))


def test_after_a_cancel_by_its_id_nothing_is_moved_by_its_ticket(leading):
    leading.send((b"a", [delay(10_000), message_id(b"m")]))
    refusal = refused(leading, (b"", cancel(b"m")), (b"", move(b"0", delay(5))))
    assert "cancelled already" in refusal.detail
    refusal = refused(leading, (b"", cancel(b"0")), (b"", move(b"m", delay(5))))
    assert "cancelled already" in refusal.detail


# --- schedules -----------------------------------------------------------------------------------


def test_each_tick_comes_once_and_of_missed_ones_one(leading):
    async def scenario():
        leading.send((b"tick", [("tidemill.schedule", b"* * * * *"), message_id(b"m")]))
        await leading.work()
        assert leading.values() == []
        await leading.pass_time(60)
        assert leading.values() == [b"tick"]
        await leading.pass_time(60)
        assert leading.values() == [b"tick"] * 2
        await leading.pass_time(600)
        assert leading.values() == [b"tick"] * 3
        await leading.pass_time(59)
        assert leading.values() == [b"tick"] * 4
        leading.send((b"", cancel(b"m")))
        await leading.pass_time(600)
        assert leading.values() == [b"tick"] * 4

    run(scenario())


def test_a_schedule_goes_on_under_the_next_leader(leading):
    async def scenario():
        leading.send((b"tick", [("tidemill.schedule", b"* * * * *"), message_id(b"m")]))
        await leading.work()
        await leading.pass_time(60)
        again = Replica(leading.clock, leading.partition.log).lead(epoch=1)
        await again.work()
        assert again.values() == [b"tick"]
        await again.pass_time(60)
        assert again.values() == [b"tick"] * 2

    run(scenario())


@pytest.mark.parametrize("to", [delay(5_000), deliver_at(0)])
def test_a_schedule_that_is_moved_before_it_was_planned_ticks_then_and_goes_on(leading, to):
    async def scenario():
        leading.send((b"tick", [("tidemill.schedule", b"* * * * *"), message_id(b"m")]))
        leading.send((b"", move(b"m", to)))
        await leading.work()
        await leading.pass_time(5)
        assert leading.values() == [b"tick"]
        await leading.pass_time(55)
        assert leading.values() == [b"tick"] * 2

    run(scenario())


@pytest.mark.parametrize(
    "request_headers",
    [[delay(1_000)], cancel(b"0"), [("tidemill.schedule", b"* * * * *"), message_id(b"m")]],
)
def test_a_kilobyte_with_a_million_headers_is_refused_where_something_is_held(
    leading, request_headers
):
    """They would be read on the loop, by every replica and for every consumer."""
    leading.send((b"held", [delay(1_000)]))
    many = [("", None)] * (HELD_BATCH_HEADERS_MAX + 1)
    error = refused(leading, (b"x", [*many, *request_headers]), codec=compression.ZSTD)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    beside = refused(leading, (b"x", many), (b"y", request_headers), codec=compression.ZSTD)
    assert beside.code is ErrorCode.MESSAGE_TOO_LARGE


def test_any_number_of_headers_is_fine_where_nothing_is_held(leading):
    leading.send((b"x", [("", None)] * (HELD_BATCH_HEADERS_MAX + 1)), codec=compression.ZSTD)
    assert leading.values() == [b"x"]
