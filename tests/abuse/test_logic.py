"""Senseless values (S45) and text aimed at the log (S52), on live sockets."""

from __future__ import annotations

import re
import stat
import struct

import pytest

from tests.abuse.requests import (
    FETCH,
    METADATA,
    PRODUCE,
    batch,
    code_of,
    fetch,
    metadata,
    partition_of,
    produce,
)
from tests.abuse.stranger import wait_until
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1
NO_PARTITIONS = [-1, INT32_MIN, INT32_MAX, 1]


@pytest.mark.parametrize("partition", NO_PARTITIONS)
def test_S45_partitions_that_do_not_exist_are_refused_everywhere(victim, partition):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with victim.connect() as stranger:
        produced = stranger.call(produce("canary", batch(b"x"), partition=partition), PRODUCE)
        assert code_of(produced) == unknown
        fetched = stranger.call(fetch("canary", partitions=[partition]), FETCH)
        assert partition_of(fetched).error_code == unknown
        assert _deleted(stranger, 0, partition).error_code == unknown
        assert _listed(stranger, -1, partition).error_code == unknown
        wanted = OffsetForLeaderPartition(partition=partition, leader_epoch=0)
        asked = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic="canary", partitions=[wanted])]
        )
        answer = stranger.call(asked, 4)
        assert answer.topics[0].partitions[0].error_code == unknown


@pytest.mark.parametrize("offset", [-1, INT64_MIN, INT64_MAX, 10**15])
def test_S45_offsets_outside_of_the_log_are_refused(victim, offset):
    with victim.connect() as stranger:
        fetched = stranger.call(fetch("canary", offset=offset), FETCH)
        assert partition_of(fetched).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("offset", [-2, INT64_MIN, INT64_MAX, 10**15])
def test_S45_records_beyond_the_high_watermark_cannot_be_deleted(victim, offset):
    with victim.connect() as stranger:
        start = partition_of(stranger.call(fetch("canary"), FETCH)).log_start_offset
        assert _deleted(stranger, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition_of(stranger.call(fetch("canary"), FETCH)).log_start_offset == start


@pytest.mark.parametrize("size", [0, -1, INT32_MIN])
def test_S45_negative_sizes_and_waits_are_answered(victim, size):
    with victim.connect() as stranger:
        asked = fetch("canary", max_bytes=size, min_bytes=size, max_wait_ms=size)
        assert partition_of(stranger.call(asked, FETCH)).error_code == 0


@pytest.mark.parametrize("epoch", [INT32_MIN, 5, INT32_MAX])
def test_S45_unknown_leader_epochs_are_refused(victim, epoch):
    asked = fetch("canary")
    asked.topics[0].partitions[0].current_leader_epoch = epoch
    with victim.connect() as stranger:
        code = partition_of(stranger.call(asked, FETCH)).error_code
    assert code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)


@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_S45_T9_acks_that_mean_nothing_are_refused(victim, acks):
    with victim.connect() as stranger:
        code = code_of(stranger.call(produce("canary", batch(b"x"), acks=acks), PRODUCE))
        assert code == ErrorCode.INVALID_REQUIRED_ACKS


def _deleted(stranger, offset, partition=0):
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="canary", partitions=[wanted])], timeout_ms=1000
    )
    return stranger.call(request, 2).topics[0].partitions[0]


def _listed(stranger, timestamp, partition=0):
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="canary", partitions=[wanted])]
    )
    return stranger.call(request, 6).topics[0].partitions[0]


# --- S52: the log --------------------------------------------------------------------------------

INJECTIONS = [
    "x\r\n2026-01-01 00:00:00,000 CRITICAL root all is lost",
    "\x1b[2J\x1b[31m",
    "${jndi:ldap://127.0.0.1/x}",
    "%s%s%s%n{0}",
    "x" * 32_000,
]


@pytest.mark.parametrize("text", INJECTIONS, ids=lambda text: ascii(text[:12]))
def test_S52_client_ids_and_topic_names_cannot_forge_log_lines(victim, text):
    before = len(victim.log_lines())
    peer = victim.new_peer()
    with victim.connect(peer) as stranger:
        stranger.call(metadata(text), METADATA, client_id=text)
        stranger.call(produce("canary", batch(b"x")), PRODUCE, client_id=text)
        stranger.send(stranger.frame(metadata("x"), METADATA, client_id=text)[:-1] + b"\xff")
        stranger.send(struct.pack(">i", -1))
        assert stranger.is_closed()
    wait_until(lambda: victim.lines_about(peer), "the closing is logged")
    added = victim.log_lines()[before:]
    assert len(added) == 1
    assert added[0].isprintable()
    assert len(added[0]) < 1000


def test_S52_a_client_id_of_a_megabyte_is_refused(victim):
    body = struct.pack(">hhih", 18, 0, 1, -2) + b"x" * (1 << 20)
    peer = victim.new_peer()
    with victim.connect(peer) as stranger:
        stranger.send(struct.pack(">i", len(body)) + body)
        assert stranger.is_closed()
    wait_until(lambda: victim.lines_about(peer), "the closing is logged")
    assert len(victim.lines_about(peer)[0]) < 1000


def test_S52_every_log_line_has_our_format(victim):
    shape = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ tidemill\.[a-z_.]+ ")
    assert all(shape.match(line) for line in victim.log_lines())


# --- S47: the data directory ---------------------------------------------------------------------


def test_S47_no_other_user_can_read_the_data_directory(victim):
    paths = [victim.process.data_dir, *victim.process.data_dir.rglob("*")]
    modes = {stat.filemode(path.lstat().st_mode) for path in paths if path.is_dir()}
    assert modes == {"drwx------"}
