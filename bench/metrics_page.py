"""Reads the broker's own metrics: the histogram of event loop stalls."""

from __future__ import annotations

import re
import urllib.request

from bench.wire_client import Address

__all__ = [
    "Buckets",
    "buckets_between",
    "buckets_sum",
    "loop_stalls",
    "observations",
    "parse_buckets",
]

Buckets = dict[float, float]
"""Upper bound in seconds -> observations up to it."""

LOOP_STALL = "tidemill_loop_stall_seconds"
_TIMEOUT_S = 10


def loop_stalls(metrics: Address) -> Buckets:
    """How late the broker's event loop was, since its start."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=_TIMEOUT_S) as page:
        text: str = page.read().decode()
    return parse_buckets(text, LOOP_STALL)


def parse_buckets(page: str, metric: str) -> Buckets:
    """One histogram of a page in Prometheus' text format."""
    found = re.findall(rf'^{metric}_bucket{{le="([^"]+)"}} (\S+)$', page, re.M)
    return {float(bound): float(count) for bound, count in found}


def observations(buckets: Buckets) -> float:
    return max(buckets.values(), default=0)


def buckets_sum(one: Buckets, other: Buckets) -> Buckets:
    """Two histograms with the same buckets, or an empty one, as one."""
    return {bound: one.get(bound, 0) + other.get(bound, 0) for bound in one | other}


def buckets_between(before: Buckets, after: Buckets) -> Buckets:
    """What was observed from `before` to `after`."""
    return {bound: count - before.get(bound, 0) for bound, count in after.items()}
