"""Ends a transaction that hangs: a partition has it open, and no coordinator will ever end it.

The partition's leader does it for an administrator, who cannot know what happens meanwhile. It
looks at its log, asks all coordinators, and looks at its log again in the turn of the loop in which
it writes the marker:

- A coordinator that has a transaction of this producer open will end it: the marker is refused.
- A coordinator that does not answer, or a partition of theirs that moves meanwhile, may have one:
  refused as well, until all of them can be asked.
- If the producer wrote after the first look, it may have begun a transaction after its coordinator
  was asked: refused. What it writes after the marker is a transaction of its own (I22).

The marker has the epoch of the transaction that hangs and always aborts: what to commit, only a
coordinator knows. It names no coordinator that is newer than those that the log knows: the log
would refuse the markers of the real one, and the producer's next transaction would hang for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, final

from tidemill.client.network.errors import ClientError, check
from tidemill.client.network.peer_links import PeerLinks
from tidemill.coordinators.runtime.partition_writer import Marker
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction_coordinator import TransactionCoordinator
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.core.loop.awaiting import wait_value
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import TRANSACTION_STATE_TOPIC, MetadataImage
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.state.producer_entry import ActiveProducer
from tidemill.wire.generated.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

__all__ = ["HangingTransactions"]

VERSION: Final = 2
TIMEOUT_S: Final = 5.0
IDS_PER_SLICE: Final = 1_000
_OPEN: Final = [status.shown for status in TransactionStatus if status.is_open]


class TransactionLog(Protocol):
    """The log of a partition of this broker, which leads it or led it."""

    @property
    def log(self) -> PartitionLog: ...


class MarkerDoor(Protocol):
    """Writes markers to the partitions of this broker."""

    def write(self, marker: Marker, name: TopicPartition) -> ErrorCode | Deferred[ErrorCode]: ...


class _Owner(NamedTuple):
    """Who coordinates a partition of the coordinators' topic."""

    broker_id: int
    epoch: int


@final
class HangingTransactions:
    """Those in the partitions that this broker leads."""

    def __init__(
        self,
        node_id: int,
        coordinator: TransactionCoordinator,
        peers: PeerLinks,
        markers: MarkerDoor,
        *,
        find: Callable[[TopicPartition], TransactionLog | None],
        image: Callable[[], MetadataImage],
        knows_all_topics: Callable[[], bool],
    ) -> None:
        """`knows_all_topics`: the image lacks none of those that exist."""
        self._node_id = node_id
        self._coordinator = coordinator
        self._peers = peers
        self._markers = markers
        self._find = find
        self._image = image
        self._knows_all_topics = knows_all_topics

    async def abort(
        self, name: TopicPartition, producer: ProducerName, *, coordinator_epoch: int
    ) -> ErrorCode:
        """Write the marker; NONE once it is acknowledged, or why it may not be there.

        Raises KafkaError INVALID_TXN_STATE if nothing hangs there, or a code that passes.
        """
        opened = self._opened(name, producer)
        await self._check_unknown(producer.producer_id)
        if self._opened(name, producer) != opened:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "its producer has just written")
        known_epoch = min(coordinator_epoch, max(0, opened.coordinator_epoch))
        marker = Marker(producer, False, known_epoch, False)
        return await wait_value(self._markers.write(marker, name))

    def _opened(self, name: TopicPartition, producer: ProducerName) -> ActiveProducer:
        """What the log knows of the producer, whose transaction it has open."""
        log = self._find(name)
        if log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for one in log.log.producers.active():
            is_asked_for = (one.producer_id, one.epoch) == producer
            if is_asked_for and one.txn_first_offset >= 0:
                return one
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{producer} has no transaction open")

    # --- what coordinators know ------------------------------------------------------------------

    async def _check_unknown(self, producer_id: int) -> None:
        owners = self._owners()
        for broker_id in sorted({owner.broker_id for owner in owners}):
            if broker_id == self._node_id:
                known = await self._known_here(producer_id)
            else:
                known = await self._known_at(broker_id, producer_id)
            if known is not None:
                detail = f"the coordinator of {known} will end it"
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, detail)
        if self._owners() != owners:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinators have moved")

    def _owners(self) -> list[_Owner]:
        """By partition of the coordinators' topic; none, if there never was a transaction."""
        topic = self._image().topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None and not self._knows_all_topics():
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "their topic may be unread")
        if topic is None:
            return []
        owners = [_Owner(one.leader, one.leader_epoch) for one in topic.partitions]
        if any(owner.broker_id == NO_LEADER for owner in owners):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a coordinator has no broker")
        return owners

    async def _known_here(self, producer_id: int) -> str | None:
        """The id of an open transaction of the producer, if this broker coordinates it."""
        if self._coordinator.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        pacer = Pacer(IDS_PER_SLICE)
        for shard in list(self._coordinator.shards()):
            for found in list(shard.transactions()):
                await pacer.step()
                if found.producer_id == producer_id and found.status.is_open:
                    return found.transactional_id
        return None

    async def _known_at(self, broker_id: int, producer_id: int) -> str | None:
        """The same of another broker. Whatever goes wrong: it may know one."""
        request = ListTransactionsRequest(state_filters=_OPEN, producer_id_filters=[producer_id])
        try:
            response = await self._peers.request(
                broker_id, request, ListTransactionsResponse, version=VERSION, timeout_s=TIMEOUT_S
            )
            check(response.error_code, f"broker {broker_id}")
        except (KafkaError, ClientError) as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        found = response.transaction_states
        return found[0].transactional_id if found else None
