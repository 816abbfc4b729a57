"""Records of a producer's transaction, markers, and effects of committed records."""

from __future__ import annotations

from tests.support.partitions import ALL, OWN, SECOND, THIRD, fetched, leader
from tests.unit.coordinators.runtime.runtime_host import INDEX, Host, batches_of
from tests.unit.coordinators.runtime.toy_shard import refuse
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.partition_writer import Marker
from tidemill.coordinators.runtime.shard import CoordinatorRecord, ProducerName, Result
from tidemill.core.errors import ErrorCode

PRODUCER = ProducerName(7, 0)
EPOCH = 3


class EffectHost(Host):
    """A host that notes the effects that are carried out."""

    def __init__(self):
        super().__init__()
        self.effects = []
        self.runtime = CoordinatorRuntime(
            "__toys",
            self._make_shard,
            clock=self.clock,
            timers=self.timers,
            disk=None,
            image=lambda: self.image,
            commit_timeout_s=5.0,
            carry_out=lambda index, epoch, effects: self.effects.append((index, epoch, effects)),
        )


def put_pending(host, name, value, producer=PRODUCER):
    record = CoordinatorRecord(name.encode(), value.encode())
    return host.ask(lambda shard, now: Result("pending", [record], producer=producer))


def put_with_effect(host, name, effect):
    record = CoordinatorRecord(name.encode(), b"v")
    return host.ask(lambda shard, now: Result("put", [record], effects=[effect]))


def end(host, *, is_commit=True, producer=PRODUCER):
    return host.runtime.append_marker(INDEX, Marker(producer, is_commit, EPOCH))


def test_an_operation_in_a_transaction_has_a_batch_of_its_own_in_the_order_of_the_turn(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        host.put("a", "1")
        put_pending(host, "b", "2")
        host.put("c", "3")
        await host.end_turn()
        assert batches_of(part) == [[(b"a", b"1")], [(b"b", b"2")], [(b"c", b"3")]]
        assert part.last_stable_offset() == 1

    host(body)


def test_records_of_a_transaction_count_when_its_commit_marker_comes(host):
    async def body(host):
        host.runtime.lead(INDEX, leader())
        assert put_pending(host, "a", "1") == ["pending"]
        assert host.get("a") == ["absent"]
        end(host)
        assert host.get("a") == ["1"]

    host(body)


def test_records_of_an_aborted_transaction_are_dropped(host):
    async def body(host):
        host.runtime.lead(INDEX, leader())
        put_pending(host, "a", "1")
        end(host, is_commit=False)
        assert host.get("a") == ["absent"]
        assert host.shard.pending == {}

    host(body)


def test_a_marker_comes_behind_what_the_shard_has_replayed(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        put_pending(host, "a", "1")
        host.put("b", "2")
        end(host)
        await host.end_turn()
        assert [batch[0][0] for batch in batches_of(part)[:2]] == [b"a", b"b"]
        assert len(batches_of(part)) == 3

    host(body)


def test_a_marker_that_comes_twice_is_appended_and_replayed_once(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        put_pending(host, "a", "1")
        assert end(host) == end(host) == part.log.log_end_offset
        assert host.shard.markers == [(PRODUCER, True)]

    host(body)


def test_a_loaded_shard_knows_the_same_pending_records_and_markers(host):
    async def body(host):
        part = leader()
        host.runtime.lead(INDEX, part)
        other = ProducerName(8, 2)
        put_pending(host, "a", "1")
        put_pending(host, "b", "2", other)
        put_pending(host, "c", "3", ProducerName(9, 0))
        end(host)
        end(host, is_commit=False, producer=ProducerName(9, 0))
        before = host.shard
        host.runtime.resign(INDEX)
        host.runtime.lead(INDEX, part)
        await host.load()
        assert host.shard is not before
        assert host.shard.values == before.values == {"a": "1"}
        assert host.shard.pending == before.pending == {other: [(b"b", b"2")]}

    host(body)


def test_an_effect_is_carried_out_when_its_record_is_committed_however_long_that_takes(run):
    async def body():
        host = EffectHost()
        part = leader(isr=ALL, epoch=4)
        host.runtime.lead(INDEX, part)
        answer = put_with_effect(host, "a", "do it")
        await host.end_turn()
        host.pass_time(60)
        assert answer == [refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        assert host.effects == []
        for follower in (SECOND, THIRD):
            fetched(follower, part, part.log.log_end_offset)
        assert host.effects == [(INDEX, 4, ["do it"])]
        host.timers.stop()

    run(body())


def test_effects_of_one_turn_are_carried_out_after_their_batch(run):
    async def body():
        host = EffectHost()
        host.runtime.lead(INDEX, leader(isr=(OWN,)))
        put_with_effect(host, "a", 1)
        put_with_effect(host, "b", 2)
        assert host.effects == []
        await host.end_turn()
        assert host.effects == [(INDEX, 0, [1, 2])]
        host.timers.stop()

    run(body())


def test_an_effect_of_a_partition_that_moves_away_is_left_to_the_next_coordinator(run):
    async def body():
        host = EffectHost()
        host.runtime.lead(INDEX, leader(isr=ALL))
        put_with_effect(host, "a", "do it")
        host.runtime.resign(INDEX)
        await host.end_turn()
        assert host.effects == []
        assert host.runtime.epoch_of(INDEX) is None
        host.timers.stop()

    run(body())
