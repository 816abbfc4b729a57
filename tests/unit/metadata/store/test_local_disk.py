from __future__ import annotations

import pytest

from tidemill.metadata.store import local_disk
from tidemill.metadata.store.local_disk import file_system_type, try_find_foreign

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /srv rw shared:9 - nfs4 server:/ rw
31 30 8:2 / /srv/disk rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\\040blank rw - fuse.sshfs host:/ rw
33 22 0:42 / /over rw - tmpfs tmpfs rw
34 33 0:43 / /over rw - 9p share rw
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", "ext4"),
        ("/data", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/data", "nfs4"),
        ("/srv/disk/data", "xfs"),
        ("/srv/diskless", "nfs4"),
        ("/mnt/with blank/x", "fuse.sshfs"),
        ("/over/x", "9p"),
    ],
)
def test_a_path_is_on_the_mount_with_the_longest_name_above_it(path, found):
    assert file_system_type(path, MOUNTS.splitlines()) == found


def test_a_file_system_that_several_hosts_can_have_is_found(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(local_disk, "_MOUNTS", str(mounts))
    for kind, foreign in (("ext4", False), ("overlay", False), ("nfs", True), ("fuse.s3fs", True)):
        mounts.write_text(f"22 1 8:1 / / rw - {kind} x rw\n")
        assert try_find_foreign(str(tmp_path)) == (kind if foreign else None)
    mounts.unlink()
    assert try_find_foreign(str(tmp_path)) is None
