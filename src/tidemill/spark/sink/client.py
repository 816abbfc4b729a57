"""The sink's connections and producer, kept between the tasks of one Python worker process.

Spark reuses its workers. A task that reuses the client of an earlier task with the same options
saves the connections, the producer id, and the single first batch with which a producer starts each
partition. One task at a time uses a client; after a failure it is closed, because its sequence
numbers are in doubt. It shares no connection with the source: a parked fetch would delay writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import final

from tidemill.client.producing.batch_producer import BatchProducer
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.ids import TopicPartition
from tidemill.spark.bridge.blocking_client import BlockingClient
from tidemill.spark.sink.exactly_once import claim
from tidemill.spark.sink.options import SinkOptions

__all__ = ["SinkClient", "borrowed_client"]

_IDLE_MAX = 4


@final
class SinkClient:
    """Connections and the producer that uses them."""

    def __init__(self, options: SinkOptions, identity: ProducerIdentity | None = None) -> None:
        self.connections = BlockingClient(options.address)
        cluster = self.connections.cluster

        async def enlist(partitions: Collection[TopicPartition]) -> None:
            assert identity is not None, "only a leased client enlists"
            await claim(cluster, options, identity, partitions)

        self.producer = BatchProducer(
            cluster,
            acks=options.acks,
            identity=identity,
            in_flight_max=options.in_flight_max,
            buffer_bytes_max=options.buffer_bytes_max,
            request_bytes_max=options.request_bytes_max,
            delivery_timeout_s=options.delivery_timeout_ms / 1000,
            enlist=None if identity is None else enlist,
        )

    def close(self) -> None:
        """Close every connection; the outcome of requests in flight is unknown."""
        self.connections.close()


_idle: dict[SinkOptions, SinkClient] = {}
"""The client that was unused longest comes first."""


@contextmanager
def borrowed_client(
    options: SinkOptions, identity: ProducerIdentity | None
) -> Iterator[SinkClient]:
    """A client for one task: new and closed afterwards with an `identity`, else kept for reuse."""
    client = None if identity is not None else _idle.pop(options, None)
    if client is None:
        client = SinkClient(options, identity)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    if identity is not None:
        client.close()
        return
    while len(_idle) >= _IDLE_MAX:
        _idle.pop(next(iter(_idle))).close()
    _idle[options] = client
