"""How one total, `memory.bytes`, is divided among the keys of the pools that share it. Pure.

A pool whose key is set keeps that value. The others divide what is left in the ratio of their
defaults. The largest request and the largest fetch follow, unless they are set too: a pool must
hold them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.errors import UserError
from tidemill.core.limits import MIB, UNPOOLED_MEMORY_BYTES

__all__ = ["FETCH_BYTES_MAX_DEFAULT", "REQUEST_BYTES_MAX_DEFAULT", "memory_parts"]

REQUESTS = "request.memory.bytes"
RESPONSES = "response.memory.bytes"
SHARES = {REQUESTS: 2, RESPONSES: 2, "log.cleaner.dedupe.buffer.size": 1}
"""The keys of the pools, and what each gets of the total compared with the others."""
PART_BYTES_MIN = 1 * MIB
REQUEST_BYTES_MAX_DEFAULT = 100 * MIB
FETCH_BYTES_MAX_DEFAULT = 55 * MIB


def memory_parts(total_bytes: int, given: Mapping[str, int]) -> dict[str, int]:
    """The values of the pools and of what they must hold; `given` are those that the user set.

    UserError names the keys if they need more than the total.
    """
    pools = {key: given[key] for key in SHARES if key in given}
    open_shares = sum(share for key, share in SHARES.items() if key not in pools)
    left = total_bytes - UNPOOLED_MEMORY_BYTES - sum(pools.values())
    if left < PART_BYTES_MIN * open_shares:
        raise _too_little(total_bytes, pools, left_min=PART_BYTES_MIN * open_shares)
    parts = {
        key: pools.get(key, left * share // max(open_shares, 1)) for key, share in SHARES.items()
    }
    return {
        **parts,
        "socket.request.max.bytes": min(REQUEST_BYTES_MAX_DEFAULT, parts[REQUESTS] // 2),
        "fetch.max.bytes": min(FETCH_BYTES_MAX_DEFAULT, parts[RESPONSES]),
    }


def _too_little(total_bytes: int, pools: Mapping[str, int], *, left_min: int) -> UserError:
    needed = [f"{key}={value}" for key, value in pools.items()]
    needed.append(f"{UNPOOLED_MEMORY_BYTES} bytes for decompression and the heap")
    others = ", ".join(key for key in SHARES if key not in pools)
    if others:
        needed.append(f"at least {left_min} for {others}")
    return UserError(f"memory.bytes={total_bytes} is less than {' + '.join(needed)}")
