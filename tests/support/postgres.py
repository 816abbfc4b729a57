"""A PostgreSQL server of its own for tests, from Debian's package, on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

START_S = 60
SYSTEM_USER = "postgres"


def programs() -> Path | None:
    """The folder with `initdb`; None if there is no PostgreSQL here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return None if path is None else Path(path).parent


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a server that runs while the block does; only this machine reaches it."""
    with TemporaryDirectory(prefix="tidemill-postgres-") as folder:
        server = _Server(Path(folder))
        server.start()
        try:
            yield server.address
        finally:
            server.stop()


class _Server:
    def __init__(self, folder: Path) -> None:
        found = programs()
        assert found is not None, "tools/setup_env database installs it on Debian"
        self._programs = found
        # The server does not run as root: a user of its own has to reach its folder.
        self._user = SYSTEM_USER if os.geteuid() == 0 else None
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"postgresql://tests@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        data = self._folder / "data"
        data.mkdir(parents=True)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for folder in (data, self._folder):
                os.chown(folder, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", str(data), "-U", "tests", "-A", "trust", "-N")
        options = f"-p {self._port} -h 127.0.0.1 -k '' -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(data), "-o", options, "-l", log, "-w", "-t", "60", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command,
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, f"{program} failed"
