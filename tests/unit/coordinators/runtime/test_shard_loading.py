"""Loads that fail, and loads of partitions that this broker loses meanwhile."""

from __future__ import annotations

import logging

import pytest

from tests.support.partitions import OWN, Lease, leader
from tests.support.shard_desk import ShardDesk
from tests.unit.coordinators.runtime.runtime_host import INDEX
from tests.unit.coordinators.runtime.toy_shard import ToyShard
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.group.registry import GroupLimit
from tidemill.coordinators.group.shard import GroupShard
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.coordinators.runtime.shard_loading import RETRY_LONGEST_S, pause_s_after
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.metadata.image.metadata_image import difference
from tidemill.replication.leader_log import ACKS_ALL
from tidemill.storage.log.interface import LogConfig, LogSlice
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.wire.records import build_pair_batch

FIRST_BATCH_BYTES = 1
"""A read of so many bytes gives one batch."""


class ColdLog:
    """A log in memory that is read one batch at a time and in a thread, where a test interferes."""

    def __init__(self):
        self._log = MemoryPartitionLog(LogConfig())
        self.failures = 0
        """Reads that fail from now on."""
        self.reads = 0
        self.after_read = lambda: None

    def read(self, offset, *, max_bytes, end_offset, at_least_one=True):
        def load():
            self.reads += 1
            if self.failures:
                self.failures -= 1
                raise StorageFault("too many open files")
            found = self._log.read(offset, max_bytes=FIRST_BATCH_BYTES, end_offset=end_offset)
            self.after_read()
            return found.chunks

        return LogSlice((), max_bytes, load)

    def __getattr__(self, name):
        return getattr(self._log, name)


def stored(log, *batches):
    """A partition whose log holds these batches of pairs."""
    part = leader(log)
    for pairs in batches:
        part.as_leader.append(memoryview(build_pair_batch(pairs, 0)), acks=ACKS_ALL, now_ms=0)
    return part


def is_loading(host):
    try:
        host.get("a")
    except KafkaError as error:
        return error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return False


def test_a_partition_whose_load_failed_is_served_once_the_disk_can_be_read_again(host):
    async def body(host):
        log = ColdLog()
        log.failures = 1
        host.runtime.lead(INDEX, stored(log, [(b"a", b"1")]))
        await host.load()
        assert is_loading(host)

        host.pass_time(pause_s_after(1) + 0.02)
        await host.load()
        assert host.get("a") == ["1"]

    host(body)


def test_I26_a_broker_without_a_lease_does_not_say_that_it_loads(host):
    """Another one may coordinate the partition: members must look for it, not wait for this one."""

    async def body(host):
        log, lease = ColdLog(), Lease()
        log.failures = 1_000
        part = leader(log, lease=lease)
        part.as_leader.append(memoryview(build_pair_batch([(b"a", b"1")], 0)), acks=1, now_ms=0)
        host.runtime.lead(INDEX, part)
        await host.load()
        assert is_loading(host)
        lease.may_act = False
        with pytest.raises(KafkaError) as refusal:
            host.get("a")
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR
        lease.may_act = True
        assert is_loading(host)

    host(body)


def test_a_load_that_failed_half_way_starts_from_an_empty_shard(host):
    async def body(host):
        log = ColdLog()
        part = stored(log, [(b"a", b"1")], [(b"b", b"2")])
        log.after_read = lambda: setattr(log, "failures", log.reads == 1)
        host.runtime.lead(INDEX, part)
        await host.load()
        half_loaded = host.shard
        assert half_loaded.values == {"a": "1"}

        host.pass_time(pause_s_after(1) + 0.02)
        await host.load()
        assert host.shard is not half_loaded
        assert host.shard.values == {"a": "1", "b": "2"}

    host(body)


def test_loads_that_keep_failing_are_repeated_ever_more_slowly_but_for_ever(host):
    async def body(host):
        log = ColdLog()
        log.failures = 1_000
        host.runtime.lead(INDEX, stored(log, [(b"a", b"1")]))
        await host.load()
        for failed in range(1, 15):
            assert log.reads == failed
            host.pass_time(pause_s_after(failed) / 2)
            await host.load()
            assert log.reads == failed  # not before its time
            host.pass_time(pause_s_after(failed) / 2 + 0.02)
            await host.load()

        log.failures = 0
        host.pass_time(RETRY_LONGEST_S + 0.02)
        await host.load()
        assert host.get("a") == ["1"]

    host(body)


def test_the_pause_between_loads_has_a_bound():
    pauses = [pause_s_after(failures) for failures in range(1, 2_000)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_LONGEST_S


def test_loads_that_keep_failing_write_one_log_line_a_minute(host, caplog):
    async def body(host):
        log = ColdLog()
        log.failures = 1_000
        host.runtime.lead(INDEX, stored(log, [(b"a", b"1")]))
        for _ in range(100):
            await host.load()
            host.pass_time(0.5)
        assert log.reads > 5

    with caplog.at_level(logging.ERROR):
        host(body)
    (line,) = caplog.records
    assert "__toys-3 cannot be loaded" in line.getMessage()
    assert "too many open files" in line.getMessage()


@pytest.mark.parametrize("lives", ["resigned", "led in a newer epoch"])
def test_a_partition_that_is_lost_after_a_failed_load_is_not_loaded_again_for_its_old_life(
    host, lives
):
    async def body(host):
        log = ColdLog()
        log.failures = 1
        part = stored(log, [(b"a", b"1")])
        host.runtime.lead(INDEX, part)
        await host.load()
        host.runtime.resign(INDEX)
        if lives != "resigned":
            host.runtime.lead(INDEX, part)
        made = len(host.shards)
        host.pass_time(RETRY_LONGEST_S)
        await host.load()
        assert len(host.shards) == made
        assert log.reads == (1 if lives == "resigned" else 2)

    host(body)


def test_a_partition_resigned_while_its_log_is_read_replays_nothing_more(host):
    async def body(host):
        log = ColdLog()
        part = stored(log, [(b"a", b"1")], [(b"b", b"2")], [(b"c", b"3")])
        log.after_read = lambda: log.reads == 2 and host.runtime.resign(INDEX)
        host.runtime.lead(INDEX, part)
        await host.load()
        assert host.shard.values == {"a": "1"}
        assert log.reads == 2

    host(body)


class AnnouncingShard(ToyShard):
    """Writes a record and sets a deadline when topics change; counts what it does too late."""

    resigned = False
    expired_after_end = 0

    def metadata_changed(self, delta, now):
        self.deadline_ms = now.monotonic_ms + 1000
        return Result(None, [CoordinatorRecord(b"told", b"1")])

    def expire(self, now):
        self.expired_after_end += self.resigned
        return super().expire(now)

    def resign(self):
        self.resigned = True
        return super().resign()


def test_work_of_the_shard_itself_that_keeps_failing_writes_one_log_line_a_minute(host, caplog):
    async def body(host):
        host.runtime.lead(INDEX, leader(isr=(OWN,), in_sync_min=2))
        for _ in range(100):
            host.runtime.metadata_changed(difference(host.image, host.image))
            await host.load()
            host.pass_time(0.5)
        assert len(host.shards) == 101

    with caplog.at_level(logging.WARNING):
        host(body, make_shard=AnnouncingShard)
    (line,) = caplog.messages
    assert "__toys-3: COORDINATOR_NOT_AVAILABLE" in line


def test_a_shard_that_a_failed_append_dropped_passes_no_more_deadlines(host):
    async def body(host):
        part = leader(isr=(OWN,), in_sync_min=2)
        host.runtime.lead(INDEX, part)
        first = host.shard
        host.runtime.metadata_changed(difference(host.image, host.image))
        assert first.resigned
        host.pass_time(1.1)
        assert first.expired_after_end == 0

    host(body, make_shard=AnnouncingShard)


def commits_of(*groups):
    """The records of one commit by each of these groups."""
    desk = ShardDesk()
    for group in groups:
        desk.commit(group_id=group)
    return [[record] for record in desk.log]


@pytest.mark.parametrize("end", ["resigned", "failed"])
def test_S38_a_load_that_is_not_finished_leaves_no_group_in_the_quota(host, end):
    limit = GroupLimit(10)

    def interfere(host, log):
        if log.reads == 2 and end == "resigned":
            host.runtime.resign(INDEX)
        elif log.reads == 2:
            log.failures = 1

    async def body(host):
        log = ColdLog()
        part = stored(log, *commits_of("one", "two", "three"))
        log.after_read = lambda: interfere(host, log)
        host.runtime.lead(INDEX, part)
        await host.load()
        assert log.reads == (2 if end == "resigned" else 3)
        assert limit.count == 0

        if end == "failed":
            host.pass_time(pause_s_after(1) + 0.02)
            await host.load()
            assert limit.count == 3

    host(
        body, make_shard=lambda image: GroupShard(GroupConfig(), image, limit, matcher=Re2Matcher())
    )
