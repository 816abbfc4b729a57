"""No broker outlives the supervisor that started it, however that one ends.

A broker that went on alone would hold ports and directories, and nobody would start it again. The
kernel ends it: PR_SET_PDEATHSIG with SIGKILL. A pipe whose end the broker watches would need an
event loop that turns, and a clean stop takes up to ten seconds in which the next supervisor finds
the ports in use. A killed broker loses nothing that it has acknowledged.

The broker asks for the signal itself, not code between fork and exec, so it may have lost its
parent by then: it compares the parent's id afterwards. The signal comes when the *thread* ends that
started the broker; the supervisor starts them in its main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """From now on this process ends with its parent; it ends at once if that is gone already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl: cannot tie this process to its parent")
    if os.getppid() != parent_pid:
        raise SystemExit(1)
