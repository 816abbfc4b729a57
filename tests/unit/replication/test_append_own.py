"""Batches that this broker built are appended like a client's, without a client's checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partitions import NOW_MS, OWN, SECOND, Watch, content, image, leader
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.leader_log import ACKS_ALL
from tidemill.replication.partition import Partition
from tidemill.wire.batch import iter_headers
from tidemill.wire.produced_batch import BatchPolicy
from tidemill.wire.records import build_pair_batch

PAIRS = [(b"a", b"1" * 200), (b"b", None)]
POLICIES = {
    "as produced": BatchPolicy(),
    "append time": BatchPolicy(timestamp_type="append"),
    "other codec": BatchPolicy(compression="gzip"),
    "compacted": BatchPolicy(require_keys=True),
}


def own_batch() -> bytearray:
    return build_pair_batch(PAIRS, NOW_MS)


def refusal(part: Partition) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        part.as_leader.append_own(own_batch(), now_ms=NOW_MS)
    assert content(part) == b""
    return refused.value.code


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_an_own_batch_is_stored_as_the_same_bytes_as_a_produced_one(policy):
    own, produced = leader(epoch=4), leader(epoch=4)
    for part in (own, produced):
        part.set_settings(replace(part.settings, policy=policy))
    for _ in range(2):
        appended = own.as_leader.append_own(own_batch(), now_ms=NOW_MS)
        expected = produced.as_leader.append(memoryview(own_batch()), acks=ACKS_ALL, now_ms=NOW_MS)
        assert appended == expected
    assert content(own) == content(produced)


def test_an_own_batch_gets_the_next_offsets_and_the_leader_epoch():
    part = leader(epoch=4)
    for _ in range(2):
        part.as_leader.append_own(own_batch(), now_ms=NOW_MS)
    headers = [header for _, header in iter_headers(content(part))]
    assert [header.base_offset for header in headers] == [0, 2]
    assert [header.partition_leader_epoch for header in headers] == [4, 4]


def test_an_own_batch_wakes_parked_followers():
    part = leader(isr=(OWN, SECOND))
    watch = Watch()
    part.follower_watches.add(SECOND, watch)
    part.as_leader.append_own(own_batch(), now_ms=NOW_MS)
    assert watch.heard == ["grew"]


def test_an_own_batch_is_held_to_the_size_limits_of_the_topic():
    part = leader()
    size = len(own_batch())
    part.set_settings(replace(part.settings, policy=BatchPolicy(max_message_bytes=size - 1)))
    assert refusal(part) is ErrorCode.MESSAGE_TOO_LARGE
    part.set_settings(replace(part.settings, policy=BatchPolicy(), segment_bytes=size - 1))
    assert refusal(part) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_T27_an_own_batch_is_refused_below_the_minimum_of_in_sync_replicas():
    assert refusal(leader(in_sync_min=2)) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_only_the_leader_appends_own_batches():
    part = leader()
    part.become_follower(image(leader=SECOND, epoch=1))
    assert refusal(part) is ErrorCode.NOT_LEADER_OR_FOLLOWER
