"""How much the offsets of a range weigh, estimated from a look into the log at its beginning.

A log does not change where it has been written, so that the same range gets the same estimate: a
batch that Spark plans again after a crash is cut in the same way.
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
"""So few offsets are not worth a look."""
_GUESSED_BYTES: Final = 1 * KIB
"""An offset's weight where nobody looked."""
_LOOK_BYTES: Final = 64 * KIB
_LOOKS_MAX: Final = 20
_POLL_S: Final = 0.5


async def estimated_bytes(
    cluster: ClusterClient, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """The size of each range in the log, as it is stored (compressed where it is)."""
    weights: dict[TopicPartition, float] = {}
    if sum(stop - start for start, stop in ranges.values()) > SMALL_OFFSETS:
        # A range that is out of the log's bounds is for the task to complain about.
        with contextlib.suppress(KafkaError):
            weights = await _bytes_per_offset(cluster, {p: s for p, (s, _) in ranges.items()})
    return {
        partition: int((stop - start) * weights.get(partition, _GUESSED_BYTES))
        for partition, (start, stop) in ranges.items()
    }


async def _bytes_per_offset(
    cluster: ClusterClient, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    consumer = Consumer(
        cluster,
        fetch_bytes_max=_LOOK_BYTES * len(starts),
        partition_bytes_max=_LOOK_BYTES,
        retry_s=_POLL_S,
    )
    consumer.read_between({partition: (start, start + 1) for partition, start in starts.items()})
    weights: dict[TopicPartition, float] = {}
    for _ in range(_LOOKS_MAX):
        if not consumer.positions:
            break
        for fetched in await consumer.poll_batches(_POLL_S):
            size = sum(len(view) for view, _ in fetched.batches)
            offsets = fetched.batches[-1][1].next_offset - fetched.batches[0][1].base_offset
            weights[fetched.partition] = size / max(1, offsets)
    return weights
