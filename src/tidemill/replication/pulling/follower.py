"""The partitions that this broker follows: which leader each is fetched from, and in which lane.

Followers pull. Each leader has two lanes, a connection each (`fetch_lane.py`), and a partition is
in one of them. Logs that diverge are told apart by leader epoch: the follower names the epoch of
its last batch, a leader that disagrees answers with the offset where that epoch ended, and the
follower truncates its log there (KIP-101, KIP-279, KIP-595).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import final

from tidemill.core.byte_rate import NO_BOUND, ByteRate
from tidemill.core.clock import Clock
from tidemill.core.ids import NO_LEADER
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.net import Net
from tidemill.metadata.image.metadata_image import BrokerImage, PartitionImage
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.fetch_lane import FetchLane, LaneServices
from tidemill.replication.pulling.lanes import HOT, lane_for
from tidemill.replication.pulling.leader_answers import LeaderAnswers
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.replication.pulling.lost_leaders import LostLeaders
from tidemill.replication.pulling.lost_offsets import LostOffsets

__all__ = ["Followers"]

_Place = tuple[int, int]
"""A leader, and a lane."""


@final
class Followers:
    """The partitions that this broker follows, by leader and lane."""

    def __init__(
        self,
        broker_id: int,
        net: Net,
        *,
        clock: Clock,
        cutter: LogCutter,
        lost_offsets: LostOffsets,
        supervisor: Supervisor,
        broker: Callable[[int], BrokerImage | None],
        broker_epoch: Callable[[], int] = lambda: -1,
        catch_up_rate: Callable[[], int] = lambda: NO_BOUND,
        checkpoint: Callable[[], Awaitable[None]] | None = None,
        unclean_epoch: Callable[[Partition], int | None] = lambda _partition: None,
        vouches: bool = False,
    ) -> None:
        """`catch_up_rate` bounds what all that are far behind receive, in bytes per second.

        `checkpoint` makes durable where logs start; `unclean_epoch`: see `judge_cut`; `vouches`:
        only where partitions are silent after their leaders (`vouching/`).
        """
        self._broker_id = broker_id
        self.lost_leaders = LostLeaders()
        self._answers = LeaderAnswers(
            clock=clock,
            cutter=cutter,
            lost_offsets=lost_offsets,
            supervisor=supervisor,
            released=self.released,
            start_saved=self.start_moved,
            checkpoint=checkpoint,
            unclean_epoch=unclean_epoch,
        )
        self._services = LaneServices(
            broker_id=broker_id,
            net=net,
            clock=clock,
            supervisor=supervisor,
            broker=broker,
            broker_epoch=broker_epoch,
            answers=self._answers,
            lost_leaders=self.lost_leaders,
            catch_up_rate=ByteRate(catch_up_rate),
            measured=self._measured,
            vouches=vouches,
        )
        self._places: dict[Partition, _Place] = {}
        self._lanes: dict[_Place, FetchLane] = {}
        """Two for each broker that has led something here."""

    def lanes(self) -> Iterable[FetchLane]:
        return self._lanes.values()

    def role_changed(self, partition: Partition, image: PartitionImage) -> None:
        """Follow the partition's leader from now on; called whenever its image was applied."""
        self._answers.role_changed(partition)
        if image.leader in (self._broker_id, NO_LEADER):
            self.leave(partition)
            return
        leader, lane = self._places.get(partition, (NO_LEADER, HOT))
        self._follow(partition, (image.leader, lane if leader == image.leader else HOT))

    def flushed(self, partition: Partition) -> None:
        """A flush round has covered a partition that waits for disks."""
        place = self._places.get(partition)
        if place is not None and partition.settings.flush_before_ack:
            self._lanes[place].flushed(partition)

    def start_moved(self, partition: Partition) -> None:
        """The leader is to hear of its log start: it sends no reader here for what is below."""
        place = self._places.get(partition)
        if place is not None:
            self._lanes[place].start_moved(partition)

    def _follow(self, partition: Partition, place: _Place) -> None:
        if self._places.get(partition) != place:
            self.leave(partition)
            self._places[partition] = place
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = FetchLane(*place, self._services)
        lane.follow(partition)

    def leave(self, partition: Partition) -> None:
        """Follow nobody; no effect if it follows nobody."""
        place = self._places.pop(partition, None)
        if place is not None:
            self._lanes[place].leave(partition)

    def released(self, partition: Partition, rest_s: float) -> None:
        """Its log was cut or mended: fetch it again, after a rest."""
        place = self._places.get(partition)
        if place is not None:
            self._lanes[place].release(partition, rest_s)

    def _measured(self, partition: Partition, behind_bytes: int) -> None:
        leader, lane = self._places[partition]
        wanted = lane_for(lane, behind_bytes)
        if wanted != lane:
            self._follow(partition, (leader, wanted))
