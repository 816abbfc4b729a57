"""One broker without sockets and files: real services over a store and logs in memory.

A request takes its whole path as bytes: encoded, parsed, dispatched, answered, encoded, decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

from tidemill.broker.coordinators import Coordinators
from tidemill.broker.data_plane import obey_lag_limit
from tidemill.broker.seams import Seams
from tidemill.core.byte_rate import ByteRate
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.rng import SeededRng
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE
from tidemill.metadata.producer_ids import ProducerIds
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.fetching.fetch_sessions import FetchSessions
from tidemill.server.fetching.parked_requests import ParkedRequests
from tidemill.server.handlers import HANDLERS
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.limits.quotas import Quotas
from tidemill.server.request.context import RequestContext
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.handler import Progress, Unfinished
from tidemill.server.request.services import Services
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.api_keys import API_SPECS, load
from tidemill.wire.headers import encode_request, parse_request_header, parse_response_header
from tidemill.wire.primitives import Reader
from tidemill.wire.records import Record, build_batch

NODE_ID = 1
NOW_MS = 1_700_000_000_000
ADVERTISED = Endpoint("broker.example", 9092)
CORRELATION_ID = 7
CAPACITY_BYTES = 1_000_000


class ManualClock:
    """Time stands still until a test moves it."""

    def __init__(self):
        self.now_ms = NOW_MS

    def wall_ms(self):
        return self.now_ms

    def monotonic(self):
        return self.now_ms / 1000

    def boottime(self):
        return self.monotonic()


class MemoryLogs:
    """A `LogStore` that has an empty log for every partition, or none while `withheld`."""

    def __init__(self):
        self.withheld = False

    def get(self, name, topic_id):
        return None if self.withheld else MemoryPartitionLog(LogConfig())

    def high_watermark(self, name):
        return 0

    def delete_log(self, name):
        pass

    def delete_unloaded(self, name, topic_id):
        return False


class NoFlushes:
    """Logs in memory count as flushed, so requests for a flush are ignored."""

    def appended(self, log, size_bytes, *, ack_waits):
        pass

    def request(self, log):
        pass


class Peer:
    principal = "User:tester"
    client_address = "192.0.2.1"
    is_internal = True
    is_passed_on = False
    is_librdkafka = False
    server_endpoint = Endpoint("192.0.2.9", 9092)


class NoController:
    """A link to the controller that finds none for as long as a request waits for one."""

    def __init__(self, clock):
        self._clock = clock

    async def request(self, message, response_type, *, version, timeout_s):
        self._clock.now_ms += 1_000
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "there is no controller at present")


class Permissions:
    """Allows everything that `deny` has not named, for all resources or for one."""

    def __init__(self):
        self._denied = set()

    def deny(self, operation, name=None):
        self._denied.add((operation, name))

    def allows(self, principal, operation, resource):
        return not {(operation, None), (operation, resource.name)} & self._denied


def value_of(answer):
    """The value of a deferred answer, which must be resolved."""
    assert answer.resolved
    values = []
    answer.then(values.append)
    return values[0]


async def finish_slices(unfinished, after_slice=lambda: None):
    """The answer of a request in slices; the views of its frame are copied first, as they must."""
    work = unfinished.work
    work.keep(lambda view: memoryview(bytearray(view)))
    while (progress := work.run_slice()) is not Progress.DONE:
        after_slice()
        if progress is Progress.AWAY:
            await work.run_away()
    return work.answer()


class OneBroker:
    """Broker 1 of a cluster, with an event loop of its own."""

    def __init__(self, **values):
        self.loop = asyncio.new_event_loop()
        self.store = MemoryCoordServer()
        self.session = self.store.session()
        self.clock = ManualClock()
        self.permissions = Permissions()
        self.checkpoints = 0
        self.disk = SimDisk(capacity_bytes=CAPACITY_BYTES)
        self.disk.make_directories("/data")
        values = {"node.id": NODE_ID, "data.dir": "/data", **values}
        self.config = broker_config(values=values)
        self.cluster = Cluster(self.session, self.config, SeededRng(1), clock=self.clock)
        self.timers = LoopTimers(self.clock)
        self.supervisor = Supervisor(lambda name, error: None)
        self.coordinators = Coordinators(
            Seams(clock=self.clock, net=None, disk=self.disk, rng=SeededRng(3)),
            self.cluster,
            self.timers,
            supervisor=self.supervisor,
            find_log=lambda name: self.replicas.find_log(*name),
        )
        self.groups = self.coordinators.groups
        self.transactions = self.coordinators.transactions
        self.logs = MemoryLogs()
        self.replicas = ReplicaManager(
            NODE_ID,
            self.logs,
            NoFlushes(),
            clock=self.clock,
            followed=self.coordinators.role_changed,
            lease=self.cluster,
            broker_epoch=lambda: self.cluster.broker_epoch,
            hold_host=HoldHost(self.clock),
        )
        self.cluster.subscribe_in_steps(self.replicas.apply)
        obey_lag_limit(self.replicas, self.cluster.live)
        self.cluster.subscribe(self.coordinators.metadata_changed)
        self.services = self._services()
        self._dispatcher = Dispatcher(HANDLERS)
        self._api_keys = {load(handler.api_key)[0]: handler.api_key for handler in HANDLERS}
        self.run(self.cluster.start(ADVERTISED, unclean=False))
        self.run(self.cluster.catch_up())

    def _services(self):
        rng = SeededRng(2)
        return Services(
            config=self.cluster.live,
            clock=self.clock,
            rng=rng,
            net=None,
            controller=NoController(self.clock),
            disk=self.disk,
            cluster=self.cluster,
            replicas=self.replicas,
            pending_logs=self.replicas.pending_logs,
            groups=self.groups,
            transactions=self.transactions,
            verifier=self.coordinators.verifier,
            markers=self.coordinators.markers,
            hanging=self.coordinators.hanging,
            marker_sender=self.coordinators.sender,
            checkpoint=self._checkpoint,
            telemetry=Telemetry(),
            authorizer=self.permissions,
            timers=self.timers,
            fetch_sessions=FetchSessions(rng, self.config.fetch_sessions_max),
            producer_ids=ProducerIds(self.cluster.reserve_producer_ids),
            quotas=Quotas(),
            response_memory=MemoryPool(self.config.response_memory_bytes),
            supervisor=self.supervisor,
            parked=ParkedRequests(self.loop.call_soon, self.timers),
            catch_up_rate=ByteRate(
                lambda: self.cluster.live.current.leader_replication_throttled_rate
            ),
        )

    def close(self):
        self.run(self.supervisor.stop())
        self.loop.close()

    def run(self, work):
        return self.loop.run_until_complete(work)

    # --- requests --------------------------------------------------------------------------------

    async def _checkpoint(self):
        self.checkpoints += 1

    def call(self, request, version, peer=None):
        """The answer to a request; both pass through their bytes."""
        answer, bound = self.start(request, version, peer)
        if isinstance(answer, Unfinished):
            answer = self.run(finish_slices(answer))
        if isinstance(answer, Coroutine):
            answer = self.run(answer)
        if isinstance(answer, Deferred):
            answer = value_of(answer)
        spec = bound.handler.api_key
        frame = b"".join(bound.encode(answer, version, CORRELATION_ID))[4:]
        correlation_id, position = parse_response_header(
            frame, spec=API_SPECS[spec], version=version
        )
        assert correlation_id == CORRELATION_ID
        reader = Reader(frame, pos=position)
        response = load(spec)[1].read(reader, version)
        reader.finish()
        return response

    def start(self, request, version, peer=None):
        """What `handle` returned, for tests of how an answer comes, and the bound handler.

        The turn of the loop has ended, unless the test itself runs on the loop. Each request has a
        connection of its own, unless `peer` is one.
        """
        if self.loop.is_running():
            return self._start(request, version, peer)

        async def start():
            return self._start(request, version, peer)

        return self.run(start())

    def _start(self, request, version, peer=None):
        frame = b"".join(
            encode_request(
                request,
                spec=API_SPECS[self._api_keys[type(request)]],
                version=version,
                correlation_id=CORRELATION_ID,
                client_id="test",
            )
        )[4:]
        header = parse_request_header(frame)
        bound = self._dispatcher.find(header)
        context = RequestContext(self.services, peer or Peer(), version, "test")
        answer = bound.start(context, memoryview(bytearray(frame)), header.body_offset)
        return answer, bound

    def start_deferred(self, request, version, peer=None):
        """The deferred answer to a request."""
        answer, _ = self.start(request, version, peer)
        return answer

    def turns_of(self, request, version):
        """How often other work gets a turn of the loop while a request is served."""
        answer, _ = self.start(request, version)

        async def count():
            task = asyncio.ensure_future(answer)
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            await task
            return turns

        return self.run(count())

    # --- the cluster around it -------------------------------------------------------------------

    @property
    def image(self):
        return self.cluster.image

    def make_topic(self, name, partitions=1, **spec):
        (result,) = self.run(
            self.cluster.create_topics(
                [TopicSpec(name=name, partitions=partitions, by_coordinator=True, **spec)]
            )
        )
        assert result.topic is not None, result.detail
        return result.topic

    def partition(self, name, index=0):
        return self.replicas.find(name, index)

    def join_broker(self, node_id, *, rack="", software=THIS_SOFTWARE):
        """Register another broker, which answers no requests; its session."""
        config = broker_config(values={"node.id": node_id, "broker.rack": rack})
        session = self.store.session()
        rng = SeededRng(node_id)
        other = Cluster(session, config, rng, clock=self.clock, software=software)
        self.run(other.start(Endpoint("other.example", 9092), unclean=False))
        self.run(self.cluster.catch_up())
        return session

    def depose(self):
        """Make another broker the controller."""
        self.store.expire(self.session)
        self.join_broker(9)

    def lead_again(self, name, index=0):
        """Lead the partition in the next epoch, as after a restart."""
        partition = self.partition(name, index)
        image = replace(partition.image, leader_epoch=partition.leader_epoch + 1)
        partition.become_leader(image, now=self.clock.monotonic())

    def append(self, name, *timestamps, index=0, codec=0, **producer):
        """Append one batch with a record per timestamp; its base offset."""
        records = [Record(b"value", timestamp=timestamp) for timestamp in timestamps]
        batch = build_batch(records, codec=codec, **producer)
        appended = self.partition(name, index).as_leader.append(
            memoryview(batch), acks=1, now_ms=self.clock.wall_ms()
        )
        return appended.base_offset
