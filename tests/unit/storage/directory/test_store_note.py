"""Which store a data directory belongs to."""

from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.directory_meta import claim_directory
from tidemill.storage.directory.store_note import (
    check_store,
    forget_store,
    note_store,
    try_read_store,
)
from tidemill.storage.files.disk import OsDisk


@pytest.fixture
def check(tmp_path):
    """Check the directory against a store; empty means the embedded one."""
    return lambda connect: check_store(
        OsDisk(), str(tmp_path), str(tmp_path / "logs"), connect=connect
    )


def test_a_new_directory_takes_any_store(check):
    check("")
    check("zk1:2181/tidemill")


def test_a_directory_of_the_embedded_store_is_refused_by_ZooKeeper(tmp_path, check):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta").touch()
    check("")
    with pytest.raises(UserError, match=r"cluster migrate --data-dir .* --zookeeper zk1:2181"):
        check("zk1:2181/tidemill")


def test_a_directory_of_a_ZooKeeper_is_refused_without_it_until_that_is_forgotten(tmp_path, check):
    note_store(OsDisk(), str(tmp_path), "zk1:2181/tidemill")
    assert try_read_store(OsDisk(), str(tmp_path)) == "zk1:2181/tidemill"
    check("zk9:2181/tidemill")  # servers come and go; the cluster's id is checked apart
    with pytest.raises(UserError, match="start it with --zookeeper zk1:2181/tidemill"):
        check("")
    forget_store(OsDisk(), str(tmp_path))
    forget_store(OsDisk(), str(tmp_path))
    check("")


@pytest.mark.parametrize("text", ["", "zookeeper", "etcd a:1/b", "\xff"])
def test_a_damaged_note_is_refused(tmp_path, check, text):
    (tmp_path / "store").write_text(text)
    with pytest.raises(UserError, match="is damaged"):
        check("")


@pytest.fixture
def second(tmp_path):
    """The directory of broker 1 of several; checks it against an embedded store of its own."""
    home = tmp_path / "broker-1"
    (home / "logs").mkdir(parents=True)
    claim_directory(OsDisk(), str(home / "logs"), cluster_id="abc", broker_id=1, rng=SeededRng(0))
    return lambda store: check_store(
        OsDisk(), str(home), str(home / "logs"), connect="", store_path=str(store)
    )


def test_logs_without_their_store_are_refused_before_an_empty_one_is_made(tmp_path, second):
    own = tmp_path / "broker-1" / "coord.db"
    with pytest.raises(UserError, match=r"cluster abc, but its store .*coord.db is gone: put it"):
        second(own)
    own.touch()
    second(own)


def test_the_directory_of_one_of_several_brokers_is_recognised(tmp_path, second):
    (tmp_path / "coord.db").touch()
    second(tmp_path / "coord.db")
    with pytest.raises(UserError, match=rf"`tidemill up --brokers 2 --data-dir {tmp_path}`"):
        second(tmp_path / "broker-1" / "coord.db")
