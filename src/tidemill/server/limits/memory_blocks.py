"""Blocks of memory that return to the kernel as a whole when they are freed.

The C library cuts small blocks from a heap. Where blocks of many sizes come and go, a heap has
holes, and the process takes more memory than its blocks have. A large block is therefore an
anonymous mapping. A small one is not: mappings are whole pages, and a process may have 65,530.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from tidemill.core.limits import KIB

__all__ = ["Block", "cost_of", "make_block"]

MAPPED_BYTES_MIN: Final = 64 * KIB

Block = bytearray | mmap


def make_block(size: int) -> Block:
    """A block of `size` bytes, a power of two or whole pages."""
    if size < MAPPED_BYTES_MIN:
        return bytearray(size)
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def cost_of(size: int) -> int:
    """What a block costs the process at most.

    If it grew to this size in powers of two, the heap may have kept the smaller blocks as holes;
    together they are smaller than the block.
    """
    return size if size >= MAPPED_BYTES_MIN else 2 * size
