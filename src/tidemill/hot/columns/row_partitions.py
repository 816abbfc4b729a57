"""Which partition each row of a chunk goes to, and the rows ordered by partition.

Rows with a key go where Java's default partitioner puts that key. Rows without a key stay together:
they fill one partition with about a batch, then the next one (KIP-480).
"""

from __future__ import annotations

from array import array

from tidemill.hot.columns.arrow_cells import Cells
from tidemill.hot.murmur2 import murmur2_range

__all__ = ["UNDECIDED", "by_key", "grouped", "spread"]

UNDECIDED = -1


def by_key(partitions: array[int], keys: Cells, partition_count: int) -> None:
    """Choose a partition for the undecided rows that have a key."""
    if partition_count < 1 or len(partitions) != keys.count:
        raise ValueError("one partition at least, and one key for each row")
    chosen = memoryview(partitions)
    for row in range(keys.count):
        if chosen[row] != -1:
            continue
        size = keys.size(row)
        if size >= 0:
            start = keys.start(row)
            found = murmur2_range(keys.data, start, start + size) & 0x7FFFFFFF
            chosen[row] = found % partition_count


def spread(
    partitions: array[int],
    values: Cells,
    partition_count: int,
    current: int,
    filled_bytes: int,
    batch_bytes: int,
) -> tuple[int, int]:
    """Give the undecided rows to `current` and, batch by batch, to the partitions after it.

    `filled_bytes` is what `current` already has. Returns the new values of both.
    """
    if partition_count < 1 or len(partitions) != values.count or current < 0:
        raise ValueError("one partition at least, and one value for each row")
    chosen = memoryview(partitions)
    partition = current % partition_count
    for row in range(values.count):
        if chosen[row] != -1:
            continue
        if filled_bytes >= batch_bytes:
            partition = (partition + 1) % partition_count
            filled_bytes = 0
        chosen[row] = partition
        filled_bytes += max(values.size(row), 0)
    return partition, filled_bytes


def grouped(partitions: array[int], partition_count: int) -> tuple[array[int], array[int]]:
    """Row numbers by partition, in order within each, and where each partition's rows begin.

    The second array has one entry more than there are partitions. ValueError for a row whose
    partition does not exist.
    """
    ends = array("q", bytes(8 * (partition_count + 1)))
    order = array("i", bytes(4 * len(partitions)))
    _sort(partitions, partition_count, ends, order)
    starts = array("q", [0])
    starts.extend(ends[:partition_count])
    return order, starts


def _sort(
    partitions: array[int], partition_count: int, ends: array[int], order: array[int]
) -> None:
    """A counting sort; afterwards `ends` has where each partition's rows end."""
    count = len(partitions)
    for row in range(count):
        partition = partitions[row]
        if not 0 <= partition < partition_count:
            raise ValueError(f"row {row} has no partition")
        ends[partition + 1] += 1
    for partition in range(partition_count):
        ends[partition + 1] += ends[partition]
    # Now ends[p] is where p begins; it becomes p's end as p's rows are placed.
    for row in range(count):
        partition = partitions[row]
        order[ends[partition]] = row
        ends[partition] += 1
