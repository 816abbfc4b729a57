"""Every row of the bench with its bar: what Tidemill must reach on the same machine.

A ratio is ours over the other's: `>=` is for rates, `<=` for times. Bars without a ratio are
absolute. Kafka runs with its shipped defaults, which flush nothing before an ack, so it is compared
with our flush=os; flush=group, our default, is compared with our own flush=os.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from bench import (
    backlog_rows,
    cluster_rows,
    cluster_scale_rows,
    durability_rows,
    group_rows,
    latency_rows,
    life_rows,
    queue_rows,
    scale_rows,
    spark_rows,
    throughput_rows,
    transaction_rows,
)
from bench.clusters import TidemillCluster
from bench.judgement import Bar, Held, Outcome
from bench.lab import Lab
from bench.zookeeper_cluster import SESSION_MS, ZookeeperCluster

__all__ = ["ROWS", "Row"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`--quick` runs only `quick` rows; `large` rows need tens of gigabytes and `--large`.

    `--against` runs only rows that are measured `beside_rival`, whoever that is.
    """

    key: str
    title: str
    measure: Callable[[Lab, str, str], list[Outcome]]
    quick: bool = False
    large: bool = False
    beside_rival: bool = False

    def run(self, lab: Lab) -> list[Outcome]:
        return self.measure(lab, self.key, self.title)


def _produce(
    key: str,
    title: str,
    *,
    size: int,
    bar: float,
    acks: str = "1",
    codec: str = "none",
    quick: bool = False,
) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: throughput_rows.produce(
            lab, row, name, size=size, acks=acks, codec=codec, bar=Bar(">=", bar)
        ),
        quick=quick,
        beside_rival=True,
    )


def _ceiling(key: str, title: str, *, size: int) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: throughput_rows.ceiling(lab, row, name, size=size),
    )


def _flushed(key: str, title: str, *, size: int, quick: bool = False) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: throughput_rows.produce_flushed(lab, row, name, size=size),
        quick=quick,
        beside_rival=True,
    )


def _consume(key: str, title: str, *, size: int, bar: float, quick: bool = False) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: throughput_rows.consume(
            lab, row, name, size=size, bar=Bar(">=", bar)
        ),
        quick=quick,
        beside_rival=True,
    )


def _recovery(key: str, *, gigabytes: float, large: bool = False) -> Row:
    return Row(
        key=key,
        title="serving again after kill -9",
        measure=lambda lab, row, name: life_rows.recovery(lab, row, name, gigabytes=gigabytes),
        large=large,
        beside_rival=True,
    )


def _spark_read(key: str, title: str, *, size: int, bar: float) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: spark_rows.read(
            lab, row, name, size=size, bar=Bar(">=", bar)
        ),
    )


def _replicated(
    suffix: str, where: str, *, ours: cluster_rows.Kind, kill_bar_ms: float
) -> tuple[Row, ...]:
    """The rows of three brokers that depend on their store."""
    return (
        _cluster_produce(
            f"cluster-produce-100{suffix}", f"{where}: produce 100 B, acks=all", size=100, ours=ours
        ),
        _cluster_produce(
            f"cluster-produce-1k{suffix}", f"{where}: produce 1 KB, acks=all", size=1_000, ours=ours
        ),
        Row(
            key=f"cluster-ack{suffix}",
            title=f"{where}: ack latency",
            measure=lambda lab, row, title: cluster_rows.ack_latency(
                lab, row, title, p50=Bar("<=", 1), p99=Bar("<=", 0.6), ours=ours
            ),
        ),
        _unavailable(
            f"cluster-kill{suffix}",
            f"{where}: no acks after kill -9",
            is_crash=True,
            bar_ms=kill_bar_ms,
            ours=ours,
        ),
        _unavailable(
            f"cluster-stop{suffix}",
            f"{where}: no acks after a stop",
            is_crash=False,
            bar_ms=300,
            ours=ours,
        ),
    )


def _cluster_produce(key: str, title: str, *, size: int, ours: cluster_rows.Kind) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: cluster_rows.produce(
            lab, row, name, size=size, bar=Bar(">=", 2), ours=ours
        ),
    )


def _commits(key: str, title: str, *, records: int) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: transaction_rows.commits(
            lab, row, name, records=records, bar=Bar(">=", 1.5)
        ),
        beside_rival=True,
    )


def _spread(key: str, title: str, *, size: int) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: cluster_scale_rows.spread(lab, row, name, size=size),
    )


def _unavailable(
    key: str, title: str, *, is_crash: bool, bar_ms: float, ours: cluster_rows.Kind
) -> Row:
    return Row(
        key=key,
        title=title,
        measure=lambda lab, row, name: cluster_rows.unavailable(
            lab, row, name, is_crash=is_crash, bar=Bar("<=", bar_ms, Held.VALUE), ours=ours
        ),
    )


ROWS = (
    _produce("produce-100", "produce 100 B, acks=1", size=100, bar=2, quick=True),
    _produce("produce-1k", "produce 1 KB, acks=1", size=1_000, bar=3, quick=True),
    _produce("produce-100-all", "produce 100 B, acks=all, flush=os", size=100, acks="all", bar=2),
    _produce("produce-1k-all", "produce 1 KB, acks=all, flush=os", size=1_000, acks="all", bar=3),
    _ceiling("ceiling-100", "produce 100 B into nothing", size=100),
    _ceiling("ceiling-1k", "produce 1 KB into nothing", size=1_000),
    _flushed("produce-100-group", "produce 100 B, acks=all, flush=group", size=100),
    _flushed("produce-1k-group", "produce 1 KB, acks=all, flush=group", size=1_000, quick=True),
    Row(
        key="loop-stall",
        title="loop stall p99.9, acks=all, flush=group",
        measure=lambda lab, row, title: throughput_rows.loop_stall(
            lab, row, title, bar=Bar("<=", 20, Held.VALUE)
        ),
    ),
    _produce("produce-lz4", "produce 1 KB, lz4", size=1_000, codec="lz4", bar=1),
    _produce("produce-zstd", "produce 1 KB, zstd", size=1_000, codec="zstd", bar=1),
    _consume("consume-100", "consume 100 B", size=100, bar=1),
    _consume("consume-1k", "consume 1 KB", size=1_000, bar=1.2, quick=True),
    Row(
        key="ack-latency",
        title="ack latency",
        measure=lambda lab, row, title: latency_rows.ack_latency(
            lab, row, title, p50=Bar("<=", 1), p99=Bar("<=", 0.6)
        ),
        quick=True,
        beside_rival=True,
    ),
    Row(
        key="flush-latency",
        title="ack latency, acks=all, flush=group",
        measure=latency_rows.flush_latency,
        quick=True,
    ),
    Row(
        key="durable-ack",
        title="durable ack",
        measure=durability_rows.durable_ack,
        quick=True,
    ),
    Row(
        key="loaded-ack",
        title="durable ack beside load",
        measure=durability_rows.loaded_ack,
        quick=True,
    ),
    Row(
        key="dirty-partitions",
        title="durable ack",
        measure=durability_rows.dirty_partitions,
    ),
    Row(
        key="transform",
        title="consume, transform, produce",
        measure=durability_rows.transform,
    ),
    Row(
        key="one-record",
        title="one-record requests",
        measure=lambda lab, row, title: throughput_rows.one_record_requests(
            lab, row, title, bar=Bar(">=", 4)
        ),
        quick=True,
        beside_rival=True,
    ),
    Row(
        key="raw-batches",
        title="batches without a client",
        measure=throughput_rows.raw_batches,
        beside_rival=True,
    ),
    Row(
        key="end-to-end",
        title="end to end at 1,000/s",
        measure=lambda lab, row, title: latency_rows.end_to_end(
            lab, row, title, p50=Bar("<=", 1), p99=Bar("<=", 1)
        ),
        beside_rival=True,
    ),
    Row(
        key="commits",
        title="offset commits",
        measure=lambda lab, row, title: group_rows.offset_commits(
            lab, row, title, bar=Bar(">=", 3)
        ),
        beside_rival=True,
    ),
    Row(
        key="second-member",
        title="second member joins, both read",
        measure=lambda lab, row, title: group_rows.second_member(lab, row, title, bar=Bar("<=", 1)),
        beside_rival=True,
    ),
    Row(key="large-group", title="500 members", measure=group_rows.large_group),
    Row(
        key="start",
        title="port open after start",
        measure=life_rows.start_up,
        quick=True,
        beside_rival=True,
    ),
    Row(key="memory", title="memory", measure=life_rows.memory, quick=True, beside_rival=True),
    _recovery("recovery-1g", gigabytes=1),
    Row(
        key="journal-recovery",
        title="serving again after kill -9 with a journal",
        measure=durability_rows.journal_recovery,
    ),
    _recovery("recovery-10g", gigabytes=10, large=True),
    Row(key="backlog", title="a backlog", measure=backlog_rows.backlog, large=True),
    Row(
        key="partitions",
        title="produce beside partitions",
        measure=scale_rows.idle_partitions,
    ),
    Row(key="topics-start", title="first answer after start", measure=scale_rows.many_topics_start),
    Row(key="many-groups", title="offsets served after start", measure=group_rows.many_groups),
    Row(key="connections", title="idle connections", measure=scale_rows.idle_connections),
    *_replicated("", "three brokers", ours=TidemillCluster, kill_bar_ms=1_000),
    *_replicated(
        "-zookeeper",
        "three brokers, ZooKeeper",
        ours=ZookeeperCluster,
        kill_bar_ms=SESSION_MS + 1_000,
    ),
    Row(key="cluster-start", title="three brokers: start", measure=cluster_rows.start_up),
    Row(key="cluster-memory", title="three brokers: memory", measure=cluster_rows.memory),
    Row(
        key="cluster-catch-up",
        title="three brokers: an empty replica",
        measure=cluster_rows.catch_up,
    ),
    _spread("spread-100", "one topic over two brokers: produce 100 B", size=100),
    _spread("spread-1k", "one topic over two brokers: produce 1 KB", size=1_000),
    Row(
        key="cluster-partitions",
        title="three brokers: many partitions",
        measure=cluster_scale_rows.many_partitions,
    ),
    _commits("transactions-1000", "transactions of 1,000 records of 100 B", records=1_000),
    _commits(
        "transactions-4",
        "transactions of one record in each of 4 partitions",
        records=4,
    ),
    Row(key="view-look", title="a view of 1 %: looked at", measure=queue_rows.view_look),
    Row(
        key="view-again",
        title="a view of 1 %: second reader",
        measure=queue_rows.view_second_reader,
    ),
    Row(key="delayed-produce", title="produce with a delay", measure=queue_rows.delayed_produce),
    Row(key="releases", title="records released", measure=queue_rows.releases),
    Row(key="lateness", title="lateness of a delayed record", measure=queue_rows.lateness),
    _spark_read("spark-read-100", "Spark batch read, 100 B", size=100, bar=1.5),
    _spark_read("spark-read-1k", "Spark batch read, 1 KB", size=1_000, bar=1.2),
    Row(
        key="spark-stream-100",
        title="Spark stream, 100 B",
        measure=lambda lab, row, title: spark_rows.stream(lab, row, title, bar=Bar(">=", 1.5)),
    ),
    Row(
        key="spark-write-100",
        title="Spark batch write, 100 B",
        measure=lambda lab, row, title: spark_rows.write(lab, row, title, bar=Bar(">=", 1.2)),
    ),
    Row(
        key="spark-write-once",
        title="Spark batch write exactly once, 100 B",
        measure=lambda lab, row, title: spark_rows.write_exactly_once(
            lab, row, title, bar=Bar(">=", 0.7)
        ),
    ),
    Row(
        key="spark-micro-batch",
        title="Spark micro-batch",
        measure=lambda lab, row, title: spark_rows.micro_batch(
            lab, row, title, latency=Bar("<=", 150, Held.VALUE), overhead=Bar("<=", 1)
        ),
    ),
    Row(
        key="spark-idle",
        title="Spark query at rest",
        measure=lambda lab, row, title: spark_rows.idle(
            lab, row, title, bar=Bar("<=", 10, Held.VALUE)
        ),
    ),
)
