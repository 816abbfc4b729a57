"""What a partition appends while little of the disk is free."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.partitions import (
    NOW_MS,
    SECOND,
    append,
    batch,
    content,
    copy,
    image,
    leader,
    partition,
)
from tidemill.core.errors import DiskFull
from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.replication.partition import Partition
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.wire.marks import mark_ours
from tidemill.wire.records import build_pair_batch

RESERVE = 64 << 20
LEVELS = AMPLE, LOW, LOWER, LOWEST = 1 << 40, RESERVE - 1, RESERVE * 3 // 4, RESERVE // 2
"""Bytes that are free."""


def set_free(room: DiskRoom, free_bytes: int) -> None:
    room.end_look(
        room.begin_look(), total_bytes=1 << 40, free_bytes=free_bytes, reserve_bytes=RESERVE
    )


def write_transaction(to: Partition) -> None:
    append(to, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)


def end_transaction(of: Partition) -> None:
    of.as_leader.append_marker(9, 0, is_commit=True, coordinator_epoch=0, now_ms=NOW_MS)


def append_own(to: Partition) -> None:
    to.as_leader.append_own(build_pair_batch([(b"k", b"v")], NOW_MS), now_ms=NOW_MS)


def append_held(to: Partition) -> None:
    ours = bytearray(batch())
    mark_ours(ours)
    to.as_leader.append_ours(ours, now_ms=NOW_MS)


def is_refused(act: Callable[[Partition], object], part: Partition) -> bool:
    """Whether the disk is called full; then nothing was appended."""
    before = content(part)
    try:
        act(part)
    except DiskFull:
        assert content(part) == before
        return True
    assert content(part) != before
    return False


@pytest.mark.parametrize(
    ("act", "refused_at"),
    [
        (append, [LOW, LOWER, LOWEST]),
        (append_held, [LOWEST]),
        (append_own, [LOWEST]),
        (end_transaction, [LOWEST]),
    ],
)
def test_R12_a_leader_refuses_records_first_and_its_own_state_last(act, refused_at):
    found = []
    for free in LEVELS:
        room = DiskRoom("/data")
        part = leader(room=room)
        write_transaction(part)
        set_free(room, free)
        if is_refused(act, part):
            found.append(free)
            set_free(room, AMPLE)
            assert not is_refused(act, part)
    assert found == refused_at


def test_R12_a_retry_is_acknowledged_while_records_are_refused():
    room = DiskRoom("/data")
    part = leader(room=room)
    sent = {"producer_id": 9, "producer_epoch": 0}
    append(part, base_sequence=0, **sent)
    set_free(room, 0)
    assert append(part, base_sequence=0, **sent).duplicate
    with pytest.raises(DiskFull):
        append(part, base_sequence=1, **sent)
    set_free(room, AMPLE)
    assert append(part, base_sequence=1, **sent).base_offset == 1


@pytest.mark.parametrize(
    ("write", "topic", "refused_at"),
    [
        (append, "t", [LOWER, LOWEST]),
        (append_held, "t", [LOWEST]),
        (append_own, OFFSETS_TOPIC, [LOWEST]),
        (end_transaction, "t", [LOWEST]),
    ],
)
def test_R12_a_follower_takes_what_its_leader_has_let_in(write, topic, refused_at):
    found = []
    for free in LEVELS:
        room = DiskRoom("/data")
        source = leader()
        following = partition(room=room, name=TopicPartition(topic, 0))
        following.become_follower(image(leader=SECOND))
        write_transaction(source)
        copy(source, following)
        write(source)
        set_free(room, free)
        if is_refused(lambda target, source=source: copy(source, target), following):
            found.append(free)
            set_free(room, AMPLE)
            assert not is_refused(lambda target, source=source: copy(source, target), following)
        assert content(following) == content(source)
    assert found == refused_at


def test_R12_a_marker_among_records_does_not_let_a_follower_copy_them():
    room = DiskRoom("/data")
    source, following = leader(), partition(room=room)
    following.become_follower(image(leader=SECOND))
    write_transaction(source)
    copy(source, following)
    end_transaction(source)
    append(source)
    set_free(room, LOWER)
    assert is_refused(lambda target: copy(source, target), following)
