"""Memory that nobody has used since the machine started, touched once before anything is measured.

A host gives a virtual machine its memory at the first touch, page by page. On such a machine a
write of a gigabyte into the page cache took 1.8 s of CPU on fresh pages and 0.19 s on used ones, so
a rate told mostly which pages the kernel happened to give. Both sides of a row pay the same for a
page, so the side that does less work of its own loses the larger share of its rate.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

__all__ = ["SHARE", "free_bytes", "touch"]

SHARE = 0.85
"""Of what is free: the rest is left to whoever needs memory meanwhile."""
SECONDS_MAX = 240.0
STEP_BYTES = 64 << 20
MEMORY_FACTS = Path("/proc/meminfo")


def free_bytes(facts: Path = MEMORY_FACTS) -> int:
    """What the kernel calls free: in use by nothing, not even as a cache; 0 where nobody tells."""
    if not facts.exists():
        return 0
    sizes = dict(line.split(":", 1) for line in facts.read_text().splitlines())
    return int(sizes.get("MemFree", "0 kB").split()[0]) << 10


def touch(size_bytes: int, *, seconds_max: float = SECONDS_MAX) -> int:
    """Write to each page of so much memory, and give it back; how much was touched in the time."""
    whole = size_bytes // STEP_BYTES * STEP_BYTES
    if not whole:
        return 0
    began = time.monotonic()
    touched = 0
    one_each = bytes(STEP_BYTES // mmap.PAGESIZE)
    with mmap.mmap(-1, whole) as memory:
        while touched < whole and time.monotonic() - began < seconds_max:
            memory[touched : touched + STEP_BYTES : mmap.PAGESIZE] = one_each
            touched += STEP_BYTES
    return touched
