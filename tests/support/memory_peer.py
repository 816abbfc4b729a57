"""A connection without a socket: the server's end is real, the network and the handlers are fakes.

Runs on a simulated loop, so time passes only when a test sleeps.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
from types import SimpleNamespace

from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.telemetry import Telemetry
from tidemill.replication.serving.replica_sessions import ReplicaSessions
from tidemill.server.connection.connection import Connection
from tidemill.server.connection.listener import Listener
from tidemill.server.connection.listener_resources import ClientDeadlines, ListenerResources
from tidemill.server.fetching.parked_requests import ParkedRequests
from tidemill.server.handlers import HANDLERS
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.handler import Handler, refuse_with_error_code
from tidemill.testing.manual_clock import SimClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.testing.sim.loop import SimLoop
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.api_versions import ApiVersionsRequest
from tidemill.wire.generated.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.list_groups import ListGroupsRequest, ListGroupsResponse
from tidemill.wire.generated.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidemill.wire.generated.produce import ProduceResponse
from tidemill.wire.generated.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from tidemill.wire.headers import encode_request

API_VERSIONS = next(one for one in HANDLERS if one.api_key is ApiKey.API_VERSIONS)


class MemoryTransport(asyncio.Transport):
    """The kernel accepts `window` bytes that the client has not read; the rest waits here."""

    def __init__(self, address="192.0.2.1", window=1 << 40):
        super().__init__({"peername": (address, 40000), "sockname": ("192.0.2.9", 9092)})
        self.protocol = None
        self.on_resume = lambda: None
        self.window = window
        self.received = bytearray()
        self.unsent = bytearray()
        self.reading = True
        self.closing = False
        self.aborted = False
        self.writes = 0
        self._limits = (1 << 14, 1 << 16)
        self._paused = False

    def set_write_buffer_limits(self, high=None, low=None):
        self._limits = (low, high)

    def get_write_buffer_size(self):
        return len(self.unsent)

    def is_closing(self):
        return self.closing

    def write(self, data):
        assert not self.closing, "written after close"
        self.writes += 1
        self.unsent += data
        self.pump()
        if not self._paused and len(self.unsent) > self._limits[1]:
            self._paused = True
            self.protocol.pause_writing()

    def writelines(self, chunks):
        self.write(b"".join(chunks))

    def take(self, count):
        """The client reads `count` bytes, which makes room in the kernel."""
        self.window += count
        self.pump()

    def pump(self):
        count = min(self.window - len(self.received), len(self.unsent))
        if count > 0:
            self.received += self.unsent[:count]
            del self.unsent[:count]
        if self._paused and len(self.unsent) <= self._limits[0] and self.protocol is not None:
            self._paused = False
            self.protocol.resume_writing()
        self._maybe_lose()

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True
        asyncio.get_running_loop().call_soon(self.on_resume)

    def close(self):
        self.closing = True
        self._maybe_lose()

    def abort(self):
        self.closing = self.aborted = True
        self.unsent.clear()
        self._maybe_lose()

    def _maybe_lose(self):
        if self.closing and not self.unsent and self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)


class Server:
    """The resources of one listener, and handlers that a test controls.

    Heartbeat waits until the test answers it, or is parked among `watchers` if there are any;
    ListGroups runs in steps until the test lets it end;
    DescribeGroups answers at once, with as many bytes as the test wants, Produce with nothing or
    with what the test wants, and OffsetCommit with nothing;
    SaslAuthenticate is refused.
    """

    def __init__(self, *, deadlines=None, connections_max=100, **values):
        self.loop = asyncio.get_running_loop()
        self.clock = SimClock(self.loop.time)
        self.failures = []
        self.waiting = []
        self.watchers = None
        self.contexts = []
        self.started = []
        self.step_ends = asyncio.Event()
        self.group_ids = ["g"]
        self.throttle_ms = 0
        self.bug = None
        self.handler_cost_s = 0.0
        self.produce_answer = lambda request: ProduceResponse()
        supervisor = Supervisor(lambda name, error: self.failures.append(error))
        timers = LoopTimers(self.clock)
        self.services = SimpleNamespace(
            config=LiveConfig(broker_config(values=values)),
            clock=self.clock,
            telemetry=Telemetry(),
            timers=timers,
            response_memory=MemoryPool(1 << 30),
            parked=ParkedRequests(self.loop.call_soon, timers),
            replica_sessions=ReplicaSessions(),
            supervisor=supervisor,
            disk=SimDisk(),
        )
        self.resources = ListenerResources(
            self.services,
            Dispatcher(self._handlers()),
            supervisor,
            connections_max=connections_max,
            deadlines=deadlines or ClientDeadlines(),
            failed=lambda part, error: self.failures.append(error),
        )

    def connect(self, **transport):
        return Client(self, MemoryTransport(**transport))

    def sweep(self):
        for connection in list(self.resources.admission.connections):
            connection.check_deadlines(self.clock.monotonic())

    def _handlers(self):
        return (
            API_VERSIONS,
            _handler(ApiKey.HEARTBEAT, self._heartbeat, HeartbeatResponse),
            _handler(ApiKey.LIST_GROUPS, self._list_groups, ListGroupsResponse),
            Handler(
                api_key=ApiKey.METADATA,
                versions=(0, 13),
                handle=self._metadata,
                refuse=lambda request, error: MetadataResponse(),
            ),
            Handler(
                api_key=ApiKey.DESCRIBE_GROUPS,
                versions=(0, 5),
                handle=self._describe_groups,
                refuse=lambda request, error: DescribeGroupsResponse(),
            ),
            Handler(
                api_key=ApiKey.PRODUCE,
                versions=(3, 13),
                handle=self._produce,
                refuse=lambda request, error: ProduceResponse(),
            ),
            Handler(
                api_key=ApiKey.OFFSET_COMMIT,
                versions=(2, 10),
                handle=self._offset_commit,
                refuse=lambda request, error: OffsetCommitResponse(),
            ),
            _handler(ApiKey.SASL_AUTHENTICATE, self._refuse, SaslAuthenticateResponse),
        )

    def _note(self, context, request):
        self.started.append(type(request).__name__)
        self.contexts.append(context)
        context.throttle_ms = self.throttle_ms
        if self.bug is not None:
            raise self.bug

    def _heartbeat(self, context, request):
        self._note(context, request)
        if self.watchers is None:
            answer = Deferred()
        else:
            answer = self.services.parked.try_park(
                [self.watchers],
                wait_ms=60_000,
                is_ready=lambda: False,
                finish=HeartbeatResponse,
            )
        self.waiting.append(answer)
        return answer

    async def _list_groups(self, context, request):
        self._note(context, request)
        await self.step_ends.wait()
        return ListGroupsResponse()

    async def _metadata(self, context, request):
        self._note(context, request)
        await asyncio.sleep(0)
        return MetadataResponse()

    def _describe_groups(self, context, request):
        self._note(context, request)
        self.loop._now += self.handler_cost_s
        return DescribeGroupsResponse(
            groups=[DescribedGroup(group_id=name) for name in self.group_ids]
        )

    def _produce(self, context, request):
        self._note(context, request)
        self.loop._now += self.handler_cost_s
        return self.produce_answer(request)

    def _offset_commit(self, context, request):
        self._note(context, request)
        return OffsetCommitResponse()

    def _refuse(self, context, request):
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)


def _handler(api_key, handle, response):
    spec = API_SPECS[api_key]
    return Handler(
        api_key=api_key,
        versions=(spec.version_min, spec.version_max),
        handle=handle,
        refuse=refuse_with_error_code(response),
    )


class Client:
    """The client's end: sends frames, reads answers in order."""

    def __init__(self, server, transport):
        self.server = server
        self.transport = transport
        self.unread = bytearray()
        self._correlation_id = 0
        self._read = 0
        self.connection = Connection(server.resources)
        transport.protocol = self.connection
        transport.on_resume = self.deliver
        self.connection.connection_made(transport)

    # --- sending ---------------------------------------------------------------------------------

    def send(self, data):
        """Send bytes; they arrive as far as the server reads."""
        self.unread += data
        self.deliver()

    def deliver(self):
        transport, connection = self.transport, self.connection
        while self.unread and transport.reading and not transport.closing:
            space = connection.get_buffer(-1)
            assert len(space) > 0, "the server reads without space"
            count = min(len(space), len(self.unread))
            space[:count] = self.unread[:count]
            del self.unread[:count]
            connection.buffer_updated(count)

    def frame(self, api_key, request, version=0):
        self._correlation_id += 1
        return b"".join(
            encode_request(
                request,
                spec=API_SPECS[api_key],
                version=version,
                correlation_id=self._correlation_id,
                client_id="test",
            )
        )

    def api_versions(self):
        return self.frame(ApiKey.API_VERSIONS, ApiVersionsRequest())

    def waiting(self):
        return self.frame(ApiKey.HEARTBEAT, HeartbeatRequest())

    def slow(self):
        return self.frame(ApiKey.LIST_GROUPS, ListGroupsRequest())

    def metadata(self):
        return self.frame(ApiKey.METADATA, MetadataRequest(), 12)

    def quick(self):
        return self.frame(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"]))

    def commit(self):
        return self.frame(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group_id="g"), 8)

    def refused(self):
        return self.frame(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest())

    # --- reading ---------------------------------------------------------------------------------

    def answers(self):
        """Correlation ids of the answers since the last call."""
        found = []
        data = self.transport.received
        while self._read + 4 <= len(data):
            (size,) = struct.unpack_from(">i", data, self._read)
            if self._read + 4 + size > len(data):
                break
            found.append(struct.unpack_from(">i", data, self._read + 4)[0])
            self._read += 4 + size
        return found

    @property
    def is_closed(self):
        return self.transport.closing


class MemoryNet:
    """Has no sockets; a test connects through the factory."""

    def __init__(self, error=None):
        self.error = error
        self.closed = False

    async def listen(self, factory, host, port):
        if self.error is not None:
            raise self.error
        self.factory = factory
        self.address = (host, port or 50000)
        return self

    async def start_serving(self):
        pass

    def close(self):
        self.closed = True


async def listening(server):
    """A listener that serves `server`, and its net."""
    net = MemoryNet()
    listener = Listener(net)
    await listener.bind(Endpoint("192.0.2.9", 0))
    await listener.serve(server.resources)
    return listener, net


def simulated(test):
    """Run an async test on simulated time."""

    def run(**fixtures):
        return SimLoop().run(test(**fixtures))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = inspect.signature(test)  # pytest finds fixtures by it
    return run


async def settle():
    """Let all ready callbacks and tasks run."""
    for _ in range(10):
        await asyncio.sleep(0)
