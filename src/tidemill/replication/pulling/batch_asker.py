"""Asks another broker for the batches that it has stored, for a log with damage."""

from __future__ import annotations

from typing import final

from tidemill.client.network.errors import ClientError, check, error_code
from tidemill.client.network.peer_links import PeerLinks
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import MIB
from tidemill.replication.partition import Partition
from tidemill.storage.files.disk import Buffer
from tidemill.wire.generated.replica_batches import ReplicaBatchesRequest, ReplicaBatchesResponse

__all__ = ["BatchAsker", "DamagedThere"]

ANSWER_BYTES_MAX = MIB
"""Unless one batch is larger."""
VERSION = 0
TIMEOUT_S = 10.0


@final
class DamagedThere(KafkaError):
    """The other replica knows that it lacks the same, up to `end_offset`.

    CORRUPT_MESSAGE: it has given that up. KAFKA_STORAGE_ERROR: it has not mended it yet.
    """

    def __init__(self, code: ErrorCode, end_offset: int) -> None:
        super().__init__(code, f"damaged there too, up to {end_offset}")
        self.end_offset = end_offset


@final
class BatchAsker:
    """Asks over connections of its own: an answer is large, and others must not wait behind it."""

    def __init__(self, peers: PeerLinks) -> None:
        self._peers = peers

    async def ask(self, broker_id: int, partition: Partition, offset: int) -> Buffer:
        """Whole batches from `offset`, or its log start, on; none: its log ends there.

        Raises KafkaError: not now, or never; see `Mender`. DamagedThere if that is known.
        """
        request = ReplicaBatchesRequest(
            topic_id=partition.topic_id,
            partition_index=partition.name.partition,
            fetch_offset=offset,
            max_bytes=ANSWER_BYTES_MAX,
        )
        try:
            response = await self._peers.request(
                broker_id, request, ReplicaBatchesResponse, version=VERSION, timeout_s=TIMEOUT_S
            )
        except ClientError as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error
        if response.damage_end_offset > offset:
            raise DamagedThere(error_code(response.error_code), response.damage_end_offset)
        check(response.error_code, f"broker {broker_id}")
        return response.records or b""
