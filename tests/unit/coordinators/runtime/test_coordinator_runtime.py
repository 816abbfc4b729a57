from __future__ import annotations

import pytest

from tests.support.partitions import (
    OWN,
    SECOND,
    SlowLog,
    fetched,
    image,
    leader,
    partition,
)
from tests.unit.coordinators.runtime.runtime_host import COMMIT_TIMEOUT_S, INDEX, records_of
from tests.unit.coordinators.runtime.toy_shard import REFUSED, refuse
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import MetadataImage, difference
from tidemill.replication.leader_log import ACKS_ALL
from tidemill.wire.records import build_pair_batch


def test_a_write_is_appended_replayed_and_answered(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)

        answer = host.put("a", "1")
        assert host.shard.values == {"a": "1"}
        assert (answer, records_of(part)) == ([], [])
        await host.end_turn()
        assert answer == ["put a"]
        assert records_of(part) == [(b"a", b"1")]

    host(body)


def test_a_partition_that_is_not_led_here_has_another_coordinator(host):
    async def body(host):
        with pytest.raises(KafkaError) as refusal:
            host.put("a", "1")
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR

    host(body)


def test_a_refused_operation_changes_nothing(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        with pytest.raises(KafkaError):
            host.put("a", "bad")
        assert records_of(part) == []

    host(body)


def test_I28_an_answer_waits_until_its_records_are_committed(host):
    async def body(host):
        part = leader(isr=(OWN, SECOND), flush_before_ack=False)
        host.runtime.lead(INDEX, part)

        answer = host.put("a", "1")
        await host.end_turn()
        assert answer == []
        fetched(SECOND, part, 1)
        assert answer == ["put a"]

    host(body)


def test_I28_a_read_does_not_show_what_may_still_be_lost(host):
    async def body(host):
        part = leader(isr=(OWN, SECOND), flush_before_ack=False)
        host.runtime.lead(INDEX, part)
        host.put("a", "1")
        await host.end_turn()

        seen = host.get("a")
        assert seen == []
        fetched(SECOND, part, 1)
        assert seen == ["1"]

    host(body)


def test_with_group_flush_an_answer_waits_for_the_disk(host):
    async def body(host):
        log = SlowLog()
        part = leader(log)
        host.runtime.lead(INDEX, part)

        answer = host.put("a", "1")
        await host.end_turn()
        assert answer == []
        log.flush()
        part.maybe_advance_marks()
        assert answer == ["put a"]

    host(body)


def test_an_answer_that_waits_too_long_is_refused_as_undecided(host):
    async def body(host):
        part = leader(isr=(OWN, SECOND))
        host.runtime.lead(INDEX, part)
        answer = host.put("a", "1")
        await host.end_turn()
        host.pass_time(COMMIT_TIMEOUT_S + 0.1)
        assert answer == [f"{REFUSED}COORDINATOR_NOT_AVAILABLE"]

    host(body)


def test_parked_answers_leave_with_the_records_they_depend_on(host):
    async def body(host):
        part = leader(isr=(OWN, SECOND), flush_before_ack=False)
        host.runtime.lead(INDEX, part)
        waiting = host.ask(lambda shard, now: shard.wait())

        host.put("a", "1")
        await host.end_turn()
        assert waiting == []
        fetched(SECOND, part, 1)
        assert waiting == ["heard 1"]

    host(body)


def test_I26_an_answer_without_records_waits_for_records_of_earlier_requests(host):
    async def body(host):
        part = leader(isr=(OWN, SECOND), flush_before_ack=False)
        host.runtime.lead(INDEX, part)
        waiting = host.ask(lambda shard, now: shard.wait())
        host.runtime.write(INDEX, lambda shard, now: shard.put_and_wait("a", "1"), refuse)
        await host.end_turn()

        woke = host.ask(lambda shard, now: shard.wake("a is 1"))
        assert (woke, waiting) == ([], [])
        fetched(SECOND, part, 1)
        assert (woke, waiting) == (["woke"], ["heard a is 1"])

    host(body)


def test_parked_answers_without_records_leave_at_once(host):
    async def body(host):
        host.runtime.lead(INDEX, leader(isr=(OWN, SECOND)))
        waiting = host.ask(lambda shard, now: shard.wait())
        assert host.ask(lambda shard, now: shard.wake("now")) == ["woke"]
        assert waiting == ["heard now"]

    host(body)


def test_a_request_that_writes_and_parks_is_answered_by_a_later_event(host):
    async def body(host):
        host.runtime.lead(INDEX, leader())
        waiting = host.ask(lambda shard, now: shard.put_and_wait("a", "1"))
        await host.end_turn()
        assert waiting == []
        assert host.shard.values == {"a": "1"}
        host.put("b", "2")
        await host.end_turn()
        assert waiting == ["heard 2"]

    host(body)


def test_losing_the_partition_refuses_all_waiting_requests(host):
    async def body(host):
        part = leader(isr=(OWN, SECOND))
        host.runtime.lead(INDEX, part)
        parked = host.ask(lambda shard, now: shard.wait())
        uncommitted = host.put("b", "1")
        await host.end_turn()
        part.become_follower(image(leader=SECOND, epoch=1))
        host.runtime.resign(INDEX)

        assert uncommitted == [f"{REFUSED}NOT_COORDINATOR"]
        assert parked == [f"{REFUSED}NOT_COORDINATOR"]

    host(body)


def test_a_shard_is_reloaded_from_the_log(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        host.put("a", "1")
        host.put("a", "2")
        await host.end_turn()
        host.runtime.resign(INDEX)

        host.runtime.lead(INDEX, part)
        with pytest.raises(KafkaError) as refusal:
            host.get("a")
        assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await host.load()
        assert host.get("a") == ["2"]
        assert host.shard.is_loaded

    host(body)


def test_leading_again_in_the_same_epoch_keeps_the_shard(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        first = host.shard
        host.runtime.lead(INDEX, part)
        assert host.shard is first

        part.become_leader(image(epoch=1), now=0.0)
        host.runtime.lead(INDEX, part)
        assert host.shard is not first

    host(body)


def test_a_load_that_is_overtaken_by_the_next_leader_is_dropped(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        host.put("a", "1")
        await host.end_turn()
        part.become_leader(image(epoch=1), now=0.0)
        host.runtime.lead(INDEX, part)
        loading = host.shard
        host.runtime.resign(INDEX)
        await host.load()
        assert not loading.is_loaded

    host(body)


def test_a_log_that_cannot_be_replayed_is_not_served(host):
    async def body(host):
        part = leader()
        part.as_leader.append(
            memoryview(build_pair_batch([(b"poison", b"1")], 0)), acks=ACKS_ALL, now_ms=0
        )
        host.runtime.lead(INDEX, part)
        await host.load()
        with pytest.raises(KafkaError) as refusal:
            host.get("a")
        assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    host(body)


def test_when_an_append_fails_nothing_was_replayed(host):
    async def body(host):
        part = leader(isr=(OWN,), in_sync_min=2)
        host.runtime.lead(INDEX, part)
        with pytest.raises(KafkaError) as refusal:
            host.put("a", "1")
        assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert host.shard.values == {}

    host(body)


def test_when_parked_answers_cannot_be_sent_the_shard_is_reloaded(host):
    async def body(host):
        part = leader(isr=(OWN,), in_sync_min=2)
        host.runtime.lead(INDEX, part)
        first = host.shard
        parked = host.ask(lambda shard, now: shard.wait())
        with pytest.raises(KafkaError):
            host.put("a", "1")
        assert parked == [f"{REFUSED}COORDINATOR_NOT_AVAILABLE"]
        assert host.shard is not first

    host(body)


def test_deadlines_of_a_shard_fire_and_may_write_records(host):
    async def body(host):
        host.runtime.lead(INDEX, leader())

        def set_deadline(shard, now):
            shard.deadline_ms = now.monotonic_ms + 1000
            return shard.wake("")

        host.ask(set_deadline)
        host.pass_time(0.5)
        assert "expired" not in host.shard.values
        host.pass_time(0.6)
        assert host.shard.values["expired"] == str(host.clock.wall_ms())

    host(body)


def test_shards_are_told_of_metadata_changes_even_of_those_during_their_loading(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        host.put("a", "1")
        await host.end_turn()
        host.runtime.resign(INDEX)
        before, after = host.image, MetadataImage(cluster_id="new")
        host.runtime.lead(INDEX, part)
        host.image = after
        host.runtime.metadata_changed(difference(before, after))
        assert host.shard.deltas == []
        await host.load()
        (delta,) = host.shard.deltas
        assert delta.before is before
        assert delta.after is after

        host.runtime.metadata_changed(difference(after, before))
        assert len(host.shard.deltas) == 2

    host(body)


def test_a_follower_of_the_partition_does_not_serve_it(host):
    async def body(host):
        follower = partition()
        follower.become_follower(image(leader=SECOND))
        host.runtime.lead(INDEX, follower)  # the image changed between the two calls
        with pytest.raises(KafkaError) as refusal:
            host.put("a", "1")
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR

    host(body)
