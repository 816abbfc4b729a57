"""A disk whose syncs fail below a broker that a test starts; needs gcc."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, final

from tidemill.testing.broker_process import TIDEMILL

__all__ = ["SickDisk"]

_FAILING_SYNCS: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int sync_or_fail(const char *name, int descriptor) {
    if (access(getenv("SICK"), F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(descriptor);
}

int fdatasync(int descriptor) { return sync_or_fail("fdatasync", descriptor); }
int fsync(int descriptor) { return sync_or_fail("fsync", descriptor); }
"""


@final
class SickDisk:
    """A library that makes each sync of a process fail, from a moment on."""

    def __init__(self, folder: Path) -> None:
        self._sign = folder / "sick"
        source, library = folder / "sick.c", folder / "sick.so"
        source.write_text(_FAILING_SYNCS)
        build = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(build, check=True, capture_output=True)
        self.command = ("env", f"LD_PRELOAD={library}", f"SICK={self._sign}", *TIDEMILL)
        """Starts a broker on it."""

    def fail(self) -> None:
        self._sign.touch()

    def mend(self) -> None:
        self._sign.unlink()
