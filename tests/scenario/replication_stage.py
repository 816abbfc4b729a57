"""The stage for stories of replication: three simulated brokers and one partition.

Each broker has a replica, 0 leads at first and 1 is the controller; min.insync.replicas is 2.
Simulated time passes only while a command runs. Its commands:

produce VALUE [acks=1]   waits for the acknowledgement, at most 2 s; it may come later
ask N VALUE              the same with acks=1, but broker N is asked, whoever leads; no retry
read [N]                 all that a consumer gets, from the leader or from broker N
delete OFFSET            DeleteRecords: all before the offset
drop, create             the topic is deleted, and made again under its name
move N...                reassign the partition to these brokers, the preferred leader first
take_back                cancel the reassignment that goes on
crash N [power]          the process dies; with `power` the machine, with all that was not flushed
restart N [empty]        its next life; with `empty` on a new disk, under the same id
stop N, start N          clean
cut N, heal [N]          its network to the other brokers; clients and the store still reach it
pause N [writing]        its process stands still, as with SIGSTOP; with `writing` as soon as it has
                         a change on its way to the store, which arrives when it goes on
unpause N
suspend N, expire N      its session with the store: connection lost, ended by the store;
resume N                 connected again
slow N SECONDS           each call of its disk takes that long; 0: as before
wait SECONDS             time passes
fear N                   time passes until the leader has proposed N for the in-sync set
show                     the partition as the newest metadata has it, and each replica with its log;
                         the bar is its high watermark
controllers              who believes to be the controller, and whom the newest metadata names
writes N                 whether broker N has sent changes to the store since this was asked last
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import count
from typing import Any

from tests.sim.clients import retry_until_ready
from tests.sim.replicas import eventually, log_bytes, replicas_agree
from tidemill.client.admin.replica_admin import reassign
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.consuming.consumer import EARLIEST, Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP, list_offsets
from tidemill.client.producing.producer import Producer, RecordDelivery
from tidemill.core.errors import ErrorCode, KafkaError, TidemillError
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.store.coord import Op
from tidemill.replication.partition import Partition
from tidemill.testing.sim.loop import without_collector
from tidemill.testing.sim.world import SimWorld, host_name
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch, iter_records

STORE_CHANGES = ("Create", "Put", "Delete")
IDS = (0, 1, 2)
FIRST_CONTROLLER = 1
ORDERS = TopicPartition("orders", 0)
SEED = 7
PATIENCE_S = 2.0
DELIVERY_TIMEOUT_S = 600.0
REQUEST_TIMEOUT_S = 2.0
FEAR_POLL_S = 0.0002
FEAR_POLLS_MAX = 10_000
"""A proposal is usually settled within milliseconds."""


class ReplicationStage:
    """Writes what clients are told and what the brokers have."""

    def __init__(self) -> None:
        self._world = SimWorld(SEED)
        self._pending: dict[str, asyncio.Future[int]] = {}
        """Records that were sent and neither acknowledged nor refused so far."""
        self._lines: list[str] = []
        self._numbers = count()
        self._writers: set[str] = set()
        """Hosts whose changes arrived at the store, whether it made them or not."""
        self._world.trace.probe = self._note_write
        self._run(self._set_up())

    def play(self, command: str) -> list[str]:
        self._lines.clear()
        verb, *arguments = command.split()
        self._run(getattr(self, f"_play_{verb}")(*arguments))
        self._tell_settled()
        return list(self._lines)

    def close(self) -> None:
        """End the simulation; raises if a broker has stopped itself, or a task failed."""

        async def nothing(_world: SimWorld) -> None:
            return

        for future in self._pending.values():
            future.cancel()
        self._world.run(nothing)

    def _note_write(self) -> None:
        _, what, where, _ = self._world.trace.last[-1].split(" ", 3)
        if what in STORE_CHANGES:
            self._writers.add(where.partition(":")[0])

    def _tell(self, line: str) -> None:
        self._lines.append(line)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        with without_collector():
            self._world.loop.run_until_complete(work)

    async def _set_up(self) -> None:
        for broker_id in (FIRST_CONTROLLER, *(one for one in IDS if one != FIRST_CONTROLLER)):
            await self._world.start_broker(broker_id)
        self._cluster = self._new_client("client")
        await self._play_create()
        await eventually(lambda: replicas_agree(self._world, IDS, ORDERS))
        self._producers = {
            "acks=all": await self._new_producer(idempotent=True),
            "acks=1": await self._new_producer(acks=1),
        }

    async def _play_create(self) -> None:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(IDS))
        topic = CreatableTopic(
            name=ORDERS.topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[CreatableTopicConfig(name="min.insync.replicas", value="2")],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        response = await self._cluster.ask_controller(request, CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.NONE
        await self._cluster.refresh([ORDERS.topic])

    async def _play_drop(self) -> None:
        refusals = await Admin(self._cluster).delete_topics([ORDERS.topic])
        assert refusals == {ORDERS.topic: None}

    def _new_client(self, name: str) -> ClusterClient:
        return ClusterClient(self._world.client_net(name), self._world.bootstrap)

    async def _new_producer(self, **options: Any) -> Producer:
        cluster = self._new_client("producer")
        producer = Producer(
            cluster, self._world.clock, delivery_timeout_s=DELIVERY_TIMEOUT_S, **options
        )
        return await producer.__aenter__()

    # --- clients ---------------------------------------------------------------------------------

    async def _play_produce(self, value: str, acks: str = "acks=all") -> None:
        producer = self._producers[acks]

        async def send() -> RecordDelivery:
            return await producer.send(ORDERS.topic, value.encode(), partition=0)

        delivery = await retry_until_ready(send)
        offset = asyncio.ensure_future(delivery.offset())
        self._pending[value] = offset
        await asyncio.wait([offset], timeout=PATIENCE_S)
        if not offset.done():
            self._tell(f"{value} waits")

    def _tell_settled(self) -> None:
        for value, offset in list(self._pending.items()):
            if not offset.done():
                continue
            del self._pending[value]
            error = offset.exception()
            if error is None:
                self._tell(f"{value} is acknowledged at offset {offset.result()}")
            else:
                self._tell(f"{value} is refused: {_told(error)}")

    async def _play_ask(self, broker_id: str, value: str) -> None:
        records = memoryview(build_batch([Record(value.encode(), timestamp=1)]))
        data = PartitionProduceData(index=0, records=records)
        topic = TopicProduceData(topic_id=self._topic_id, partition_data=[data])
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
        connection = await self._cluster.connection(int(broker_id))
        try:
            response = await connection.request(
                request, ProduceResponse, timeout_s=REQUEST_TIMEOUT_S
            )
        except TidemillError as error:
            self._tell(f"{broker_id} does not answer: {_told(error)}")
            return
        code = ErrorCode(response.responses[0].partition_responses[0].error_code)
        self._tell(f"{broker_id} answers {code.name}")

    async def _play_read(self, broker_id: str = "") -> None:
        if broker_id:
            await self._read_from(int(broker_id))
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                self._tell(f"read: {' '.join(await self._drained()) or 'nothing'}")
        except TimeoutError:
            self._tell("read: no answer")
        except TidemillError as error:
            self._tell(f"read: {_told(error)}")

    async def _drained(self) -> list[str]:
        async with self._new_client("reader") as cluster:
            (end,) = (await list_offsets(cluster, {ORDERS: LATEST_TIMESTAMP})).values()
            consumer = Consumer(cluster)
            await consumer.assign(ORDERS.topic, EARLIEST, [ORDERS.partition])
            values: list[str] = []
            while consumer.positions[ORDERS] < end.offset:
                for fetched in await consumer.poll(1.0):
                    values += [(record.value or b"").decode() for record in fetched.records]
            return values

    async def _read_from(self, broker_id: int) -> None:
        wanted = FetchPartition(fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=self._topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[topic])
        connection = await self._cluster.connection(broker_id)
        try:
            response = await connection.request(request, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
        except TidemillError as error:
            self._tell(f"{broker_id} does not answer: {_told(error)}")
            return
        data = response.responses[0].partitions[0]
        values = " ".join(_values(bytes(data.records or b"")))
        self._tell(f"{broker_id} answers {values or ErrorCode(data.error_code).name}")

    async def _play_delete(self, offset: str) -> None:
        await Admin(self._cluster).delete_records(ORDERS.topic, {0: int(offset)})

    async def _play_move(self, *broker_ids: str) -> None:
        await self._reassign([int(one) for one in broker_ids])

    async def _play_take_back(self) -> None:
        await self._reassign(None)

    async def _reassign(self, target: list[int] | None) -> None:
        async def ask() -> dict[TopicPartition, KafkaError]:
            await self._cluster.refresh([ORDERS.topic])  # the controller may be another one
            return await reassign(self._cluster, {ORDERS: target})

        for error in (await retry_until_ready(ask)).values():
            self._tell(f"refused: {error.code.name}")

    # --- faults ----------------------------------------------------------------------------------

    async def _play_crash(self, broker_id: str, power: str = "") -> None:
        self._world.crash(int(broker_id), power_loss=bool(power))

    async def _play_restart(self, broker_id: str, disk: str = "") -> None:
        if disk:
            self._world.disk(int(broker_id)).rename("/data", f"/unmounted-{next(self._numbers)}")
        await self._world.restart(int(broker_id))

    async def _play_stop(self, broker_id: str) -> None:
        began = self._world.loop.time()
        await self._world.stop_broker(int(broker_id))
        self._tell(f"{broker_id} stopped within {_seconds(self._world.loop.time() - began)}")

    async def _play_start(self, broker_id: str) -> None:
        await self._world.start_broker(int(broker_id))

    async def _play_cut(self, broker_id: str) -> None:
        others = [host_name(other) for other in IDS if other != int(broker_id)]
        self._world.net.isolate(host_name(int(broker_id)), others)

    async def _play_heal(self, broker_id: str = "") -> None:
        if not broker_id:
            self._world.net.heal_all()
            return
        for other in IDS:
            self._world.net.heal(host_name(int(broker_id)), host_name(other))
            self._world.net.heal(host_name(other), host_name(int(broker_id)))

    async def _play_pause(self, broker_id: str, writing: str = "") -> None:
        if not writing:
            self._world.pause(int(broker_id))
            return
        session = self._world.session(int(broker_id))
        send = session.multi

        async def pause_and_send(ops: Sequence[Op]) -> None:
            session.multi = send  # type: ignore[method-assign]
            self._world.pause(int(broker_id))
            await send(ops)

        session.multi = pause_and_send  # type: ignore[method-assign]

    async def _play_unpause(self, broker_id: str) -> None:
        self._world.unpause(int(broker_id))

    async def _play_suspend(self, broker_id: str) -> None:
        self._world.session(int(broker_id)).suspend()

    async def _play_expire(self, broker_id: str) -> None:
        self._world.session(int(broker_id)).expire()

    async def _play_resume(self, broker_id: str) -> None:
        self._world.session(int(broker_id)).resume()

    async def _play_slow(self, broker_id: str, seconds: str) -> None:
        self._world.disk_delays_s[int(broker_id)] = float(seconds)

    async def _play_wait(self, seconds: str) -> None:
        await asyncio.sleep(float(seconds))

    async def _play_fear(self, broker_id: str) -> None:
        for _ in range(FEAR_POLLS_MAX):
            if self._is_feared(int(broker_id)):
                return
            await asyncio.sleep(FEAR_POLL_S)
        self._tell(f"nobody proposes {broker_id}")

    def _is_feared(self, broker_id: int) -> bool:
        copies = [broker.replicas.find(*ORDERS) for broker in self._world.up_brokers().values()]
        led = [copy.led for copy in copies if copy is not None and copy.led is not None]
        return any(broker_id in one.in_sync.feared for one in led)

    # --- what the brokers have -------------------------------------------------------------------

    @property
    def _topic_id(self) -> Any:
        return self._cluster.metadata.topics[ORDERS.topic].topic_id

    def _newest(self) -> PartitionImage | None:
        brokers = self._world.up_brokers().values()
        images = [one for broker in brokers if (one := broker.cluster.image.partition(*ORDERS))]
        return max(images, key=lambda one: one.partition_epoch, default=None)

    async def _play_show(self) -> None:
        newest = self._newest()
        if newest is not None:
            leader = f"leader {newest.leader}" if newest.leader != NO_LEADER else "no leader"
            elr = f", eligible {_ids(newest.elr)}" if newest.elr else ""
            moves = f", coming {_ids(newest.adding)}" if newest.adding else ""
            moves += f", going {_ids(newest.removing)}" if newest.removing else ""
            in_sync = f"in sync {_ids(newest.isr)}{elr}{moves}"
            self._tell(f"{leader}, epoch {newest.leader_epoch}, {in_sync}")
        for broker_id in IDS:
            self._tell(f"  {broker_id} {self._told_replica(broker_id)}")

    def _told_replica(self, broker_id: int) -> str:
        broker = self._world.up_brokers().get(broker_id)
        copy = broker.replicas.find(*ORDERS) if broker is not None else None
        if broker is None:
            return "is down"
        if copy is None:
            known = broker.cluster.image.partition(*ORDERS)
            is_replica = known is not None and broker_id in known.replicas
            return "has no log yet" if is_replica else "has no replica"
        return f"{_role(copy, has_lease=broker.cluster.may_act)}: {_log(copy)}"

    async def _play_controllers(self) -> None:
        up = self._world.up_brokers()
        believers = [one for one, broker in sorted(up.items()) if broker.cluster.is_controller]
        images = [broker.cluster.image for broker in up.values()]
        newest = max(images, key=lambda one: one.controller_epoch)
        self._tell(f"controller {newest.controller_broker_id}; acts as one: {_ids(believers)}")

    async def _play_writes(self, broker_id: str) -> None:
        has_sent = host_name(int(broker_id)) in self._writers
        self._writers.discard(host_name(int(broker_id)))
        self._tell(f"{broker_id} sent {'changes' if has_sent else 'nothing'}")


def _role(copy: Partition, *, has_lease: bool) -> str:
    if copy.is_leader:
        feared = copy.led.in_sync.feared if copy.led is not None else ()
        fears = f", fears {_ids(feared)}" if feared else ""
        return f"leads in epoch {copy.leader_epoch}{'' if has_lease else ' without a lease'}{fears}"
    leader = copy.image.leader if copy.image is not None else NO_LEADER
    if leader == NO_LEADER:
        return f"waits in epoch {copy.leader_epoch}"
    return f"follows {leader} in epoch {copy.leader_epoch}"


def _log(copy: Partition) -> str:
    start = copy.log.log_start_offset
    values = _values(log_bytes(copy))
    known = copy.high_watermark - start
    cut_off = [f"({start} deleted)"] if start else []
    return " ".join([*cut_off, *values[:known], "|", *values[known:]])


def _values(data: bytes) -> list[str]:
    return [
        (record.value or b"").decode()
        for position, header in iter_headers(memoryview(data))
        for record in iter_records(memoryview(data)[position:], header)
    ]


def _ids(ids: Any) -> str:
    return " ".join(map(str, ids)) or "nobody"


def _seconds(duration_s: float) -> str:
    """A round figure, so that a story does not tell of milliseconds."""
    return next(f"{limit:g} s" for limit in (0.5, 1, 5, 10, 60, 600) if duration_s <= limit)


def _told(error: BaseException) -> str:
    code = getattr(error, "code", None)
    return code.name if isinstance(code, ErrorCode) else type(error).__name__
