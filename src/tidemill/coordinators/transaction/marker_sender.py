"""Carries decisions out: a marker in every partition of the transaction, then Complete.

A decision comes here once its record is committed (`carry_out`), and again whenever a coordinator
loads a log with a decision that is not complete. Every partition is asked for until it acknowledges
its marker. Nothing else ends the work, except that this broker no longer coordinates the id: then
its successor does the same from the log. So Complete is in the log only if every marker is durable.

Markers for one broker go in one request at a time, over one connection; what comes meanwhile waits
for the next request. Partitions of this broker are written without one. What fails is tried again
after a pause that grows up to a second, at whoever leads the partition then.

A partition that no image knows for a while belongs to a deleted topic and needs no marker. An image
that may lack a topic, because a page of the metadata cannot be read, says nothing about that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, final

from tidemill.client.network.errors import ClientError, error_code
from tidemill.client.network.peer_links import PeerLinks
from tidemill.coordinators.runtime.partition_writer import Marker
from tidemill.coordinators.runtime.shard import Now, Result
from tidemill.coordinators.transaction.decisions import EPOCH_PER_TRANSACTION
from tidemill.coordinators.transaction.shard import MarkersWanted, TransactionShard
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.core.limits import MARKERS_PER_REQUEST_MAX
from tidemill.core.logs import RateLimit
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.pacing import Pacer
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

__all__ = ["CoordinatingRuntime", "LocalMarkers", "MarkerSender"]

log = logging.getLogger(__name__)

VERSION = 2
TIMEOUT_S = 15.0
"""More than a broker takes to say that a marker is not acknowledged."""
PAUSE_FIRST_S = 0.02
PAUSE_LONGEST_S = 1.0
UNKNOWN_S_MAX = 10.0
"""A topic that is unknown for so long was deleted: no image lags behind by more."""
WRITTEN_PER_SLICE = 100
"""Markers that are written here in one turn of the loop."""

_DONE = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)
"""A log with a newer epoch of the producer holds no open transaction of the older one."""


class CoordinatingRuntime(Protocol):
    """The runtime of the transaction coordinator."""

    def epoch_of(self, index: int) -> int | None: ...

    def write(
        self,
        index: int,
        operation: Callable[[TransactionShard, Now], Result[ErrorCode | None]],
        refuse: Callable[[ErrorCode], ErrorCode | None],
    ) -> ErrorCode | Deferred[ErrorCode | None] | None: ...


class LocalMarkers(Protocol):
    """Writes markers to the partitions of this broker."""

    def write(self, marker: Marker, name: TopicPartition) -> ErrorCode | Deferred[ErrorCode]: ...


@final
class _Decision:
    """A decision whose markers are being written."""

    __slots__ = (
        "attempts",
        "deleted",
        "index",
        "left",
        "marker",
        "to_retry",
        "unknown_since",
        "wanted",
    )

    def __init__(self, index: int, epoch: int, wanted: MarkersWanted) -> None:
        self.index = index
        self.wanted = wanted
        is_bumped = wanted.version >= EPOCH_PER_TRANSACTION
        self.marker = Marker(wanted.producer, wanted.is_commit, epoch, is_bumped)
        self.left = set(wanted.partitions)
        """Partitions that have not acknowledged their marker."""
        self.to_retry: set[TopicPartition] = set()
        """Those of them that wait for the end of a pause."""
        self.deleted: set[TopicPartition] = set()
        """Those that got no marker, because the image did not know them for long enough."""
        self.attempts = 0
        self.unknown_since: dict[TopicPartition, float] = {}
        """When the image was first found not to know them."""


class _Entry(NamedTuple):
    """One marker to be written."""

    decision: _Decision
    partition: TopicPartition


@final
class MarkerSender:
    """All decisions of this broker's coordinator that are not complete."""

    def __init__(
        self,
        node_id: int,
        runtime: CoordinatingRuntime,
        local: LocalMarkers,
        peers: PeerLinks,
        *,
        image: Callable[[], MetadataImage],
        knows_all_topics: Callable[[], bool],
        clock: Clock,
        timers: LoopTimers,
        supervisor: Supervisor,
    ) -> None:
        """`knows_all_topics`: the image lacks none of those that exist."""
        self._node_id = node_id
        self._runtime = runtime
        self._local = local
        self._peers = peers
        self._image = image
        self._knows_all_topics = knows_all_topics
        self._clock = clock
        self._timers = timers
        self._supervisor = supervisor
        self._decisions: dict[str, _Decision] = {}
        """By transactional id; bounded by the ids of the coordinator."""
        self._queues: dict[int, deque[_Entry]] = {}
        """Markers for each broker whose task is running; they wait for its next request."""
        self._log = RateLimit()

    def __len__(self) -> int:
        return len(self._decisions)

    @property
    def markers_left(self) -> int:
        """Markers that are not acknowledged."""
        return sum(len(decision.left) for decision in self._decisions.values())

    def carry_out(self, index: int, epoch: int, wanted: Sequence[MarkersWanted]) -> None:
        """Write the markers of decisions that are durable in this partition of the coordinator.

        A shard that is loaded again hands over again what is being carried out already. If only
        Complete is missing, to begin anew would write markers after it, perhaps into the producer's
        next transaction (I22).
        """
        for one in wanted:
            known = self._decisions.get(one.transactional_id)
            is_marked = known is not None and known.wanted == one and not known.left
            if known is not None and is_marked and self._is_current(known):
                continue
            decision = _Decision(index, epoch, one)
            self._decisions[one.transactional_id] = decision
            self._route(decision, set(decision.left))

    # --- routing ---------------------------------------------------------------------------------

    def _route(self, decision: _Decision, names: set[TopicPartition]) -> None:
        """Queue markers for the leaders of their partitions; complete the decision after the last.

        Nothing happens for a decision that is no longer this broker's to carry out.
        """
        if not self._is_current(decision):
            return
        if not decision.left:
            self._complete(decision)
            return
        for name in sorted(names):
            leader = self._leader_of(decision, name)
            if leader is None:
                decision.deleted.add(name)
                self._settled(decision, name, ErrorCode.NONE)
            elif leader == NO_LEADER:
                self._settled(decision, name, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                self._queue(leader, _Entry(decision, name))

    def _is_current(self, decision: _Decision) -> bool:
        transactional_id = decision.wanted.transactional_id
        if self._decisions.get(transactional_id) is not decision:
            return False
        if self._runtime.epoch_of(decision.index) == decision.marker.coordinator_epoch:
            return True
        del self._decisions[transactional_id]
        return False

    def _leader_of(self, decision: _Decision, name: TopicPartition) -> int | None:
        """The broker to ask, NO_LEADER for now, or None: the topic was deleted."""
        partition = self._image().partition(*name)
        if partition is not None:
            decision.unknown_since.pop(name, None)
            return partition.leader
        if not self._knows_all_topics():
            return NO_LEADER
        now = self._clock.monotonic()
        if now - decision.unknown_since.setdefault(name, now) < UNKNOWN_S_MAX:
            return NO_LEADER
        log.warning("%s: deleted, its transaction of %s ends", name, decision.wanted.producer)
        return None

    def _queue(self, broker_id: int, entry: _Entry) -> None:
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = deque()
            send = self._write_here if broker_id == self._node_id else self._send_to
            self._supervisor.spawn(f"markers to broker {broker_id}", send(broker_id))
        queue.append(entry)

    # --- writing ---------------------------------------------------------------------------------

    async def _write_here(self, broker_id: int) -> None:
        """Write all markers for partitions of this broker; it ends when there are none."""
        queue = self._queues[broker_id]
        pacer = Pacer(WRITTEN_PER_SLICE)
        while queue:
            await pacer.step()
            decision, name = queue.popleft()
            if self._is_current(decision):
                self._hear(decision, name, self._local.write(decision.marker, name))
        del self._queues[broker_id]

    def _hear(
        self, decision: _Decision, name: TopicPartition, answer: ErrorCode | Deferred[ErrorCode]
    ) -> None:
        if isinstance(answer, Deferred):
            answer.then(lambda code: self._settled(decision, name, code))
        else:
            self._settled(decision, name, answer)

    async def _send_to(self, broker_id: int) -> None:
        """Send all markers for one broker, a request at a time; it ends when there are none."""
        queue = self._queues[broker_id]
        while queue:
            entries = [queue.popleft() for _ in range(min(len(queue), MARKERS_PER_REQUEST_MAX))]
            entries = [entry for entry in entries if self._is_current(entry.decision)]
            codes = await self._ask(broker_id, entries) if entries else {}
            for decision, name in entries:
                producer_id = decision.wanted.producer.producer_id
                code = codes.get((producer_id, name), ErrorCode.REQUEST_TIMED_OUT)
                self._settled(decision, name, code)
        del self._queues[broker_id]

    async def _ask(
        self, broker_id: int, entries: list[_Entry]
    ) -> dict[tuple[int, TopicPartition], ErrorCode]:
        """The broker's answers; none for what it may not have done."""
        try:
            response = await self._peers.request(
                broker_id,
                _request(entries),
                WriteTxnMarkersResponse,
                version=VERSION,
                timeout_s=TIMEOUT_S,
            )
        except (KafkaError, ClientError) as error:
            if self._log.allows(str(broker_id), self._clock.monotonic()):
                log.warning("markers for broker %d are in doubt: %s", broker_id, error)
            return {}
        return {
            (marker.producer_id, TopicPartition(topic.name, one.partition_index)): error_code(
                one.error_code
            )
            for marker in response.markers
            for topic in marker.topics
            for one in topic.partitions
        }

    # --- outcomes --------------------------------------------------------------------------------

    def _settled(self, decision: _Decision, name: TopicPartition, code: ErrorCode) -> None:
        if not self._is_current(decision):
            return
        is_fenced = code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if is_fenced and self._log.allows(str(name), self._clock.monotonic()):
            # A newer coordinator has written there: this one has lost its partition, and its
            # image will say so.
            log.warning("%s: another coordinator ends its transaction", name)
        if code not in _DONE:
            self._retry(decision, name)
            return
        decision.left.discard(name)
        if not decision.left:
            self._complete(decision)

    def _retry(self, decision: _Decision, name: TopicPartition) -> None:
        """Ask for the partition again after a pause, together with others of its transaction."""
        if not decision.to_retry:
            self._after_pause(decision)
        decision.to_retry.add(name)

    def _after_pause(self, decision: _Decision) -> None:
        pause_s = min(PAUSE_FIRST_S * 2.0 ** min(decision.attempts, 10), PAUSE_LONGEST_S)
        decision.attempts += 1

        def go_on() -> None:
            names, decision.to_retry = decision.to_retry, set()
            self._route(decision, names)

        self._timers.add_after(pause_s, go_on)

    def _complete(self, decision: _Decision) -> None:
        """Every marker is acknowledged: write so, or try again if that cannot be written now."""
        wanted = decision.wanted
        known = {name for name in decision.deleted if self._image().partition(*name) is not None}
        if known:  # the image had stood still, as it does for a broker without a lease
            decision.deleted -= known
            decision.left |= known
            self._route(decision, known)
            return

        def heard(code: ErrorCode | None) -> None:
            if not self._is_current(decision):
                return
            if code is None:
                del self._decisions[wanted.transactional_id]
            else:
                self._after_pause(decision)

        try:
            answer = self._runtime.write(
                decision.index,
                lambda shard, now: shard.complete(wanted, now=now),
                lambda code: code,
            )
        except KafkaError as error:
            heard(error.code)
            return
        if isinstance(answer, Deferred):
            answer.then(heard)
        else:
            heard(answer)


def _request(entries: list[_Entry]) -> WriteTxnMarkersRequest:
    by_decision: dict[str, WritableTxnMarker] = {}
    topics: dict[tuple[str, str], WritableTxnMarkerTopic] = {}
    for decision, name in entries:
        wanted = decision.wanted
        marker = by_decision.get(wanted.transactional_id)
        if marker is None:
            marker = by_decision[wanted.transactional_id] = WritableTxnMarker(
                producer_id=wanted.producer.producer_id,
                producer_epoch=wanted.producer.epoch,
                transaction_result=wanted.is_commit,
                coordinator_epoch=decision.marker.coordinator_epoch,
                transaction_version=wanted.version,
            )
        topic = topics.get((wanted.transactional_id, name.topic))
        if topic is None:
            topic = topics[wanted.transactional_id, name.topic] = WritableTxnMarkerTopic(
                name=name.topic
            )
            marker.topics.append(topic)
        topic.partition_indexes.append(name.partition)
    return WriteTxnMarkersRequest(markers=list(by_decision.values()))
