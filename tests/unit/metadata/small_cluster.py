"""The clusters of several brokers on one store, driven step by step: no tasks, no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.ids import ZERO_UUID
from tidemill.core.loop.steps import finished
from tidemill.core.rng import SeededRng
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE, Software
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.head import HEAD, Head, page_path
from tidemill.metadata.image.metadata_image import Delta
from tidemill.metadata.image.page import StoredTopic, decode_page, page_of, page_value
from tidemill.metadata.store.coord import Create, Op, Put
from tidemill.metadata.store.memory_store import MemoryCoord, MemoryCoordServer
from tidemill.testing.manual_clock import ManualClock


def count_of(broker_epoch: int) -> int:
    """How many registrations there were up to this one; the lower bits are random."""
    return broker_epoch >> 31


@dataclass
class Member:
    """One broker: its session, its cluster, and the deltas and alarms that it got."""

    coord: MemoryCoord
    cluster: Cluster
    deltas: list[Delta] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)


class SmallCluster:
    """Brokers 0, 1, 2, ... on a shared store; broker 0 starts first and is the controller."""

    def __init__(self, *flags: str) -> None:
        self.server = MemoryCoordServer(deliver=self._deliver)
        self.notices_held = False
        """While set, no session is notified of changes."""
        self.flags = flags
        self.clock = ManualClock()
        self.members: dict[int, Member] = {}

    async def start(
        self, *broker_ids: int, unclean: bool = False, software: Software = THIS_SOFTWARE
    ) -> list[Cluster]:
        for broker_id in broker_ids:
            await self.register(broker_id, unclean=unclean, software=software)
        await self.catch_up()
        return [self.members[broker_id].cluster for broker_id in broker_ids]

    async def register(
        self,
        broker_id: int,
        *,
        unclean: bool = False,
        seen: tuple[int, int] = (0, 0),
        software: Software = THIS_SOFTWARE,
        directory_id: UUID = ZERO_UUID,
    ) -> None:
        """Start a broker; the others have not reacted to it yet."""
        config = broker_config(flags=[*self.flags, f"node.id={broker_id}"])
        alarms: list[str] = []
        coord = self.server.session()
        cluster = Cluster(
            coord,
            config,
            SeededRng(broker_id),
            clock=self.clock,
            alarm=alarms.append,
            software=software,
        )
        member = Member(coord, cluster, alarms=alarms)
        cluster.subscribe(member.deltas.append)
        self.members[broker_id] = member
        await cluster.start(
            Endpoint(f"host-{broker_id}", 9092),
            unclean=unclean,
            seen=seen,
            directory_id=directory_id,
        )

    async def catch_up(self) -> None:
        """Run until no broker has work left, within a bounded number of rounds."""
        for _ in range(10):
            for member in self.members.values():
                await member.cluster.catch_up()

    def _deliver(self, notice: Callable[[], None]) -> None:
        if not self.notices_held:
            notice()

    def crash(self, broker_id: int) -> None:
        """Kill the process; its session expires."""
        self.server.expire(self.members.pop(broker_id).coord)

    # --- the store, as another program sees it ---

    def stored_topics(self) -> dict[str, StoredTopic]:
        """All topics that are stored."""
        found = self.server.children(nodes.PAGES)
        pages = [finished(decode_page(int(path[-2:]), node.value)) for path, node in found]
        return {topic.name: topic for page in pages for topic in page.topics}

    async def put(self, path: str, value: bytes) -> None:
        """Write a part of the metadata and the head, past all checks."""
        await self._put(path, value, self._next_head(path))

    async def mend(self, path: str, value: bytes) -> None:
        """The same with what was there before it was damaged, as the newest write."""
        head = self._next_head(path)
        fields = stored_fields.load(path, value, formats=range(9))
        await self._put(path, stored_fields.dump({**fields._value, "seq": head.seq}), head)

    async def put_back(self, path: str, value: bytes) -> None:
        """Put a copy in place of a node; the head stays, so nobody hears of it."""
        session = self.server.session()
        await session.start()
        await session.multi([self._op(path, value)])
        await session.close()

    async def put_topic(self, topic: StoredTopic) -> None:
        """Store a topic as another version would."""
        page = page_of(topic.topic_id)
        others = [
            one
            for one in self.stored_topics().values()
            if page_of(one.topic_id) == page and one.name != topic.name
        ]
        head = self._next_head(page_path(page))
        value = stored_fields.dump(finished(page_value(head.seq, [*others, topic])))
        await self._put(page_path(page), value, head)

    def _next_head(self, path: str) -> Head:
        node = self.server.get(HEAD)
        return (Head() if node is None else Head.decode(node.value)).after([path], epoch=0)

    async def _put(self, path: str, value: bytes, head: Head) -> None:
        session = self.server.session()
        await session.start()
        await session.multi([self._op(path, value), self._op(HEAD, head.encode())])
        await session.close()

    def _op(self, path: str, value: bytes) -> Op:
        node = self.server.get(path)
        return Create(path, value) if node is None else Put(path, value, node.version)
