"""Exactly once: all tasks of a batch write in one transaction, which the driver ends.

    driver   lease    open a transaction (fences older drivers, aborts what they left), then read
                      which batch was committed last
    task     write    nothing, if its batch was committed before; else rows under the lease
    driver   commit   commit query and batch as an offset of the sink's group, end the transaction
    driver   abort    end the transaction

The offset is visible if and only if the rows are. So a batch that Spark repeats is written again
if its transaction was not committed, and left out if it was, whenever the driver was killed. The
query need not give the same rows when a batch is repeated.

All tasks have one producer id and epoch, and each starts its sequence numbers at 0. Two tasks must
not write to the same partition: the second would look like a repetition of the first. `commit`
checks that, and a task checks before its first batch that nobody has written there. Before anything
is committed the transaction must have the partitions that the tasks tell of, and no other one: more
are from an attempt that Spark has given up, fewer from a transaction that was aborted meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, final

from tidemill.client.admin.group_offsets import GroupOffsets, OffsetAndMetadata
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.client.producing.producer_lookup import written_by
from tidemill.client.producing.transaction import TransactionClient
from tidemill.client.producing.transaction_errors import TransactionError
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.bridge.blocking_client import BlockingClient, RetryLimits, client_for
from tidemill.spark.bridge.local_path import try_local_path
from tidemill.spark.sink.lease import BatchMustRestart, LeaseFile, SinkLease, latest_batches
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.sink.rows_written import RowsWritten

__all__ = ["ExactlyOnce", "claim"]

_ABORT_PATIENCE_S: Final = 10.0
_SHARED: Final = (
    "two tasks write to it, and a transaction cannot tell their rows apart: write through "
    "tidemill.spark.write_topic or stream_to_topic, which give each partition to one task"
)


@final
class ExactlyOnce:
    """The driver's steps of a write in one transaction."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def lease(self) -> SinkLease:
        options = self._options

        async def take(cluster: ClusterClient) -> SinkLease:
            identity = await _steps(cluster, options).open()
            offsets = await GroupOffsets(cluster, _group(identity)).fetch(None)
            return SinkLease(identity, latest_batches(offsets.values()))

        lease = self._client().run(take, RetryLimits(options.delivery_timeout_ms))
        file = self._lease_file()
        if file is not None:
            file.keep(lease.identity)
        return lease

    def commit(self, messages: Sequence[RowsWritten | None]) -> None:
        """Raises TransactionError if rows are not visible, or (OutcomeUnknown) may not be.

        BatchMustRestart if the transaction has other rows than the tasks tell of, UserError if two
        tasks have written to one partition.
        """
        written = [message for message in messages if message is not None and message.rows]
        if not written:
            return  # skipped or without rows: there is no transaction
        _check_partitions(written)
        first = written[0]
        identity, batch = first.identity, first.batch
        assert identity is not None, "rows that were written exactly once have a lease"

        async def end(cluster: ClusterClient) -> None:
            steps = _steps(cluster, self._options)
            _check_whole(await steps.enlisted(identity), written)
            if batch is not None:
                topic = self._options.topic or min(name for name, _ in first.rows)
                noted = OffsetAndMetadata(batch.batch_id + 1, batch.note)
                place = TopicPartition(topic, 0)
                await steps.commit_offsets(identity, _group(identity), {place: noted})
            await steps.end(identity, commit=True)

        self._client().run_once(end(self._client().cluster))

    def abort(self, messages: Sequence[RowsWritten | None], lease: SinkLease | None) -> None:
        """End the transaction at once, if it is ours; otherwise the next lease or time ends it."""
        identity = None if lease is None else lease.identity
        for message in messages:
            if identity is None and message is not None:
                identity = message.identity
        file = self._lease_file()
        if identity is None and file is not None:
            identity = file.try_read()
        if identity is None:
            return
        client = self._client()
        steps = _steps(client.cluster, self._options, patience_s=_ABORT_PATIENCE_S)
        with contextlib.suppress(TransactionError, ClientError):
            client.run_once(steps.end(identity, commit=False))

    def _client(self) -> BlockingClient:
        return client_for(self._options.address)

    def _lease_file(self) -> LeaseFile | None:
        """None if the checkpoint is not on this machine, or there is no checkpoint."""
        from pyspark import SparkFiles

        checkpoint = self._options.checkpoint
        folder = None if checkpoint is None else try_local_path(checkpoint)
        if folder is None:
            return None
        # Spark makes a folder for each driver and tells its Python processes.
        return LeaseFile(Path(folder), driver=str(SparkFiles._root_directory))


async def claim(
    cluster: ClusterClient,
    options: SinkOptions,
    identity: ProducerIdentity,
    partitions: Collection[TopicPartition],
) -> None:
    """Add a task's partitions to the transaction. BatchMustRestart if one has rows already."""
    taken = await written_by(cluster, identity, partitions)
    if taken:
        raise BatchMustRestart(
            f"{min(taken)} already has rows of this batch: an earlier attempt of this task wrote "
            f"them, or {_SHARED}"
        )
    await _steps(cluster, options).enlist(identity, partitions)


def _steps(
    cluster: ClusterClient, options: SinkOptions, *, patience_s: float | None = None
) -> TransactionClient:
    assert options.transactional_id is not None, "checked with the options"
    return TransactionClient(
        cluster,
        options.transactional_id,
        timeout_ms=options.transaction_timeout_ms,
        patience_s=options.delivery_timeout_ms / 1000 if patience_s is None else patience_s,
    )


def _group(identity: ProducerIdentity) -> str:
    """The group whose offsets say which batch was committed last."""
    assert identity.transactional_id is not None, "a lease has one"
    return identity.transactional_id


def _check_partitions(written: Sequence[RowsWritten]) -> None:
    seen: set[tuple[str, int]] = set()
    for message in written:
        for place in message.rows:
            if place in seen:
                raise UserError(f"partition {place[1]} of topic {place[0]}: {_SHARED}")
            seen.add(place)


def _check_whole(enlisted: Collection[TopicPartition], written: Sequence[RowsWritten]) -> None:
    told = {TopicPartition(*place) for message in written for place in message.rows}
    strange = told.symmetric_difference(enlisted)
    if strange:
        raise BatchMustRestart(
            f"the transaction and the tasks do not agree about {min(strange)}: a task wrote twice, "
            "or the transaction was aborted meanwhile"
        )
