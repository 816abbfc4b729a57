"""The broker's metrics as Prometheus text; `tools/reference_docs.py` lists them from here.

Rendered only on request. Labels come from closed sets: API names, error names, kinds of work (S38).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

from tidemill.core.errors import ErrorCode
from tidemill.core.telemetry import Histogram
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.server.connection.listener_resources import ListenerResources
from tidemill.server.metrics.group_metrics import Lag, count_groups, count_rebalances, measure_lag
from tidemill.server.metrics.transaction_metrics import count_transactions, measure_oldest_s
from tidemill.storage.files.disk_work import DiskLoad, DiskWork
from tidemill.wire.api_keys import API_SPECS

__all__ = ["METRICS", "Metric", "render"]

Samples = Iterator[tuple[str, float]]
"""Label text (with braces, or empty) and value."""


@final
class Scrape:
    """The sources of one rendering; values that take long to compute are computed once."""

    def __init__(self, listener: ListenerResources) -> None:
        self.listener = listener
        self.services = listener.services

    @cached_property
    def lag(self) -> Lag:
        return measure_lag(self.services)


@final
@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family: name, kind, help text, and the source of its samples."""

    name: str
    kind: str
    help: str
    samples: Callable[[Scrape], Samples]


def _one(read: Callable[[Scrape], float]) -> Callable[[Scrape], Samples]:
    def samples(scrape: Scrape) -> Samples:
        yield "", read(scrape)

    return samples


def _api_requests(scrape: Scrape) -> Samples:
    for key, counters in sorted(scrape.services.telemetry.apis.items()):
        yield f'{{api="{API_SPECS[key].name}"}}', counters.requests


def _errors(scrape: Scrape) -> Samples:
    for code, count in sorted(scrape.services.telemetry.error_codes.items()):
        yield f'{{code="{ErrorCode(code).name}"}}', count


def _api_latency(scrape: Scrape) -> Samples:
    for key, counters in sorted(scrape.services.telemetry.apis.items()):
        yield from _buckets(counters.latency, f'api="{API_SPECS[key].name}",')


def _buckets(histogram: Histogram, labels: str = "") -> Samples:
    """Cumulative buckets in seconds, then sum and count under their own suffixes."""
    seen = 0
    for index, count in enumerate(histogram.buckets[:-1]):
        seen += count
        yield f'_bucket{{{labels}le="{(1 << index) / 1e6}"}}', seen
    yield f'_bucket{{{labels}le="+Inf"}}', histogram.count
    rest = "{" + labels.rstrip(",") + "}" if labels else ""
    yield f"_sum{rest}", histogram.total_us / 1e6
    yield f"_count{rest}", histogram.count


def _groups(scrape: Scrape) -> Samples:
    for name, count in sorted(count_groups(scrape.services).items()):
        yield f'{{state="{name}"}}', count


def _transactions(scrape: Scrape) -> Samples:
    for name, count in sorted(count_transactions(scrape.services).items()):
        yield f'{{state="{name}"}}', count


def _disk(read: Callable[[DiskLoad], int]) -> Callable[[Scrape], Samples]:
    def samples(scrape: Scrape) -> Samples:
        for work in DiskWork:
            yield f'{{work="{work.value}"}}', read(scrape.services.disk.load_of(work))

    return samples


def _log_bytes(scrape: Scrape) -> float:
    return sum(partition.log.size_bytes for partition in scrape.services.replicas)


def _led_holds(scrape: Scrape) -> Iterator[PartitionHolds]:
    for partition in scrape.services.replicas:
        if partition.is_leader and partition.holds is not None:
            yield partition.holds


METRICS: tuple[Metric, ...] = (
    Metric("tidemill_requests_total", "counter", "Requests answered, by API.", _api_requests),
    Metric(
        "tidemill_request_seconds",
        "histogram",
        "From a request's last byte to its answer, waiting included.",
        _api_latency,
    ),
    Metric("tidemill_errors_total", "counter", "Error codes in answers, by code.", _errors),
    Metric(
        "tidemill_holds",
        "gauge",
        "Records that are held until they are due, in partitions led here.",
        _one(lambda s: sum(holds.book.pending for holds in _led_holds(s))),
    ),
    Metric(
        "tidemill_hold_bytes",
        "gauge",
        "Their size, uncompressed.",
        _one(lambda s: sum(holds.book.pending_bytes for holds in _led_holds(s))),
    ),
    Metric(
        "tidemill_holds_released_total",
        "counter",
        "Held records that were delivered.",
        _one(lambda s: s.services.telemetry.holds_released),
    ),
    Metric(
        "tidemill_holds_carried_total",
        "counter",
        "Copies of held records that were written so that old files can go.",
        _one(lambda s: s.services.telemetry.holds_carried),
    ),
    Metric(
        "tidemill_hold_lateness_seconds",
        "histogram",
        "From the time when a held record was due to its delivery.",
        lambda s: _buckets(s.services.telemetry.hold_lateness),
    ),
    Metric(
        "tidemill_hold_clock_steps_total",
        "counter",
        "Times that the wall clock was suddenly ahead, and not believed at once.",
        _one(lambda s: s.services.replicas.hold_clock_steps),
    ),
    Metric(
        "tidemill_bytes_in_total",
        "counter",
        "Bytes received from clients.",
        _one(lambda s: s.services.telemetry.bytes_in),
    ),
    Metric(
        "tidemill_bytes_out_total",
        "counter",
        "Bytes handed to clients' sockets.",
        _one(lambda s: s.services.telemetry.bytes_out),
    ),
    Metric(
        "tidemill_connections",
        "gauge",
        "Open client connections.",
        _one(lambda s: len(s.listener.admission.connections)),
    ),
    Metric(
        "tidemill_connections_refused_total",
        "counter",
        "Connections refused: too many, or too often from one address.",
        _one(lambda s: s.services.telemetry.connections_refused),
    ),
    Metric(
        "tidemill_connections_closed_by_fault_total",
        "counter",
        "Connections closed because the client broke the protocol.",
        _one(lambda s: s.services.telemetry.connections_closed_by_fault),
    ),
    Metric(
        "tidemill_request_memory_bytes",
        "gauge",
        "Memory held by requests that have arrived in part, or that take several steps.",
        _one(lambda s: s.listener.request_memory.used_bytes),
    ),
    Metric(
        "tidemill_response_memory_bytes",
        "gauge",
        "Memory held by answers that clients have not read.",
        _one(lambda s: s.services.response_memory.used_bytes),
    ),
    Metric(
        "tidemill_parked_fetches",
        "gauge",
        "Fetches that wait for more data.",
        _one(lambda s: len(s.services.parked)),
    ),
    Metric(
        "tidemill_records_appended_total",
        "counter",
        "Records appended by producers.",
        _one(lambda s: s.services.telemetry.records_appended),
    ),
    Metric(
        "tidemill_batches_appended_total",
        "counter",
        "Record batches appended by producers.",
        _one(lambda s: s.services.telemetry.batches_appended),
    ),
    Metric(
        "tidemill_duplicates_total",
        "counter",
        "Retried batches recognised and not appended again.",
        _one(lambda s: s.services.telemetry.duplicates_recognised),
    ),
    Metric(
        "tidemill_readers_sent_on_total",
        "counter",
        "Times that a leader has sent a reader to a replica in its rack, once per partition.",
        _one(lambda s: s.services.telemetry.readers_sent_on),
    ),
    Metric(
        "tidemill_follower_read_bytes_total",
        "counter",
        "Bytes of records found for consumers in partitions that other brokers lead.",
        _one(lambda s: s.services.telemetry.follower_read_bytes),
    ),
    Metric(
        "tidemill_partitions",
        "gauge",
        "Partitions on this broker.",
        _one(lambda s: len(s.services.replicas)),
    ),
    Metric("tidemill_log_bytes", "gauge", "Bytes in all logs of this broker.", _one(_log_bytes)),
    Metric("tidemill_groups", "gauge", "Consumer groups coordinated here, by state.", _groups),
    Metric(
        "tidemill_group_rebalances_total",
        "counter",
        "Rebalances of the groups coordinated here.",
        _one(lambda s: count_rebalances(s.services)),
    ),
    Metric(
        "tidemill_group_lag_records_max",
        "gauge",
        "The largest lag of a group in one partition, both on this broker; 0 if there are too many "
        "offsets to compare.",
        _one(lambda s: s.lag.records_max),
    ),
    Metric(
        "tidemill_group_lag_records_sum",
        "gauge",
        "The sum of these lags over groups and partitions.",
        _one(lambda s: s.lag.records_sum),
    ),
    Metric(
        "tidemill_transactions",
        "gauge",
        "Transactional ids coordinated here, by the state of their newest transaction.",
        _transactions,
    ),
    Metric(
        "tidemill_transaction_oldest_seconds",
        "gauge",
        "The age of the oldest transaction coordinated here that is not complete; 0 if all are.",
        _one(lambda s: measure_oldest_s(s.services)),
    ),
    Metric(
        "tidemill_transaction_markers_pending",
        "gauge",
        "Markers of decided transactions that partitions have not acknowledged.",
        _one(lambda s: s.services.marker_sender.markers_left),
    ),
    Metric(
        "tidemill_transaction_verifications_refused_total",
        "counter",
        "Partitions and groups that a coordinator did not confirm as part of an open transaction.",
        _one(lambda s: s.services.telemetry.verifications_refused),
    ),
    Metric(
        "tidemill_cleanings_total",
        "counter",
        "Compactions of a log that succeeded.",
        _one(lambda s: s.services.telemetry.cleanings),
    ),
    Metric(
        "tidemill_cleaning_failures_total",
        "counter",
        "Compactions that failed: damage, a full disk or a disk fault.",
        _one(lambda s: s.services.telemetry.cleaning_failures),
    ),
    Metric(
        "tidemill_damage_found_total",
        "counter",
        "Ranges of offsets that were found damaged at rest.",
        _one(lambda s: s.services.telemetry.damage_found),
    ),
    Metric(
        "tidemill_damage_mended_total",
        "counter",
        "Damaged ranges that were replaced by the batches of another replica.",
        _one(lambda s: s.services.telemetry.damage_mended),
    ),
    Metric(
        "tidemill_damage_given_up_total",
        "counter",
        "Damaged ranges that no replica has: their records are lost.",
        _one(lambda s: s.services.telemetry.damage_given_up),
    ),
    Metric(
        "tidemill_cleaned_bytes_total",
        "counter",
        "Bytes that compaction read and wrote.",
        _one(lambda s: s.services.telemetry.cleaned_bytes),
    ),
    Metric(
        "tidemill_cleaned_segments_total",
        "counter",
        "Segments that compaction read.",
        _one(lambda s: s.services.telemetry.cleaned_segments),
    ),
    Metric(
        "tidemill_dirtiest_log_ratio",
        "gauge",
        "The largest uncompacted share of the bytes of one log.",
        _one(lambda s: s.services.telemetry.dirtiest_log_percent / 100),
    ),
    Metric(
        "tidemill_flush_rounds_total",
        "counter",
        "Flush rounds that succeeded.",
        _one(lambda s: s.services.telemetry.flush_rounds),
    ),
    Metric(
        "tidemill_flush_failures_total",
        "counter",
        "Flush rounds that failed; each takes a data directory offline.",
        _one(lambda s: s.services.telemetry.flush_failures),
    ),
    Metric(
        "tidemill_flush_seconds",
        "histogram",
        "How long a flush round takes.",
        lambda s: _buckets(s.services.telemetry.flush_latency),
    ),
    Metric(
        "tidemill_flush_journal_rounds_total",
        "counter",
        "Flush rounds that wrote to the journal.",
        _one(lambda s: s.services.telemetry.journal_rounds),
    ),
    Metric(
        "tidemill_flush_journal_bytes_total",
        "counter",
        "Bytes that flush rounds wrote to the journal.",
        _one(lambda s: s.services.telemetry.journal_bytes),
    ),
    Metric(
        "tidemill_flush_journal_laps_total",
        "counter",
        "Fillings of a journal file whose segments were synced.",
        _one(lambda s: s.services.telemetry.journal_laps),
    ),
    Metric(
        "tidemill_disk_free_bytes",
        "gauge",
        "What is free on the file system of the data directory, as it was a second ago at most.",
        _one(lambda s: s.services.telemetry.disk_free_bytes),
    ),
    Metric(
        "tidemill_disk_refuses_records",
        "gauge",
        "1 while records are refused because less than the reserve is free, else 0.",
        _one(lambda s: int(s.services.telemetry.disk_refuses_records)),
    ),
    Metric(
        "tidemill_disk_running",
        "gauge",
        "Disk operations in their threads, by kind of work.",
        _disk(lambda load: load.running),
    ),
    Metric(
        "tidemill_disk_waiting",
        "gauge",
        "Disk operations that wait for a thread, by kind of work.",
        _disk(lambda load: load.waiting),
    ),
    Metric(
        "tidemill_disk_waited_total",
        "counter",
        "Disk operations that found all threads of their kind busy.",
        _disk(lambda load: load.waited),
    ),
    Metric(
        "tidemill_disk_refused_total",
        "counter",
        "Reads refused because too many waited for a thread; clients try them again.",
        _disk(lambda load: load.refused),
    ),
    Metric(
        "tidemill_loop_stall_seconds",
        "histogram",
        "How late the event loop is when it should wake up.",
        lambda s: _buckets(s.services.telemetry.loop_stall),
    ),
    Metric(
        "tidemill_unhandled_errors_total",
        "counter",
        "Requests that ended in a bug of the broker.",
        _one(lambda s: s.services.telemetry.unhandled_errors),
    ),
)


def render(listener: ListenerResources) -> str:
    """All metrics, in the Prometheus text format."""
    scrape = Scrape(listener)
    lines = []
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [f"{metric.name}{labels} {value}" for labels, value in metric.samples(scrape)]
    return "\n".join(lines) + "\n"
