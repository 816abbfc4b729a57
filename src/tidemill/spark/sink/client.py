"""The sink's way to a cluster, kept between the tasks of one Python worker process.

Spark reuses its workers. A task that finds the client of an earlier one with the same options saves
connecting, asking for a producer id, and the caution with which a producer begins each partition.
A client is lent to one task at a time; after a failure it is closed, since its sequence numbers are
in doubt. It has connections of its own: a parked fetch of the source would hold up what is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from tidemill.client.producing.batch_producer import BatchProducer
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.spark.bridge.blocking_client import Address, BlockingClient
from tidemill.spark.sink.options import SinkOptions

__all__ = ["SinkClient", "borrowed_client"]

_IDLE_MAX = 4


@final
class SinkClient:
    """Connections and the producer that uses them."""

    def __init__(self, options: SinkOptions, identity: ProducerIdentity | None = None) -> None:
        self.connections = BlockingClient(
            Address(options.bootstrap, options.client_id, options.request_timeout_ms)
        )
        self.producer = BatchProducer(
            self.connections.cluster,
            acks=options.acks,
            identity=identity,
            in_flight_max=options.in_flight_max,
            buffer_bytes_max=options.buffer_bytes_max,
            request_bytes_max=options.request_bytes_max,
            delivery_timeout_s=options.delivery_timeout_ms / 1000,
        )

    def close(self) -> None:
        """End every connection; what was in flight is in doubt."""
        self.connections.close()


_idle: dict[SinkOptions, SinkClient] = {}
"""The longest unused one first."""


@contextmanager
def borrowed_client(
    options: SinkOptions, identity: ProducerIdentity | None
) -> Iterator[SinkClient]:
    """A client for one task: under an identity of the caller's, or kept for the next task."""
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
