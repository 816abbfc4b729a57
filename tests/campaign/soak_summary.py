"""What a soak has shown, as figures and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import linear_regression
from typing import Any, Final, final

__all__ = ["SoakSummary", "quantile_ms"]

JUDGED_FROM_S: Final = 3600.0
"""A shorter run says nothing of growth: caches fill for some minutes."""
GROWTH_MB_PER_HOUR_MAX: Final = 20.0
TREND_SAMPLES_MIN: Final = 4


@final
@dataclass(slots=True)
class SoakSummary:
    """Figures of a run, or of a run so far."""

    rate: float
    is_whole: bool = False
    """It was not ended early."""
    seconds: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    read: dict[str, int] = field(default_factory=dict)
    """By group."""
    committed: int = 0
    aborted: int = 0
    records_deleted: int = 0
    ack_ms: dict[str, float | None] = field(default_factory=dict)
    """From the send to the acknowledgement, with what the client waits to fill a batch."""
    brokers: list[dict[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """What happened by itself."""
    violations: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def sum_up_brokers(self) -> None:
        """Each broker at the start, every hour and at the end."""
        if not self.samples:
            return
        self.seconds = self.samples[-1]["seconds"]
        count = len(self.samples[0]["brokers"])
        self.brokers = [self._of_broker(number) for number in range(count)]

    def growth(self) -> Iterator[str]:
        """I36: memory that grows as fast in the second half of a long run as leaks do."""
        for number, broker in enumerate(self.brokers):
            grows = broker["rss_anon_mb_per_hour"]
            is_judged = self.seconds >= JUDGED_FROM_S and grows is not None
            if is_judged and grows > GROWTH_MB_PER_HOUR_MAX:
                yield f"I36: the memory of broker {number} grows by {grows} MB an hour"

    def print(self) -> None:
        """The table; one line per broker."""
        for key in ("is_whole", "seconds", "sent", "acknowledged", "read", "committed", "aborted"):
            print(f"{key.replace('_', ' '):24} {getattr(self, key)}")
        print(f"{'records deleted':24} {self.records_deleted}")
        print(f"{'ack ms':24} {self.ack_ms}")
        for number, broker in enumerate(self.brokers):
            print(f"broker {number}")
            for key, value in broker.items():
                print(f"  {key.replace('_', ' '):22} {value}")
        for name, lines in (("event", self.events), ("BROKEN", self.violations)):
            for line in lines:
                print(f"{name}: {line}")
        print(f"{len(self.events)} events, {len(self.violations)} promises broken")

    def _of_broker(self, number: int) -> dict[str, Any]:
        seen = [(one["seconds"], one["brokers"][number]) for one in self.samples]
        first, last = seen[0][1], seen[-1][1]
        cpu_s = last["cpu_s"] - first["cpu_s"]
        return {
            "rss_anon_mb_start": first["rss_anon_mb"],
            "rss_anon_mb_hourly": list(_hourly(seen)),
            "rss_anon_mb_end": last["rss_anon_mb"],
            "rss_anon_mb_most": max(one["rss_anon_mb"] for _, one in seen),
            "rss_anon_mb_per_hour": self._trend(seen),
            "descriptors_start": first["descriptors"],
            "descriptors_end": last["descriptors"],
            "descriptors_most": max(one["descriptors"] for _, one in seen),
            "log_mb_most": max(one["log_mb"] for _, one in seen),
            "cores": round(cpu_s / self.seconds, 3) if self.seconds else None,
            "stall_s_p999": last["stall_s_p999"],
            "stalls_over_131_ms": last["stalls_over_131_ms"] - first["stalls_over_131_ms"],
            "rebalances": last["rebalances"] - first["rebalances"],
        }

    def _trend(self, seen: list[tuple[float, dict[str, Any]]]) -> float | None:
        """The slope of a line through the second half."""
        half = [one for one in seen if one[0] >= self.seconds / 2]
        if len(half) < TREND_SAMPLES_MIN:
            return None
        line = linear_regression(
            [seconds / 3600 for seconds, _ in half], [one["rss_anon_mb"] for _, one in half]
        )
        return round(line.slope, 2)


def _hourly(seen: list[tuple[float, dict[str, Any]]]) -> Iterator[float]:
    hour = 1
    for seconds, broker in seen:
        if seconds >= 3600 * hour:
            yield broker["rss_anon_mb"]
            hour += 1


def quantile_ms(tenths: Counter[int], share: float) -> float | None:
    """The value that `share` of all do not exceed; None if there are none."""
    wanted, passed = share * tenths.total(), 0
    for value in sorted(tenths):
        passed += tenths[value]
        if passed >= wanted:
            return value / 10
    return None
