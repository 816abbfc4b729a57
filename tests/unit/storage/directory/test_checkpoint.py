"""Checkpoints: two generations, a mark for a clean shutdown, caps for truncated logs."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.checkpoint import (
    CHECKPOINT_NAMES,
    CLEAN_NAME,
    Checkpoint,
    CheckpointEntry,
    mark_clean,
    read_newest,
    try_read_cap,
    try_take_clean_mark,
    write_cap,
    write_generation,
)
from tidemill.storage.files.checked_file import DamagedFile, encode_checked
from tidemill.testing.sim.disk import SimDisk

TOPIC_ID = TopicId(UUID(int=77))


def checkpoint(sequence: int, recovery_point: int = 10) -> Checkpoint:
    entry = CheckpointEntry(TOPIC_ID, recovery_point, 3, 9, 4000, 2)
    return Checkpoint(sequence, {TopicPartition("orders", 1): entry})


def test_a_checkpoint_is_read_back_as_it_was_written():
    disk = SimDisk()
    write_generation(disk, "/", checkpoint(1))
    assert read_newest(disk, "/") == checkpoint(1)


def test_no_checkpoint_reads_as_an_empty_one():
    assert read_newest(SimDisk(), "/") == Checkpoint()


def test_the_newer_of_two_generations_counts():
    disk = SimDisk()
    for sequence in (1, 2, 3):
        write_generation(disk, "/", checkpoint(sequence))
    assert disk.list_names("/") == list(CHECKPOINT_NAMES)
    assert read_newest(disk, "/").sequence == 3


def test_a_damaged_generation_leaves_the_one_before():
    disk = SimDisk()
    for sequence in (1, 2):
        write_generation(disk, "/", checkpoint(sequence))
    disk.flip_bit(f"/{CHECKPOINT_NAMES[0]}", 30)
    assert read_newest(disk, "/").sequence == 1


def test_every_flipped_bit_of_a_checkpoint_is_detected():
    data = checkpoint(1).encode()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        with pytest.raises(DamagedFile):
            Checkpoint.decode(bytes(damaged), name="x")


@pytest.mark.parametrize("payload", [b"", b"[]", b"[1,[[1]]]", b'[1,[["a",1,"zz",1,2,3]]]', b"1"])
def test_a_payload_of_the_wrong_shape_is_damage(payload):
    with pytest.raises(DamagedFile):
        Checkpoint.decode(encode_checked(b"CKPT", 1, payload), name="x")


def test_R10_a_checkpoint_of_a_newer_version_is_refused_not_skipped():
    disk = SimDisk()
    disk.write_file_atomically(f"/{CHECKPOINT_NAMES[0]}", encode_checked(b"CKPT", 9, b"?"))
    with pytest.raises(UserError, match="version 9"):
        read_newest(disk, "/")


def test_the_clean_mark_is_read_once_and_removed_durably():
    disk = SimDisk()
    mark_clean(disk, "/", 7)
    assert try_take_clean_mark(disk, "/") == 7
    after = disk.crash(SeededRng(1))
    assert not after.exists(f"/{CLEAN_NAME}")
    assert try_take_clean_mark(after, "/") is None


def test_a_damaged_clean_mark_is_no_mark():
    disk = SimDisk()
    mark_clean(disk, "/", 7)
    disk.flip_bit(f"/{CLEAN_NAME}", 20)
    assert try_take_clean_mark(disk, "/") is None


def test_a_cap_lowers_the_checkpoints_up_to_its_sequence_and_no_later_ones():
    disk = SimDisk()
    assert try_read_cap(disk, "/", sequence=1) is None
    write_cap(disk, "/", sequence=4, offset=55)
    assert [try_read_cap(disk, "/", sequence=sequence) for sequence in (3, 4, 5)] == [55, 55, None]


def test_a_damaged_cap_invalidates_every_checkpoint():
    disk = SimDisk()
    write_cap(disk, "/", sequence=4, offset=55)
    disk.flip_bit("/recovery-cap", 20)
    assert try_read_cap(disk, "/", sequence=9) == 0
