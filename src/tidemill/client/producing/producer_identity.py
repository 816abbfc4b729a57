"""The producer id of an idempotent producer, and the sequence numbers it counts under it (T29)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import check
from tidemill.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidemill.wire.generated.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

__all__ = ["ANONYMOUS", "ProducerIdentity", "ask_identity", "sequence_after"]

_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1
_SEQUENCES = 1 << 31
"""After the last sequence number comes 0 again."""


@final
@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The id and epoch that the broker gave; without them the producer is not idempotent."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    transactional_id: str | None = None
    """If there is one, every batch belongs to the transaction that is open under it."""

    @property
    def idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def transactional(self) -> bool:
        return self.transactional_id is not None


ANONYMOUS: Final = ProducerIdentity()


async def ask_identity(cluster: ClusterClient) -> ProducerIdentity:
    """Ask a broker for a producer id of our own; KafkaError if it gives none."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS
    )
    response = await cluster.ask_any(request, InitProducerIdResponse)
    check(response.error_code, "the broker gives no producer id")
    return ProducerIdentity(response.producer_id, response.producer_epoch)


def sequence_after(base: int, count: int) -> int:
    """The sequence number that follows `count` records starting at `base`."""
    return (base + count) % _SEQUENCES
