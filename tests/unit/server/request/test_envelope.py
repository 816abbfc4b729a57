"""Requests that another broker passes on: what is opened, what is refused, and when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import ErrorCode
from tidemill.core.telemetry import Telemetry
from tidemill.server.request.authorizer import AllowAll
from tidemill.server.request.context import RequestContext
from tidemill.server.request.envelope import make_handler
from tidemill.server.request.handler import Handler, refuse_with_error_code
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidemill.wire.generated.envelope import EnvelopeRequest
from tidemill.wire.headers import encode_request


class Link:
    """Stands for the way to another controller; nothing may take it."""

    async def request(self, *_, **__):
        raise AssertionError("it was passed on again")


class Bench:
    """The controller, with one API that may be in an envelope."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(is_controller=True)
        self.services = SimpleNamespace(
            cluster=self.cluster,
            telemetry=Telemetry(),
            authorizer=AllowAll(),
            controller=Link(),
            clock=SimpleNamespace(monotonic=lambda: 0.0),
        )
        self.seen: list[ElectLeadersRequest] = []
        inside = Handler(
            api_key=ApiKey.ELECT_LEADERS,
            versions=(0, 2),
            handle=self._elect,
            refuse=refuse_with_error_code(ElectLeadersResponse),
            by_controller=True,
        )
        self.handler = make_handler([inside])

    def _elect(self, _context, request):
        self.seen.append(request)
        return ElectLeadersResponse()

    def start(self, request: EnvelopeRequest):
        peer = SimpleNamespace(
            principal="User:broker",
            client_address="",
            is_internal=True,
            is_passed_on=False,
            is_librdkafka=False,
            server_endpoint=Endpoint("h", 1),
        )
        return self.handler.handle(RequestContext(self.services, peer, 0, "c"), request)


def frame(api_key: ApiKey = ApiKey.ELECT_LEADERS, version: int = 2) -> bytes:
    chunks = encode_request(
        ElectLeadersRequest(topic_partitions=None),
        spec=API_SPECS[api_key],
        version=version,
        correlation_id=0,
        client_id="c",
    )
    return b"".join(chunks)[4:]


def envelope(data: bytes, principal: bytes | None = b"User:a", host: bytes = b"h"):
    return EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=host)


def test_a_request_in_an_envelope_is_answered(run):
    bench = Bench()
    answer = run(bench.start(envelope(frame())))
    assert answer.error_code == ErrorCode.NONE
    assert len(bench.seen) == 1


def test_a_request_that_was_passed_on_is_never_passed_on_again(run):
    bench = Bench()
    waiting = bench.start(envelope(frame()))
    bench.cluster.is_controller = False  # while the request waited for its turn
    answer = run(waiting)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    assert not bench.seen


@pytest.mark.parametrize(
    "wrong",
    [
        envelope(b""),
        envelope(b"\x00"),
        envelope(bytes(200)),
        envelope(b"\xff" * 200),
        envelope(frame()[:-1]),
        envelope(frame() + b"\x00"),
        envelope(frame(ApiKey.HEARTBEAT)),
        envelope(frame(ApiKey.ENVELOPE)),
        envelope(frame(ApiKey.PRODUCE)),
        envelope(frame(), principal=b"\xff\xfe"),
        envelope(frame(), host=b"\xff"),
        envelope(b"\x00\x2b\x00\x02" + b"\x00\x00\x00\x00" + b"\x00\x02\xff\xfe" + bytes(20)),
    ],
)
def test_garbage_in_an_envelope_is_refused(run, wrong):
    bench = Bench()
    assert run(bench.start(wrong)).error_code == ErrorCode.INVALID_REQUEST
    assert not bench.seen
