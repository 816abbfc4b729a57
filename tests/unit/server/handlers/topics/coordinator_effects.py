"""What the dynamic keys of groups and transactions change."""

from __future__ import annotations

import asyncio

from tests.unit.server.config_requests import GROUP, SET, alter
from tests.unit.server.group_requests import (
    OFFSETS_TOPIC,
    commit,
    commit_request,
    coordinate,
    heartbeat,
    settled_heartbeat,
)
from tests.unit.server.handlers.topics.dynamic_effects import Effects
from tests.unit.server.one_broker import value_of
from tests.unit.server.transaction_requests import Producer, coordinate_transactions
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol

COORDINATOR_EFFECTS = Effects()
changes = COORDINATOR_EFFECTS.of


# --- groups ------------------------------------------------------------------------------------


def now(broker):
    return Now(int(broker.clock.monotonic() * 1000), broker.clock.wall_ms())


@changes("offsets.retention.minutes")
def _(broker, change):
    shard = coordinate(broker)
    commit(broker)
    broker.clock.now_ms += 60 * 60_000
    assert not shard.expire(now(broker)).records
    change(59)
    broker.clock.now_ms += 60_000_000 - 60 * 60_000
    tombstones = shard.expire(now(broker)).records
    assert [record.value for record in tombstones] == [None, None]  # of the offset and its group


@changes("offsets.retention.check.interval.ms")
def _(broker, change):
    shard = coordinate(broker)
    started_ms = now(broker).monotonic_ms
    assert shard.next_deadline_ms() == started_ms + 600_000
    change(1_000)
    assert shard.next_deadline_ms() == started_ms + 1_000


@changes("offsets.commit.timeout.ms")
def _(broker, change):
    broker.join_broker(2)
    broker.make_topic(OFFSETS_TOPIC, -1, assignments={0: [1, 2]})
    broker.make_topic("t", -1, assignments={0: [1]})
    change(250)

    async def committed():
        """Nobody copies the records, so the answer comes when the time is up."""
        answer = broker.start_deferred(commit_request(broker), 9)
        await asyncio.sleep(0)
        broker.clock.now_ms += 260
        broker.timers._turn()
        return answer

    (topic,) = value_of(broker.run(committed())).topics
    assert topic.partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@changes("offset.metadata.max.bytes")
def _(broker, change):
    coordinate(broker)
    assert commit(broker) == [ErrorCode.NONE]
    change(0)
    assert commit(broker) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]


@changes("tidemill.groups.max")
def _(broker, change):
    coordinate(broker)
    commit(broker, group_id="a")
    change(1)
    assert commit(broker, group_id="b") == [ErrorCode.POLICY_VIOLATION]


def join(broker, *, member_id="", timeout_ms=10_000):
    """A classic member's JoinGroup: its answer, or None while it is held back."""
    request = JoinGroupRequest(
        group_id="classic",
        member_id=member_id,
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=timeout_ms,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer, _ = broker.start(request, 3)
    return answer


def join_error(broker, **fields):
    answer = join(broker, **fields)
    return ErrorCode(getattr(answer, "error_code", ErrorCode.NONE))


@changes("group.min.session.timeout.ms")
def _(broker, change):
    coordinate(broker)
    change(10_001)
    assert join_error(broker) is ErrorCode.INVALID_SESSION_TIMEOUT
    change(10_000)
    assert join_error(broker) is ErrorCode.NONE


@changes("group.max.session.timeout.ms")
def _(broker, change):
    coordinate(broker)
    change(9_999)
    assert join_error(broker) is ErrorCode.INVALID_SESSION_TIMEOUT
    change(10_000)
    assert join_error(broker) is ErrorCode.NONE


@changes("group.initial.rebalance.delay.ms")
def _(broker, change):
    shard = coordinate(broker)
    change(100)
    join(broker)
    assert shard.next_deadline_ms() == now(broker).monotonic_ms + 100


@changes("group.max.size")
def _(broker, change):
    coordinate(broker)
    assert heartbeat(broker, "first").error_code == ErrorCode.NONE
    change(1)
    assert heartbeat(broker, "second").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


@changes("group.consumer.heartbeat.interval.ms")
def _(broker, change):
    coordinate(broker)
    change(7_000)
    assert settled_heartbeat(broker).heartbeat_interval_ms == 7_000


@changes("group.consumer.session.timeout.ms")
def _(broker, change):
    shard = coordinate(broker)
    heartbeat(broker, "m")
    change(9_000)
    heartbeat(broker, "m", epoch=1)
    assert shard.next_deadline_ms() == now(broker).monotonic_ms + 9_000


def check_bound(key, bound, value, group_key):
    """The bound of what can be set for one group."""

    @changes(key)
    def _(broker, change):
        setting = ((group_key, SET, str(value)),)
        refused = alter(broker, *setting, kind=GROUP, name="g")
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert key in refused.error_message
        change(bound)
        assert alter(broker, *setting, kind=GROUP, name="g").error_code == ErrorCode.NONE


SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
check_bound("group.consumer.min.session.timeout.ms", 10_000, 10_000, SESSION)
check_bound("group.consumer.max.session.timeout.ms", 90_000, 90_000, SESSION)
check_bound("group.consumer.min.heartbeat.interval.ms", 1_000, 1_000, HEARTBEAT)
check_bound("group.consumer.max.heartbeat.interval.ms", 20_000, 20_000, HEARTBEAT)


# --- transactions ------------------------------------------------------------------------------


def transactional_producer(broker, name="pay"):
    coordinate_transactions(broker)
    return Producer(broker, name)


@changes("transaction.max.timeout.ms")
def _(broker, change):
    producer = transactional_producer(broker)
    change(1_000)
    assert producer.init(timeout_ms=1_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=1_000) is ErrorCode.NONE


@changes("tidemill.transactional.ids.max")
def _(broker, change):
    assert transactional_producer(broker, "a").init() is ErrorCode.NONE
    change(1)
    assert Producer(broker, "b").init() is ErrorCode.POLICY_VIOLATION


def swept(broker):
    """How many transactional ids are left after a sweep of every shard, one hour later."""
    for shard in broker.transactions.shards():
        later = Now(broker.clock.now_ms + 3_600_000, broker.clock.now_ms + 3_600_000)
        for key, value in shard.expire(later).records:
            shard.replay(key, value)
    return sum(len(shard) for shard in broker.transactions.shards())


@changes("transactional.id.expiration.ms")
def _(broker, change):
    transactional_producer(broker).init()
    assert swept(broker) == 1
    change(1_000)
    for shard in broker.transactions.shards():
        shard.loaded(Now(broker.clock.now_ms, broker.clock.now_ms))
    assert swept(broker) == 0


@changes("transaction.remove.expired.transaction.cleanup.interval.ms")
def _(broker, change):
    coordinate_transactions(broker)
    change(5)
    (first, *_rest) = broker.transactions.shards()
    first.loaded(Now(100, 100))
    assert first.next_deadline_ms() == 105
