"""Requests of one turn of the loop share a batch: it is committed or refused as a whole."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.partitions import OWN, image, leader
from tests.unit.coordinators.runtime.runtime_host import INDEX, batches_of, records_of
from tests.unit.coordinators.runtime.toy_shard import REFUSED, refuse
from tidemill.coordinators.runtime.open_batch import BATCH_BYTES_MAX
from tidemill.core.errors import ErrorCode, InvariantViolation, KafkaError, StorageFault
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.memory_log import MemoryPartitionLog

UNDECIDED = f"{REFUSED}COORDINATOR_NOT_AVAILABLE"
MOVED = f"{REFUSED}NOT_COORDINATOR"


class FaultyLog:
    """A log in memory whose appends fail while `fault` is set."""

    def __init__(self):
        self._log = MemoryPartitionLog(LogConfig())
        self.fault = None

    def append(self, *args, **options):
        if self.fault is not None:
            raise self.fault
        self._log.append(*args, **options)

    def __getattr__(self, name):
        return getattr(self._log, name)


def lead(host, log=None, **options):
    part = leader(log, **options)
    host.runtime.lead(INDEX, part)
    return part


async def lead_faulty(host):
    """A partition that holds a=1, and its log, whose next append fails."""
    log = FaultyLog()
    part = lead(host, log)
    host.put("a", "1")
    await host.end_turn()
    log.fault = StorageFault("no more")
    return part, log


def test_writes_of_one_turn_share_a_batch(host):
    async def body(host):
        part = lead(host)
        answers = host.put("a", "1"), host.put("b", "2")
        await host.end_turn()
        assert batches_of(part) == [[(b"a", b"1"), (b"b", b"2")]]
        assert answers == (["put a"], ["put b"])

    host(body)


def test_writes_of_two_turns_do_not_share_a_batch(host):
    async def body(host):
        part = lead(host)
        host.put("a", "1")
        await host.end_turn()
        host.put("b", "2")
        await host.end_turn()
        assert batches_of(part) == [[(b"a", b"1")], [(b"b", b"2")]]

    host(body)


def test_an_operation_sees_what_an_earlier_one_of_its_turn_wrote(host):
    async def body(host):
        part = lead(host)
        host.put("a", "1")
        host.ask(lambda shard, now: shard.put("b", shard.values["a"] + "!"))
        await host.end_turn()
        assert records_of(part) == [(b"a", b"1"), (b"b", b"1!")]

    host(body)


def test_I28_a_read_waits_with_the_batch_whose_records_it_saw(host):
    async def body(host):
        lead(host)
        host.put("a", "1")
        seen = host.get("a")
        assert seen == []
        await host.end_turn()
        assert seen == ["1"]

    host(body)


def test_I28_when_the_append_fails_every_request_that_saw_its_records_is_refused(host):
    async def body(host):
        await lead_faulty(host)
        answers = [host.put("a", "2"), host.put("b", "3"), host.get("a")]
        await host.end_turn()
        assert answers == [[UNDECIDED], [UNDECIDED], [UNDECIDED]]

    host(body)


def test_batches_that_fail_again_and_again_write_one_log_line_a_minute(host, caplog):
    async def body(host):
        log = FaultyLog()
        lead(host, log)
        for _ in range(100):
            log.fault = None
            host.put("a", "1")
            await host.end_turn()
            log.fault = StorageFault("no more")
            lost = host.put("a", "2")
            await host.end_turn()
            assert lost == [UNDECIDED]
            await host.load()
            host.pass_time(0.5)

    with caplog.at_level(logging.WARNING):
        host(body)
    assert caplog.messages == ["__toys-3: no more"]


def test_I28_when_the_append_fails_the_shard_goes_back_to_what_the_log_holds(host):
    async def body(host):
        await lead_faulty(host)
        host.put("a", "2")
        host.put("b", "3")
        await host.end_turn()
        with pytest.raises(KafkaError) as refusal:
            host.get("a")
        assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await host.load()
        assert (host.get("a"), host.get("b")) == (["1"], ["absent"])

    host(body)


def test_parked_answers_are_refused_with_the_batch_they_depend_on(host):
    async def body(host):
        await lead_faulty(host)
        told = host.ask(lambda shard, now: shard.wait())
        host.put("a", "2")
        still_parked = host.ask(lambda shard, now: shard.wait())
        await host.end_turn()
        assert (told, still_parked) == ([UNDECIDED], [MOVED])

    host(body)


def test_after_a_failed_append_the_next_failure_affects_only_its_caller(host):
    async def body(host):
        await lead_faulty(host)
        host.put("a", "2")
        await host.end_turn()
        await host.load()
        loaded = host.shard
        with pytest.raises(KafkaError) as refusal:
            host.put("a", "3")
        assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert host.shard is loaded
        assert host.get("a") == ["1"]

    host(body)


def test_batches_are_shared_again_after_an_append_succeeded(host):
    async def body(host):
        part, log = await lead_faulty(host)
        host.put("a", "2")
        await host.end_turn()
        await host.load()
        log.fault = None
        assert host.put("a", "3") == ["put a"]
        host.put("b", "4")
        host.put("c", "5")
        await host.end_turn()
        assert batches_of(part)[1:] == [[(b"a", b"3")], [(b"b", b"4"), (b"c", b"5")]]

    host(body)


def test_a_coordinator_that_moves_away_refuses_its_open_batch(host):
    async def body(host):
        part = lead(host)
        answers = host.put("a", "1"), host.get("a")
        host.runtime.resign(INDEX)
        assert answers == ([MOVED], [MOVED])
        await host.end_turn()
        assert records_of(part) == []

    host(body)


def test_leadership_that_ends_before_the_turn_does_loses_the_open_batch(host):
    async def body(host):
        part = lead(host)
        answer = host.put("a", "1")
        part.become_follower(image(leader=OWN + 1, epoch=1))
        await host.end_turn()
        assert answer == [MOVED]
        assert records_of(part) == []

    host(body)


def test_a_full_batch_is_written_and_the_next_one_opened(host):
    async def body(host):
        part = lead(host)
        large = "x" * (BATCH_BYTES_MAX // 2)
        answers = [host.put(name, large) for name in "abc"]
        await host.end_turn()
        assert [[key for key, _ in batch] for batch in batches_of(part)] == [[b"a"], [b"b"], [b"c"]]
        assert answers == [["put a"], ["put b"], ["put c"]]

    host(body)


def test_a_batch_holds_no_more_than_the_topic_accepts(host):
    async def body(host):
        part = lead(host)
        part.settings.policy.max_message_bytes = 300
        answers = [host.put(name, "x" * 100) for name in "abc"]
        await host.end_turn()
        assert answers == [["put a"], ["put b"], ["put c"]]
        assert [len(batch) for batch in batches_of(part)] == [1, 1, 1]

    host(body)


def test_records_too_large_for_any_batch_affect_only_their_caller(host):
    async def body(host):
        part = lead(host)
        part.settings.policy.max_message_bytes = 300
        shard = host.shard
        small = host.put("a", "1")
        with pytest.raises(KafkaError) as refusal:
            host.put("b", "x" * 300)
        assert refusal.value.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        await host.end_turn()
        assert small == ["put a"]
        assert host.shard is shard
        assert shard.values == {"a": "1"}

    host(body)


def test_records_larger_than_a_shared_batch_keep_their_place_in_the_log(host):
    async def body(host):
        part = lead(host)
        host.put("a", "1")
        host.put("b", "x" * BATCH_BYTES_MAX)
        host.put("c", "3")
        await host.end_turn()
        assert [key for key, _ in records_of(part)] == [b"a", b"b", b"c"]

    host(body)


def test_a_failed_append_of_a_full_batch_also_refuses_the_request_that_found_it_full(host):
    async def body(host):
        part, _ = await lead_faulty(host)
        large = "x" * (BATCH_BYTES_MAX // 2)
        first = host.put("a", large)
        with pytest.raises(KafkaError) as refusal:
            host.put("b", large)
        assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert first == [UNDECIDED]
        await host.load()
        assert host.shard.values == {"a": "1"}
        assert records_of(part) == [(b"a", b"1")]

    host(body)


def test_answers_leave_only_after_all_batches_of_the_turn_are_appended(host):
    async def body(host):
        part = lead(host)
        other = leader()
        host.runtime.lead(INDEX + 1, other)
        seen, later = [], []

        def ask_next(_answer):
            seen.append(len(records_of(other)))
            later.append(host.put("b", "2"))

        host.runtime.write(INDEX, lambda shard, now: shard.put("a", "1"), refuse).then(ask_next)
        host.runtime.write(INDEX + 1, lambda shard, now: shard.put("c", "3"), refuse)
        await host.end_turn()
        assert seen == [1]
        await host.end_turn()
        assert later == [["put b"]]
        assert batches_of(part) == [[(b"a", b"1")], [(b"b", b"2")]]

    host(body)


def test_a_record_that_its_own_shard_cannot_replay_is_not_appended(host):
    async def body(host):
        part = lead(host)
        innocent = host.put("a", "1")
        with pytest.raises(KafkaError):
            host.put("poison", "1")
        await host.end_turn()
        assert innocent == [MOVED]
        assert records_of(part) == []
        assert host.shard.values == {}

    host(body)


def test_time_stands_still_within_a_turn(host):
    async def body(host):
        lead(host)
        times = []

        def note_time(shard, now):
            times.append(now)
            return shard.put("a", "1")

        host.ask(note_time)
        host.clock.advance(1.0)
        host.ask(note_time)
        await host.end_turn()
        host.ask(note_time)
        assert times[0] == times[1] < times[2]

    host(body)


def test_a_broken_invariant_of_the_log_stops_the_runtime_and_refuses_the_request(host):
    async def body(host):
        _, log = await lead_faulty(host)
        log.fault = InvariantViolation("the log is not what it was")
        answer = host.put("a", "2")
        running = asyncio.ensure_future(host.runtime.run())
        await asyncio.wait([running])
        assert running.exception() is log.fault
        assert answer == [f"{REFUSED}UNKNOWN_SERVER_ERROR"]

    host(body)


def test_deadlines_set_while_a_batch_is_open_fire(host):
    async def body(host):
        lead(host)

        def put_with_deadline(shard, now):
            shard.deadline_ms = now.monotonic_ms + 1000
            return shard.put("a", "1")

        host.ask(put_with_deadline)
        await host.end_turn()
        host.pass_time(1.1)
        assert "expired" in host.shard.values

    host(body)
