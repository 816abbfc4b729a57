"""Writes frames to topics exactly once: `write_topic` for a batch, `stream_to_topic` for a stream.

Both bring the rows of each output partition to one task, which a shared transaction needs, and
refuse sessions in which Spark may run a task twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import UserError
from tidemill.spark.bridge.blocking_client import RetryLimits, client_for
from tidemill.spark.sink.delivery import EXACTLY_ONCE
from tidemill.spark.sink.options import SinkOptions, sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["ONE_ATTEMPT", "stream_to_topic", "write_topic"]

ONE_ATTEMPT: Final = {"spark.speculation": "false", "spark.stage.maxConsecutiveAttempts": "1"}
"""Settings of a session on a cluster that writes exactly once: a task that fails fails its batch,
and the query starts again from its checkpoint."""

_CHECK_NAME: Final = "checked"


def write_topic(
    rows: DataFrame,
    topics: str | Sequence[str],
    *,
    transactional_id: str,
    options: Mapping[str, str],
) -> None:
    """Append the rows of a batch in one transaction; returns when it is committed.

    All rows go to one topic or, if several are given, each to the one that its column `topic`
    names. In foreachBatch, a batch that was committed before is left out; this needs a
    `transactional_id` that is the same after every restart, and that nothing else uses.
    """
    placed, given = _placed(rows, topics, options)
    writer = placed.write.format("tidemill").mode("append").options(**given)
    writer.option("kafka.transactional.id", transactional_id).save()


def stream_to_topic(
    rows: DataFrame, topics: str | Sequence[str], *, options: Mapping[str, str]
) -> DataStreamWriter:
    """A query, not started, that appends each batch of a stream in one transaction.

    It needs the option checkpointLocation, as every query does; `topics` is as in `write_topic`.
    """
    placed, given = _placed(rows, topics, options)
    return placed.writeStream.format("tidemill").outputMode("append").options(**given)


def _placed(
    rows: DataFrame, topics: str | Sequence[str], options: Mapping[str, str]
) -> tuple[DataFrame, dict[str, str]]:
    """The rows, each with its partition, and the complete options."""
    from tidemill.spark.sink.output_partitions import by_output_partition

    _check_attempts(rows.sparkSession)
    given = {"delivery": EXACTLY_ONCE, **options}
    topic = topics if isinstance(topics, str) else None
    if topic is not None:
        given["topic"] = topic
    checked = sink_options({"kafka.transactional.id": _CHECK_NAME, **given})
    counts = _partition_counts(checked, [topics] if isinstance(topics, str) else topics)
    return by_output_partition(rows, counts, topic), given


def _partition_counts(options: SinkOptions, topics: Sequence[str]) -> dict[str, int]:
    async def count(cluster: ClusterClient) -> dict[str, int]:
        found = {name: await cluster.topic(name, auto_create=True) for name in topics}
        return {name: len(topic.partitions) for name, topic in found.items()}

    return client_for(options.address).run(count, RetryLimits(options.delivery_timeout_ms))


def _check_attempts(spark: SparkSession) -> None:
    if spark.conf.get("spark.speculation", "false").lower() == "true":  # type: ignore[union-attr]
        raise UserError(
            "delivery=exactly_once cannot work with spark.speculation=true: turn it off"
        )
    master = spark.sparkContext.master or ""
    if master == "local" or master.startswith("local["):
        return  # a shuffle of one process is not lost while its session lives
    if spark.conf.get("spark.stage.maxConsecutiveAttempts", "4") != "1":
        raise UserError(
            "delivery=exactly_once on a cluster needs spark.stage.maxConsecutiveAttempts=1: Spark "
            "must not repeat a part of a batch, only all of it"
        )
