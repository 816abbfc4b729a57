"""The owner of a directory is checked before anything in it is used."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.directory_meta import (
    DirectoryMeta,
    claim_directory,
    owning_cluster,
    try_parse_partition,
    try_read_topic_id,
    write_topic_id,
)
from tidemill.storage.files.checked_file import encode_checked
from tidemill.testing.sim.disk import SimDisk


def claim(disk: SimDisk, cluster_id: str = "c1", broker_id: int = 1) -> DirectoryMeta:
    return claim_directory(disk, "/", cluster_id=cluster_id, broker_id=broker_id, rng=SeededRng(5))


def test_a_new_directory_is_claimed_and_stays_claimed():
    disk = SimDisk()
    assert claim(disk) == claim(disk.crash(SeededRng(3)))


def test_a_directory_says_which_cluster_has_claimed_it():
    disk = SimDisk()
    assert owning_cluster(disk, "/") == ""
    claim(disk)
    assert owning_cluster(disk, "/") == "c1"


def test_S47_another_clusters_directory_is_refused_with_what_to_do():
    disk = SimDisk()
    claim(disk)
    with pytest.raises(UserError, match=r"belongs to cluster c1.*own cluster"):
        claim(disk, cluster_id="c2")


def test_S47_another_brokers_directory_is_refused_with_what_to_do():
    disk = SimDisk()
    claim(disk)
    with pytest.raises(UserError, match=r"belongs to broker 1.*own data directory"):
        claim(disk, broker_id=2)


def test_S47_a_directory_with_unknown_files_is_not_claimed():
    disk = SimDisk()
    disk.make_directories("/orders-0")
    with pytest.raises(UserError, match="orders-0"):
        claim(disk)


def test_a_first_start_that_was_cut_short_can_be_repeated():
    disk = SimDisk()
    disk.open("/.lock", create=True)
    disk.open("/meta.tmp", create=True)
    assert claim(disk).cluster_id == "c1"


def test_a_damaged_meta_file_is_refused():
    disk = SimDisk()
    claim(disk)
    disk.flip_bit("/meta", 25)
    with pytest.raises(UserError, match="damaged"):
        claim(disk)


def test_S47_a_meta_file_of_a_newer_version_is_refused():
    disk = SimDisk()
    disk.write_file_atomically("/meta", encode_checked(b"META", 2, b"{}"))
    with pytest.raises(UserError, match="version 2"):
        claim(disk)


def test_a_partition_names_its_topic():
    disk = SimDisk()
    topic_id = TopicId(UUID(int=9))
    write_topic_id(disk, "/", topic_id)
    assert try_read_topic_id(disk, "/") == topic_id


def test_a_missing_or_damaged_partition_file_names_no_topic():
    disk = SimDisk()
    assert try_read_topic_id(disk, "/") is None
    write_topic_id(disk, "/", TopicId(UUID(int=9)))
    disk.flip_bit("/partition", 18)
    assert try_read_topic_id(disk, "/") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-3", TopicPartition("orders", 3)),
        ("a-b-10", TopicPartition("a-b", 10)),
        ("orders", None),
        ("orders-", None),
        ("orders-03", None),
        ("orders--1", TopicPartition("orders-", 1)),
        ("-1", None),
        ("orders-1.deleted", None),
        ("or ders-1", None),
        ("orders-\u0661", None),
    ],
)
def test_a_directory_name_is_a_partition_only_in_its_one_spelling(name, expected):
    assert try_parse_partition(name) == expected
