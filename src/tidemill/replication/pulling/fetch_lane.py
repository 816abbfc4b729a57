"""One connection to one leader: fetches its news for the partitions of one lane.

    fetch -> wait -> apply -> fetch ...

A fetch also acknowledges what was appended, so the next one leaves before anything is flushed. When
a flush round has ended, the leader is told so by a ReplicaProgress, which overtakes the fetch that
waits there; the next fetch says the same again.

Mostly one fetch is on its way. A partition that must be named soon, because its leader has changed
or its cut has ended, does not wait for the answer: a second fetch makes the leader answer the
first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import final
from uuid import UUID

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError, error_code
from tidemill.core.byte_rate import NO_BOUND, ByteRate
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.net import Net
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.fetch_round import FetchRound
from tidemill.replication.pulling.lanes import CATCH_UP, LANE_LIMITS, behind_bytes
from tidemill.replication.pulling.leader_answers import GO_ON, LeaderAnswers
from tidemill.replication.pulling.lost_leaders import LostLeaders
from tidemill.replication.vouching.vouch import NO_VOUCH
from tidemill.wire.generated.fetch import FetchResponse, PartitionData
from tidemill.wire.generated.replica_progress import (
    ProgressPartition,
    ProgressTopic,
    ReplicaProgressRequest,
)

__all__ = ["FetchLane", "LaneServices", "progress_of"]

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
RETRY_S = 0.1
PAUSE_S_MAX = 1.0
PROGRESS_VERSION = 0
FETCHES_IN_FLIGHT_MAX = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneServices:
    """What all lanes of a broker share."""

    broker_id: int
    net: Net
    clock: Clock
    supervisor: Supervisor
    broker: Callable[[int], BrokerImage | None]
    broker_epoch: Callable[[], int]
    answers: LeaderAnswers
    lost_leaders: LostLeaders
    catch_up_rate: ByteRate
    measured: Callable[[Partition, int], None]
    """A partition is about so many bytes behind its leader."""
    vouches: bool
    """Our fetches vouch for leaders that have no lease (`vouching/`)."""


@final
class FetchLane:
    """The partitions that are fetched from one leader in one lane, and the loop that does it."""

    def __init__(self, leader_id: int, lane: int, services: LaneServices) -> None:
        self._leader_id = leader_id
        self._lane = lane
        self._services = services
        self.round = FetchRound(
            services.broker_id, lane, LANE_LIMITS[lane], vouches=services.vouches
        )
        self._answered_at = NO_VOUCH
        """When the last answer was taken in, by boot time."""
        self._connection: BrokerConnection | None = None
        self._in_flight: deque[asyncio.Future[FetchResponse]] = deque()
        self._flushed: dict[Partition, None] = {}
        """Partitions whose progress the leader has not been told."""
        self.tells_progress = True
        """A simulation turns it off: then leaders hear of flushes from fetches alone."""
        self._is_running = False
        self._is_hurrying = False
        self._failure = ""
        """Why the last attempt failed, as it was logged: the next ones may fail for minutes."""

    # --- partitions ------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Name the partition soon: it is new here, or its role has changed."""
        self.round.add(partition)
        if not self._services.answers.may_ask(partition):
            self.round.hold(partition)
        if not self._is_running:
            self._is_running = True
            name = f"follow {self._leader_id} in lane {self._lane}"
            self._services.supervisor.spawn(name, self._run())
        self._hurry()

    def leave(self, partition: Partition) -> None:
        self.round.remove(partition)
        partition.mandate.stopped_following(self._leader_id, self._answered_at)

    def release(self, partition: Partition, rest_s: float) -> None:
        """A cut has ended."""
        if rest_s > GO_ON:
            self.round.hold(partition, self._services.clock.monotonic() + rest_s)
        elif self._services.answers.may_ask(partition):
            self.round.release(partition)
        self._hurry()

    def start_moved(self, partition: Partition) -> None:
        """Retention has dropped what is below: the next fetch says so."""
        self.round.change(partition)

    def flushed(self, partition: Partition) -> None:
        """A flush round has covered the partition: tell the leader at the end of this turn."""
        self.round.change(partition)
        if not self._in_flight:
            return  # the fetch that leaves next says so
        if not self._flushed:
            asyncio.get_running_loop().call_soon(self._send_progress)
        self._flushed[partition] = None

    # --- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self.round:
                try:
                    await self._run_connected()
                except (ClientError, KafkaError) as error:
                    self._report(str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._is_running = False

    def _report(self, failure: str) -> None:
        if failure != self._failure:
            log.info("fetching from broker %d failed: %s", self._leader_id, failure)
        self._failure = failure

    async def _run_connected(self) -> None:
        leader = self._services.broker(self._leader_id)
        if leader is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"broker {self._leader_id} is not alive"
            )
        host, port = leader.peer_endpoint
        connection = await BrokerConnection.open(
            self._services.net, host, port, timeout_s=REQUEST_TIMEOUT_S
        )
        self.round.restart()
        self._connection = connection
        try:
            while self.round:
                await self._fetch_once(connection)
        except ClientError:
            self._services.lost_leaders.lost(self._leader_id, self._services.clock.monotonic())
            raise
        finally:
            self._connection = None
            self._in_flight.clear()
            connection.close()

    async def _fetch_once(self, connection: BrokerConnection) -> None:
        """Take in one answer, and have the next fetch leave."""
        clock = self._services.clock
        began = clock.monotonic()
        if not self._in_flight:
            await connection.wait_room()
            self._send_fetch(connection)
        else:
            # It left before the last answer came, and waits at the leader: what that answer
            # brought must be acknowledged now.
            self._send_sooner()
        response = await self._in_flight[0]
        self._in_flight.popleft()
        taken_bytes = self._take_in(response)
        self._services.answers.maybe_save_starts()
        if taken_bytes and self._lane == CATCH_UP:
            now = clock.monotonic()
            # As long as the work took: those who keep up have the other half of this broker.
            pause_s = min(now - began, PAUSE_S_MAX)
            bound_s = self._services.catch_up_rate.take(taken_bytes, now)
            await asyncio.sleep(max(pause_s, bound_s, response.throttle_time_ms / 1000))

    def _send_fetch(self, connection: BrokerConnection) -> None:
        services = self._services
        request = self.round.next_request(
            broker_epoch=services.broker_epoch(),
            now=services.clock.monotonic(),
            bytes_max=services.catch_up_rate.piece_bytes if self._lane == CATCH_UP else NO_BOUND,
        )
        self._in_flight.append(
            connection.request_nowait(request, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
        )

    def _hurry(self) -> None:
        """Send what has changed at the end of this turn, although a fetch waits at the leader."""
        if not self._is_hurrying and self._connection is not None:
            self._is_hurrying = True
            asyncio.get_running_loop().call_soon(self._send_hurried)

    def _send_hurried(self) -> None:
        with suppress(ClientError):  # the connection is lost: who waits for its answers is told
            self._send_sooner()

    def _send_sooner(self) -> None:
        self._is_hurrying = False
        if (
            self._connection is None
            or not self.round.has_session
            or not self.round.has_changes
            or not self._connection.has_room
            or not 0 < len(self._in_flight) < FETCHES_IN_FLIGHT_MAX
        ):
            return  # the fetch that leaves next says so
        self._send_fetch(self._connection)

    # --- answers ---------------------------------------------------------------------------------

    def _take_in(self, response: FetchResponse) -> int:
        """Apply an answer; the size of its records. KafkaError if the session has ended."""
        if response.error_code:
            raise KafkaError(error_code(response.error_code))
        self._answered_at = self._services.clock.boottime()
        self._failure = ""
        self._services.lost_leaders.reached(self._leader_id)
        answer = self.round.answered(response.session_id)
        taken_bytes = 0
        for topic in response.responses:
            for data in topic.partitions:
                taken_bytes += len(data.records or b"")
                self._apply(topic.topic_id, data, answer)
        return taken_bytes

    def _apply(self, topic_id: UUID, data: PartitionData, answer: int) -> None:
        named = self.round.try_named((topic_id, data.partition_index), answer)
        if named is None or not self._follows(named.partition, named.leader_epoch):
            return  # its role changed during the fetch
        partition = named.partition
        log_ = partition.log
        start_before, end_before = log_.log_start_offset, log_.log_end_offset
        is_wanted = partial(self._follows, partition, named.leader_epoch)
        rest_s = self._services.answers.apply(partition, data, is_wanted=is_wanted)
        if rest_s > GO_ON:
            self.round.hold(partition, self._services.clock.monotonic() + rest_s)
            return
        if data.records or log_.log_start_offset != start_before:
            self.round.change(partition)
        if data.records:
            own_end = log_.log_end_offset
            behind = behind_bytes(
                leader_end=data.log_end_offset,
                own_end=own_end,
                read_offsets=own_end - end_before,
                read_bytes=len(data.records),
            )
            self._services.measured(partition, behind)

    def _follows(self, partition: Partition, epoch: int) -> bool:
        """Whether it still follows this leader in this epoch: between epochs others may lead."""
        return partition in self.round and partition.leader_epoch == epoch

    # --- progress --------------------------------------------------------------------------------

    def _send_progress(self) -> None:
        flushed, self._flushed = self._flushed, {}
        if self._connection is None or not self.round.has_session or not self.tells_progress:
            return  # the first fetch of a session names all
        topics: dict[UUID, ProgressTopic] = {}
        for partition in flushed:
            if partition in self.round and self._services.answers.may_ask(partition):
                topic = topics.setdefault(
                    partition.topic_id, ProgressTopic(topic_id=partition.topic_id)
                )
                topic.partitions.append(progress_of(partition))
        request = ReplicaProgressRequest(
            broker_id=self._services.broker_id,
            broker_epoch=self._services.broker_epoch(),
            topics=list(topics.values()),
        )
        try:
            self._connection.send_unanswered_nowait(request, version=PROGRESS_VERSION)
        except ClientError:
            return  # the next fetch says the same


def progress_of(partition: Partition) -> ProgressPartition:
    """What is flushed here, in the epoch in which its leader may count it."""
    return ProgressPartition(
        partition_index=partition.name.partition,
        leader_epoch=partition.leader_epoch,
        flushed_offset=partition.log.flushed_offset,
    )
