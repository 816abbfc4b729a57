"""A topic with `tidemill.delay.default.ms` holds every record that names no time of its own."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.support.coroutines import run
from tests.support.hold_stage import Replica, cancel, delay, message_id
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import HELD_BATCH_HEADERS_MAX
from tidemill.metadata.image.topic_config import checked_overrides
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire import compression
from tidemill.wire.produced_batch import BatchPolicy, BatchWork, LongBatch, prepare_produced
from tidemill.wire.records import Record, build_batch, iter_records


@pytest.fixture
def leading() -> Replica:
    replica = Replica(ManualClock()).lead()
    set_default(replica, 10_000)
    return replica


def set_default(replica: Replica, delay_ms: int, **options: object) -> None:
    policy = BatchPolicy(delay_default_ms=delay_ms, **options)
    replica.partition.set_settings(replace(replica.partition.settings, policy=policy))


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP, compression.ZSTD])
def test_a_plain_record_is_held_for_the_time_of_the_topic(leading, codec):
    async def scenario():
        leading.send((b"later", []), (b"named", [message_id(b"m"), ("own", b"1")]), codec=codec)
        assert leading.values() == []
        await leading.pass_time(9.9)
        assert leading.values() == []
        await leading.pass_time(0.2)
        assert leading.values() == [b"later", b"named"]

    run(scenario())


def test_a_record_that_names_a_time_keeps_it(leading):
    async def scenario():
        leading.send((b"soon", [delay(1_000)]), (b"later", []))
        await leading.pass_time(1.1)
        assert leading.values() == [b"soon"]
        await leading.pass_time(9)
        assert leading.values() == [b"soon", b"later"]

    run(scenario())


def test_commands_are_not_held(leading):
    async def scenario():
        ticket = leading.send((b"later", [])).base_offset
        leading.send((b"", cancel(b"%d" % ticket)))
        await leading.pass_time(11)
        assert leading.values() == []

    run(scenario())


def test_a_changed_time_holds_for_records_that_come_later(leading):
    async def scenario():
        leading.send((b"first", []))
        set_default(leading, 1_000)
        leading.send((b"second", []))
        set_default(leading, 0)
        leading.send((b"third", []))
        assert leading.values() == [b"third"]
        await leading.pass_time(1.1)
        assert leading.values() == [b"third", b"second"]
        await leading.pass_time(9)
        assert leading.values() == [b"third", b"second", b"first"]

    run(scenario())


def test_a_retry_of_an_idempotent_producer_is_recognised(leading):
    async def scenario():
        identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        first = leading.send((b"once", []), **identity)
        again = leading.send((b"once", []), **identity)
        assert (again.duplicate, again.base_offset) == (True, first.base_offset)
        await leading.pass_time(11)
        assert leading.values() == [b"once"]

    run(scenario())


def test_in_a_transaction_the_commit_counts(leading):
    async def scenario():
        for producer_id, is_commit in ((7, False), (8, True)):
            identity = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            leading.send((b"%d" % producer_id, []), transactional=True, **identity)
            leading.partition.as_leader.append_marker(
                producer_id, 0, is_commit=is_commit, coordinator_epoch=0, now_ms=0
            )
        await leading.pass_time(11)
        assert leading.values() == [b"8"]

    run(scenario())


def test_a_topic_that_stores_another_codec_holds_too(leading):
    async def scenario():
        set_default(leading, 10_000, compression="lz4")
        leading.send((b"later" * 50, []))
        await leading.pass_time(11)
        assert leading.values() == [b"later" * 50]

    run(scenario())


def test_many_records_are_given_their_delay_in_a_thread_and_keep_all_else():
    records = [Record(b"%d" % n, b"k", headers=[("h", None)], timestamp=n) for n in range(600)]
    made = build_batch(records, producer_id=3, producer_epoch=1, base_sequence=5)
    policy = BatchPolicy(delay_default_ms=7, timestamp_after_max_ms=1 << 40)
    with pytest.raises(LongBatch):
        prepare_produced(memoryview(made), policy, 0, BatchWork(1 << 20))
    view, header, requesting = prepare_produced(memoryview(made), policy, 0)
    assert requesting is not None
    assert (header.producer_id, header.base_sequence, header.record_count) == (3, 5, 600)
    delayed = list(iter_records(view))
    assert [one.headers for one in delayed] == [[("h", None), ("tidemill.delay-ms", b"7")]] * 600
    for before, after in zip(iter_records(made), delayed, strict=True):
        assert (before.key, before.value, before.timestamp) == (
            after.key,
            after.value,
            after.timestamp,
        )


@pytest.mark.parametrize(
    "other", [{"cleanup.policy": "compact"}, {"tidemill.delay.enable": "false"}]
)
def test_a_topic_that_holds_nothing_has_no_default(other):
    with pytest.raises(KafkaError, match=r"tidemill\.delay\.default\.ms") as refused:
        checked_overrides({"tidemill.delay.default.ms": "1000", **other})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert checked_overrides({"tidemill.delay.default.ms": "0", **other})


@pytest.mark.parametrize("codec", [compression.GZIP, compression.ZSTD])
def test_a_few_large_records_that_are_packed_again_are_left_to_a_thread(codec):
    records = [Record(Random(n).randbytes(100_000), timestamp=0) for n in range(8)]
    policy = BatchPolicy(delay_default_ms=7)
    packed = build_batch(records, codec=codec)
    work = BatchWork(1 << 30)
    with pytest.raises(LongBatch):
        prepare_produced(memoryview(packed), policy, 0, work)
    prepare_produced(memoryview(build_batch(records)), policy, 0, work)
    left = work.left
    prepare_produced(memoryview(build_batch(records[:1], codec=codec)), policy, 0, work)
    assert left - work.left > 1_000_000, "packing costs more than reading"


def test_more_headers_than_a_held_batch_may_have_are_not_made_objects(leading):
    many = [("", None)] * (HELD_BATCH_HEADERS_MAX + 1)
    with pytest.raises(KafkaError) as found:
        leading.send((b"x", many), codec=compression.ZSTD)
    assert found.value.code is ErrorCode.MESSAGE_TOO_LARGE
