"""The broker's counters: plain integers that become text only when the metrics page is read. Pure.

A request pays one addition and one list index for its metrics. Labels come from closed sets (API
names, error names), never from a client (S38).
"""

from __future__ import annotations

from typing import final

__all__ = ["ApiCounters", "Histogram", "Telemetry"]


@final
class Histogram:
    """Latencies in buckets of doubling size: bucket n holds values below 2**n microseconds."""

    BUCKETS = 27
    __slots__ = ("buckets", "count", "total_us")

    def __init__(self) -> None:
        self.buckets = [0] * self.BUCKETS
        self.count = 0
        self.total_us = 0

    def observe(self, seconds: float) -> None:
        micros = int(seconds * 1e6)
        index = micros.bit_length()
        self.buckets[index if index < self.BUCKETS else self.BUCKETS - 1] += 1
        self.count += 1
        self.total_us += micros

    def quantile_us(self, share: float) -> int:
        """An upper bound of the given quantile (0..1), as exact as the buckets are."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted and seen:
                return 1 << index
        return 0


@final
class ApiCounters:
    """The requests of one API: how many, how many failed, how long they took."""

    __slots__ = ("errors", "latency", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.latency = Histogram()


@final
class Telemetry:
    """Every counter of one broker."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiCounters] = {}
        self.error_codes: dict[int, int] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_closed_by_fault = 0
        self.records_appended = 0
        self.batches_appended = 0
        self.bytes_appended = 0
        self.duplicates_recognised = 0
        self.verifications_refused = 0
        self.readers_sent_on = 0
        self.follower_read_bytes = 0
        self.flush_rounds = 0
        self.flush_failures = 0
        self.flush_latency = Histogram()
        self.journal_rounds = 0
        self.journal_bytes = 0
        self.journal_laps = 0
        self.disk_free_bytes = 0
        self.disk_refuses_records = False
        self.cleanings = 0
        self.cleaning_failures = 0
        self.cleaned_bytes = 0
        self.cleaned_segments = 0
        self.dirtiest_log_percent = 0
        self.damage_found = 0
        self.damage_mended = 0
        self.damage_given_up = 0
        self.holds_released = 0
        self.holds_carried = 0
        self.hold_lateness = Histogram()
        self.loop_stall = Histogram()
        self.unhandled_errors = 0

    def api(self, api_key: int) -> ApiCounters:
        """The counters of one API; keys come from the handler table, so the map is bounded."""
        counters = self.apis.get(api_key)
        if counters is None:
            counters = self.apis[api_key] = ApiCounters()
        return counters

    def count_error(self, code: int) -> None:
        self.error_codes[code] = self.error_codes.get(code, 0) + 1
