"""Stand-bys on a disk that is taken from one host to another, and on file systems without locks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaign.shared_storage import StorageRun
from tests.support.clients import DEADLINE_S
from tests.support.storage_lab import why_not_here
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess, up_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CASES = 3


def test_F85_I1_a_standby_on_the_disk_of_a_dead_host_has_all_that_was_acknowledged(tmp_path):
    if reason := why_not_here():
        pytest.skip(reason)
    summary = StorageRun(tmp_path).run()
    assert summary.violations == []
    assert len(summary.takeover_s) == CASES
    assert summary.acknowledged > 0


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Path]:
    """A directory in a file system in user space."""
    if shutil.which("bindfs") is None:
        pytest.skip("needs bindfs")
    (tmp_path / "behind").mkdir()
    mount = tmp_path / "mount"
    mount.mkdir()
    tried = subprocess.run(
        ["bindfs", str(tmp_path / "behind"), str(mount)], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"bindfs cannot mount: {tried.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_F85_several_brokers_are_refused_where_locks_may_mean_nothing(fuse):
    first = BrokerProcess(fuse / "data").start()
    try:
        settings = [f"tidemill.store.file={fuse / 'data' / 'coord.db'}", "node.id=1"]
        second = subprocess.run(
            up_command(TIDEMILL, fuse / "other", "127.0.0.1:0", settings),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    finally:
        assert first.stop() == 0
    assert "one broker can use it, not several" in first.log_path.read_text()
    assert second.returncode == 2
    assert second.stderr.strip().splitlines()[-1] == (
        f"error: {fuse}/data/coord.db is in use by another program; on a file system of type fuse "
        "one broker can use it, not several"
    )


def test_F85_a_standby_says_that_locks_may_mean_nothing_here(fuse):
    BrokerProcess(fuse / "data").start().stop()
    standby = BrokerProcess(fuse / "data", flags=["--standby"]).start()
    standby.stop()
    assert "locks must hold between hosts" in standby.log_path.read_text()
