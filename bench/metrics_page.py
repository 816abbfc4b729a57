"""Reads the broker's own metrics: the histogram of event loop stalls, requests answered."""

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
    "parse_sum",
    "requests_answered",
]

Buckets = dict[float, float]
"""Upper bound in seconds -> number of observations up to it."""

LOOP_STALL = "tidemill_loop_stall_seconds"
REQUESTS = "tidemill_requests_total"
_TIMEOUT_S = 10


def loop_stalls(metrics: Address) -> Buckets:
    """How late the broker's event loop was, since its start."""
    return parse_buckets(_page(metrics), LOOP_STALL)


def requests_answered(metrics: Address) -> float:
    """Requests of every API, since the broker's start."""
    return parse_sum(_page(metrics), REQUESTS)


def _page(metrics: Address) -> str:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=_TIMEOUT_S) as page:
        text: str = page.read().decode()
    return text


def parse_buckets(page: str, metric: str) -> Buckets:
    """One histogram of a page in Prometheus' text format."""
    found = re.findall(rf'^{metric}_bucket{{le="([^"]+)"}} (\S+)$', page, re.M)
    return {float(bound): float(count) for bound, count in found}


def parse_sum(page: str, metric: str) -> float:
    """One counter of such a page, summed over its labels."""
    return sum(map(float, re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", page, re.M)))


def observations(buckets: Buckets) -> float:
    return max(buckets.values(), default=0)


def buckets_sum(one: Buckets, other: Buckets) -> Buckets:
    """The sum of two histograms with the same buckets; one may be empty."""
    return {bound: one.get(bound, 0) + other.get(bound, 0) for bound in one | other}


def buckets_between(before: Buckets, after: Buckets) -> Buckets:
    """The observations between `before` and `after`."""
    return {bound: count - before.get(bound, 0) for bound, count in after.items()}
