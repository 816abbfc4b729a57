"""Estimates the size of a range of offsets from the log's first batches in that range.

Written parts of a log do not change, so the same range gets the same estimate: a batch that Spark
plans again after a crash is cut in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from tidemill.client.consuming.consumer import Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import KIB

__all__ = ["SMALL_OFFSETS", "estimated_bytes"]

SMALL_OFFSETS: Final = 2_000
"""A range with no more offsets than this is not worth a fetch."""
_GUESSED_BYTES: Final = 1 * KIB
"""The assumed size of an offset in a range that was not fetched."""
_SAMPLE_BYTES: Final = 64 * KIB
_POLLS_MAX: Final = 20
_POLL_S: Final = 0.5


async def estimated_bytes(
    cluster: ClusterClient, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """The size of each range as stored in the log, that is, possibly compressed."""
    sizes_per_offset: dict[TopicPartition, float] = {}
    if sum(stop - start for start, stop in ranges.values()) > SMALL_OFFSETS:
        # A range outside the log is reported by the task.
        with contextlib.suppress(KafkaError):
            sizes_per_offset = await _bytes_per_offset(
                cluster, {p: s for p, (s, _) in ranges.items()}
            )
    return {
        partition: int((stop - start) * sizes_per_offset.get(partition, _GUESSED_BYTES))
        for partition, (start, stop) in ranges.items()
    }


async def _bytes_per_offset(
    cluster: ClusterClient, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    consumer = Consumer(
        cluster,
        fetch_bytes_max=_SAMPLE_BYTES * len(starts),
        partition_bytes_max=_SAMPLE_BYTES,
        retry_s=_POLL_S,
    )
    consumer.read_between({partition: (start, start + 1) for partition, start in starts.items()})
    sizes_per_offset: dict[TopicPartition, float] = {}
    for _ in range(_POLLS_MAX):
        if not consumer.positions:
            break
        for fetched in await consumer.poll_batches(_POLL_S):
            size = sum(len(view) for view, _ in fetched.batches)
            offsets = fetched.batches[-1][1].next_offset - fetched.batches[0][1].base_offset
            sizes_per_offset[fetched.partition] = size / max(1, offsets)
    return sizes_per_offset
