"""A disk that one host or another has: an ext4 image, attached in mount namespaces by a test.

    disk = SharedDisk(tmp_path)
    host = StorageHost(tmp_path / "a")
    host.attach(disk.image)
    BrokerProcess(host.mount / "data", command=(*host.prefix, *TIDEMILL))
    host.fill_disk()    # ENOSPC, until host.free_disk()
    host.lose_disk()    # everything fails from now on, and what was not synced is lost

Needs root: loop devices cannot be had in a user namespace. A namespace is gone with its host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, final

__all__ = ["SharedDisk", "StorageHost", "why_not_here"]

_TOOLS: Final = ("unshare", "nsenter", "mkfs.ext4", "mount", "umount")
_HOST: Final = ("unshare", "--mount", "--propagation", "private")
_IMAGE_BYTES: Final = 512 << 20
_FILLER: Final = "filler"
_SHUT_DOWN: Final = """
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
"""


@final
class SharedDisk:
    """The storage: what hosts have attached, and nothing of what they only have in memory."""

    def __init__(self, folder: Path, size_bytes: int = _IMAGE_BYTES) -> None:
        self.image = folder / "disk.img"
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", str(self.image))

    def fence(self) -> None:
        """Whoever has attached it keeps a copy that nobody reads any more."""
        copy = self.image.with_suffix(".fenced")
        _run("cp", "--sparse=always", str(self.image), str(copy))
        copy.rename(self.image)


@final
class StorageHost:
    """A mount namespace. A process that does nothing keeps it."""

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "disk"
        """Where the disk is, for the programs of this host."""
        self.mount.mkdir(parents=True)
        self._keeper = subprocess.Popen(  # says a line once the namespace is there
            [*_HOST, "sh", "-c", "echo ready; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        self.prefix = ("nsenter", "--target", str(self._keeper.pid), "--mount", "--")
        """Before a command: it runs on this host."""

    def attach(self, image: Path) -> None:
        self._run("mount", "-o", "loop", str(image), str(self.mount))

    def attach_that_of(self, other: StorageHost) -> None:
        """Both have the same file system at the same time, with its locks."""
        found = subprocess.run(
            [*other.prefix, "findmnt", "--noheadings", "--output", "SOURCE", str(other.mount)],
            capture_output=True,
            text=True,
            check=True,
        )
        self._run("mount", found.stdout.strip(), str(self.mount))

    def write(self, name: str, text: str) -> bool:
        """Write a file without syncing it; whether that worked."""
        script = 'printf %s "$2" > "$1"'
        command = ["sh", "-c", script, "sh", str(self.mount / name), text]
        ran = subprocess.run([*self.prefix, *command], capture_output=True, check=False)
        return ran.returncode == 0

    def read(self, name: str) -> str:
        """Empty if there is no such file."""
        command = [*self.prefix, "cat", str(self.mount / name)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def fill_disk(self) -> None:
        """No block is left until `free_disk`."""
        filler = [*self.prefix, "dd", "if=/dev/zero", f"of={self.mount / _FILLER}", "bs=4096"]
        filled = subprocess.run(filler, capture_output=True, text=True, check=False)
        assert "No space left" in filled.stderr, filled.stderr

    def free_disk(self) -> None:
        self._run("rm", str(self.mount / _FILLER))

    def lose_disk(self) -> None:
        """Every access fails from now on; what was not synced never gets to the disk."""
        self._run(sys.executable, "-c", _SHUT_DOWN, str(self.mount))

    def detach(self) -> None:
        self._run("umount", str(self.mount))

    def remove(self) -> None:
        """Processes on it must have ended."""
        self._keeper.kill()
        self._keeper.communicate()

    def _run(self, *command: str) -> None:
        _run(*self.prefix, *command)


def why_not_here() -> str:
    """What this machine lacks, in a line; empty if disks can be attached."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "shared disks need Linux and root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"shared disks need {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as name:
        return _trial(Path(name))


def _trial(folder: Path) -> str:
    try:
        host = StorageHost(folder / "host")
        try:
            host.attach(SharedDisk(folder).image)
            host.lose_disk()
            host.detach()
        finally:
            host.remove()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no disk can be attached here: {error}"
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
