"""Settings of Python and the C library for a broker's process.

Garbage collection: requests leave hardly any cycles, so the young generation may grow larger before
it is collected, and objects made at start-up are never examined again (`gc.freeze`).

Memory: the C library returns blocks of more than 128 KiB to the kernel at once and gets new ones
for the next request; these cost a page fault per 4 KiB. Measured: decompressing a batch of 1 MB
takes 0.57 ms into new pages and 0.09 ms into kept ones. So blocks of up to 8 MiB come from the
heap, and the process keeps up to 64 MiB of free heap. Larger ones, such as a batch that
decompresses to 32 MiB, return to the kernel at once: in the heap, one small block above them could
keep them for good. All threads share one heap: otherwise each would keep its own.

Threads: one that waits for the interpreter's lock asks for it after a switch interval without a
release. A busy loop releases it at every system call and takes it back first, so with Python's 5 ms
a read in a thread waited for up to 1.2 s, and a thread that computes made the loop 5 ms late. With
an interval shorter than a turn of the loop it was 9 ms and 0.4 ms.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import suppress

__all__ = ["freeze_start_up", "raise_descriptor_limit", "tune_process"]

YOUNG_OBJECTS_MAX = 50_000
SWITCH_INTERVAL_S = 0.0002
DESCRIPTORS_WANTED = 1_048_576
"""More than any configuration needs; in practice the hard limit decides."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_HEAP_BLOCK_BYTES_MAX = 8 * 1024 * 1024
_HEAP_KEPT_BYTES = 64 * 1024 * 1024


def tune_process() -> None:
    """Call before anything large is allocated."""
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library: its defaults are fine
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES_MAX)
            libc.mallopt(_M_ARENA_MAX, 1)
            libc.mallopt(_M_TRIM_THRESHOLD, _HEAP_KEPT_BYTES)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files, as a process may (S13); the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = DESCRIPTORS_WANTED if unlimited else min(hard, DESCRIPTORS_WANTED)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def freeze_start_up() -> None:
    """Call when the broker serves: the objects that exist now are never freed."""
    gc.collect()
    gc.freeze()
